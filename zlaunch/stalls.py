"""A stall in words: where all ranks are, and which is the odd one."""

import textwrap
from collections.abc import Sequence

from zlaunch.diagnosis.evidence import StallEvidence
from zlaunch.units import brief, clock


def stall_lines(stall: StallEvidence, seconds_per_step: float | None, width: int) -> list[str]:
    """Say for how long nothing has moved, and where the ranks are, those in one place together."""
    usual = f"; a step took {brief(seconds_per_step)}" if seconds_per_step is not None else ""
    lines = [f"nothing has moved for {clock(stall.seconds)}, in step {stall.step + 1}{usual}:"]
    places: dict[str, list[int]] = {}
    for rank, where in stall.where.items():
        places.setdefault(where, []).append(rank)
    for where, ranks in places.items():
        note = " (elsewhere than the others)" if set(ranks) & set(stall.odd) else ""
        text = f"{rank_names(ranks)}{note}: {where}"
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
    return lines


def rank_names(ranks: Sequence[int]) -> str:
    """Write `rank 3`, `ranks 0-2, 5`."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][-1] == rank - 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    shown = ", ".join("-".join(map(str, span)) for span in spans)
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
