"""Show the time of a step by part, the throughput, and what limits the speed."""

from collections.abc import Iterator

from zlaunch import console
from zlaunch.diagnosis.render import loss_lines
from zlaunch.diagnosis.speed import part_name
from zlaunch.runs.step_time import StepTime, Throughput
from zlaunch.units import brief, decimal, plural

LEAST_SHOWN = 0.005
"""Share of a step below which a part has no row of its own."""


def step_time_lines(time: StepTime) -> Iterator[str]:
    """Write a table of the parts of a step, the throughput, and each loss."""
    clock = "on the GPU" if time.on_gpu else "on the host's clock"
    title = f"time of a step {clock}, mean of {plural(len(time.ranks), 'rank')}"
    total = sum(time.parts.values())
    rows = [(title, "time", "share")]
    for part, seconds in time.parts.items():
        if seconds >= LEAST_SHOWN * total:
            rows.append((part_name(part), brief(seconds), f"{seconds / total:.0%}"))
    yield from console.figures(rows)
    if text := throughput_text(time.throughput):
        yield f"  {text}"
    for loss in time.losses:
        yield from loss_lines(loss, console.width())


def throughput_text(throughput: Throughput) -> str:
    """Write what is known of the throughput."""
    parts = []
    if throughput.samples_per_second is not None:
        parts.append(f"{amount(throughput.samples_per_second)} samples/s")
    if throughput.tokens_per_second is not None:
        parts.append(f"{amount(throughput.tokens_per_second)} tokens/s")
    if throughput.flops_per_second is not None:
        parts.append(f"{decimal(throughput.flops_per_second, 'FLOP')}/s per rank")
    if throughput.mfu is not None:
        parts.append(f"MFU {throughput.mfu:.1%}")
    if throughput.hfu is not None and throughput.hfu != throughput.mfu:
        parts.append(f"HFU {throughput.hfu:.1%}")
    return ", ".join(parts)


def amount(rate: float) -> str:
    """Write a rate with at least three digits: `0.82`, `13.5`, `8,623`."""
    if rate >= 100:
        return f"{rate:,.0f}"
    return f"{rate:.3g}"
