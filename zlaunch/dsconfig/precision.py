"""The precision that a ds_config enables."""

from collections.abc import Mapping

from zlaunch.dsconfig.text.document import value_at


def precision_of(ds_config: Mapping[str, object]) -> str:
    """Return the precision that is enabled: `bf16`, `fp16` or else `fp32`."""
    enabled = [name for name in ("bf16", "fp16") if value_at(ds_config, (name, "enabled")) is True]
    if enabled:
        return enabled[0]
    return "fp32"
