"""Stage, offload and batch of a ds_config, as plans and estimates show them."""

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL, equal_samples
from zlaunch.config.resolve.values import AUTO, Values
from zlaunch.dsconfig.batch import Size
from zlaunch.dsconfig.keys.read_at import stages_reading
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import dotted
from zlaunch.job.source import SourceKind
from zlaunch.units import memory, narrowed, plural, whole

if TYPE_CHECKING:  # a plan often has none
    from zlaunch.estimate.query import Estimate

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


def batch_rows(values: Values, ranks: Size | None = None) -> Iterator[tuple[str, str]]:
    """Write the global batch, as far as it is known; `ranks` are those that divide it."""
    words, leaf = _batch(values, ranks), values.leaves.get(MICRO)
    if words and leaf is not None and leaf.source.kind is SourceKind.ZLAUNCH_DEFAULT:
        words += (
            f"; {leaf.value} is {leaf.source}: if the script feeds another number, give it with "
            f"`--set {dotted(MICRO)}=N`"
        )
    if words:
        yield "batch", words


def _batch(values: Values, ranks: Size | None) -> str:
    batch, micro, accumulation = values.leaves.get(TOTAL), whole(values[MICRO]), whole(values[ACCUMULATION])
    if batch is None or batch.value == AUTO:
        if ranks is None:
            return ""
        factors = _factors(micro, accumulation, ranks)
        if micro and accumulation:
            return f"{narrowed(micro * accumulation * ranks)} = {factors}"
        return factors
    same = equal_samples(values, batch.value)
    if batch.source.kind is SourceKind.COMPUTED:
        return f"{batch.value} = {batch.source}{same}"
    total = whole(batch.value)
    if total and micro and accumulation:
        factors = _factors(micro, accumulation, Fraction(total, micro * accumulation))
        return f"{total} = {factors} ({batch.source}){same}"
    return f"{batch.value} ({batch.source}){same}"


def _factors(micro: int | None, accumulation: int | None, ranks: Size) -> str:
    """Write the factors of a global batch; those that are unknown are the script's own."""
    factors = [f"{micro} per rank", f"{accumulation} accumulated", plural(ranks, "rank")]
    if not accumulation:
        factors[1] = "the script's accumulation"
    if not micro:
        factors[0] = "the script's batch size per rank"
        factors[1] = factors[1].replace("the script's", "its")
    return " x ".join(factors)


def process_text(estimate: "Estimate") -> str:
    """Write what a process takes on its GPU, of what there is."""
    most, gpu = memory(estimate.need.process[1]), estimate.query.cluster.gpu
    phase = estimate.forecast.peak_phase("gpu")
    if gpu is None:
        return f"{most} on each GPU, peak in {phase}"
    return f"{most} of {memory(gpu.total_bytes)} on each GPU, peak in {phase}"
