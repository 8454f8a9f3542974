"""Keys that DeepSpeed has renamed, and still reads under their old names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.dsconfig.text.document import KeyPath


@dataclass(frozen=True)
class OldName:
    """Where a key stood, and where it stands today."""

    old: KeyPath
    new: KeyPath
    section: Mapping[str, Any] | None = None
    """What `true` has become, where a switch has become a section."""

    def today(self, value: Any) -> Any:
        """Write a value of the old key as the new one has it; None if it says nothing."""
        if self.section is None:
            return value
        return {**self.section} if value is True else None


OLD_NAMES: tuple[OldName, ...] = (
    OldName(
        (ZERO, "stage3_gather_fp16_weights_on_model_save"),
        (ZERO, "stage3_gather_16bit_weights_on_model_save"),
    ),
    OldName(("bfloat16",), ("bf16",)),
    OldName((ZERO, "cpu_offload"), (ZERO, "offload_optimizer"), {"device": "cpu"}),
    OldName((ZERO, "cpu_offload_param"), (ZERO, "offload_param"), {"device": "cpu"}),
)
