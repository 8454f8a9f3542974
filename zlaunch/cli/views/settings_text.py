"""Stage, offload and batch of a ds_config, as plans and estimates show them."""

from collections.abc import Iterator
from typing import Final

from zlaunch.config.resolve.autos import equal_samples
from zlaunch.config.resolve.values import Values
from zlaunch.dsconfig.schema.section import ZERO

PLACES: Final = {"cpu": "the CPU", "nvme": "NVMe"}
PARTS: Final = {"optimizer": "optimizer", "param": "parameters"}


def is_offloaded(values: Values) -> bool:
    """Whether anything is offloaded, to the CPU or to NVMe."""
    return any(values[ZERO, f"offload_{key}", "device"] in PLACES for key in PARTS)


def zero_words(values: Values) -> str:
    """Write the stage, and where the optimizer and the parameters are offloaded to."""
    devices = {part: values[ZERO, f"offload_{key}", "device"] for key, part in PARTS.items()}
    moved = [f"{part} on {PLACES[device]}" for part, device in devices.items() if device in PLACES]
    stage = values[ZERO, "stage"] or 0  # DeepSpeed's default
    return f"ZeRO stage {stage}, {', '.join(moved) or 'nothing offloaded'}"


def batch_rows(values: Values) -> Iterator[tuple[str, str]]:
    """Write the global batch, if it is known."""
    if (batch := values.leaves.get(("train_batch_size",))) is not None:
        yield "batch", f"{batch.value} = {batch.source}{equal_samples(values, batch.value)}"
