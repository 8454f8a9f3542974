"""Stage, offload and batch of a ds_config, as plans and estimates show them."""

from collections.abc import Iterator
from typing import Final

from zlaunch.config.resolve.autos import MICRO, equal_samples
from zlaunch.config.resolve.values import Values
from zlaunch.dsconfig.keys.read_at import stages_reading
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import dotted
from zlaunch.job.source import SourceKind

PLACES: Final = {"cpu": "the CPU", "nvme": "NVMe"}
PARTS: Final = {"optimizer": "optimizer", "param": "parameters"}


def is_offloaded(values: Values) -> bool:
    """Whether anything is offloaded, to the CPU or to NVMe."""
    return any(_moved(values))


def zero_words(values: Values) -> str:
    """Write the stage, and where the optimizer and the parameters are offloaded to."""
    return f"ZeRO stage {_stage_or_default(values)}, {', '.join(_moved(values)) or 'nothing offloaded'}"


def precision_words(precision: str, values: Values) -> str:
    """Write a precision, and why a machine trains in fp32 if nobody has chosen one."""
    leaf = values.leaves.get(("bf16", "enabled"))
    if precision == "fp32" and leaf is not None and leaf.source.kind is SourceKind.MACHINE:
        return str(leaf.source)
    return precision


def _stage_or_default(values: Values) -> object:
    return values[ZERO, "stage"] or 0  # DeepSpeed's default


def _moved(values: Values) -> Iterator[str]:
    for key, part in PARTS.items():
        device = values[ZERO, f"offload_{key}", "device"]
        if device in PLACES and _stage_or_default(values) in stages_reading(f"offload_{key}"):
            yield f"{part} on {PLACES[device]}"


def batch_rows(values: Values) -> Iterator[tuple[str, str]]:
    """Write the global batch, if it is known."""
    if (batch := values.leaves.get(("train_batch_size",))) is not None:
        words = f"{batch.value} = {batch.source}{equal_samples(values, batch.value)}"
        micro = values.leaves.get(MICRO)
        if micro is not None and micro.source.kind is SourceKind.ZLAUNCH_DEFAULT:
            words += (
                f"; {micro.value} is {micro.source}: if the script feeds another number, give it with "
                f"`--set {dotted(MICRO)}=N`"
            )
        yield "batch", words
