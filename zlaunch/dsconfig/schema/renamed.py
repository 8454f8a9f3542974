"""Keys that DeepSpeed renamed and still reads under their old names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import KeyPath


@dataclass(frozen=True)
class OldName:
    """The old and the new path of a key."""

    old: KeyPath
    new: KeyPath
    section: Mapping[str, Any] | None = None
    """The section that replaces `true`, where a switch became a section."""

    def today(self, value: object) -> object:
        """Convert a value of the old key to the new one; None if it has no effect."""
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
