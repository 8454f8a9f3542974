"""Traffic and time of a step, as text."""

from collections.abc import Iterator

from zlaunch import console
from zlaunch.estimate.memory.communication import paper_volume
from zlaunch.estimate.memory.roofline import Speed
from zlaunch.estimate.memory.settings import read_settings
from zlaunch.estimate.query import Estimate
from zlaunch.units import brief, decimal


def traffic_lines(estimate: Estimate) -> Iterator[str]:
    """Write what a rank sends in a step, and what the ZeRO paper counts."""
    if estimate.speed is None:
        return
    traffic = estimate.speed.traffic
    yield "traffic of a rank in a step"
    rows = [
        (f"{one.kind} of {one.of}", decimal(one.sent(traffic.world_size), "B"), f"{one.times} x")
        for one in traffic.collectives
    ]
    others = {
        "to its host": traffic.to_host,
        "from its host": traffic.from_host,
        "read from NVMe": traffic.nvme_read,
        "written to NVMe": traffic.nvme_written,
    }
    rows += [(name, decimal(amount, "B"), "") for name, amount in others.items() if amount]
    if not rows:
        yield "  none: there is one rank, and nothing is offloaded"
        return
    yield from (f"  {line}" for line in console.figures(rows))
    if traffic.collectives:
        settings = read_settings(estimate.workload)
        paper = paper_volume(estimate.forecast.trainable, settings.stage, traffic.world_size, settings.item)
        yield from console.paragraph(
            f"{decimal(traffic.sent, 'B')} to other ranks; the ZeRO paper counts {decimal(paper, 'B')} "
            "without accumulation",
            "  ",
        )


def time_lines(speed: Speed | None) -> Iterator[str]:
    """Write how long a step takes, and the share of each kind of work."""
    if speed is None:
        return
    roof = speed.roofline
    calibrated = "published runs" if roof.is_calibrated else "published runs on other GPUs"
    yield from console.paragraph(
        f"a step takes {_range(roof.likely)} (not measured: calibrated on {calibrated})"
    )
    yield from console.table(
        [(term.name, _range(term.likely), term.why) for term in roof.terms if term.likely[1]]
    )
    verb = "take" if roof.bound_by.endswith("s") else "takes"
    yield from console.paragraph(
        f"{roof.bound_by} {verb} longest; by data sheets alone, a step takes at least "
        f"{brief(roof.seconds)}: at most {roof.tokens_per_second:,.0f} tokens/s on all ranks",
        "  ",
    )


def _range(seconds: tuple[float, float]) -> str:
    return " to ".join(dict.fromkeys(map(brief, seconds)))
