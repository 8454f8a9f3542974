"""A stall in words: where all ranks are, and which is the odd one."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from zlaunch.diagnosis.evidence import StallEvidence
from zlaunch.units import brief, clock

NO_ANSWER = "did not answer"

STATES = {
    "stopped": "it is stopped",
    "tracing-stop": "a debugger holds it",
    "disk-sleep": "it waits for a disk or a network file system",
    "zombie": "it has ended",
    "dead": "it has ended",
}
"""What psutil says of a process that does not answer → what that means."""

MOST_SPANS = 8
"""More than so many places of ranks are not listed."""

SILENCE_SECONDS = 15.0
"""Samples come every two seconds; later than this, the host is in doubt too."""


def silence(sample: Mapping[str, Any], age: float) -> str:
    """Say what is known of a rank that did not write its stacks: the last sample of it, and its age."""
    if not sample:
        return f"{NO_ANSWER}; its process was never seen"
    if age > SILENCE_SECONDS:
        return f"{NO_ANSWER}; nothing was heard of `{sample.get('host')}` for {clock(age)}"
    state = STATES.get(str(sample.get("status")))
    return f"{NO_ANSWER}; {state}" if state else NO_ANSWER


def stall_lines(
    stall: StallEvidence, seconds_per_step: float | None, width: int, is_over: bool = False
) -> list[str]:
    """Say for how long nothing has moved, or moved, and where the ranks are, those in one place together."""
    usual = f"; a step took {brief(seconds_per_step)}" if seconds_per_step is not None else ""
    when = f"in step {stall.step + 1}" if stall.step else "before the first step was done"
    lines = [f"nothing {'moved' if is_over else 'has moved'} for {clock(stall.seconds)}, {when}{usual}:"]
    places: dict[str, list[int]] = {}
    for rank, where in stall.where.items():
        places.setdefault(where, []).append(rank)
    for where, ranks in places.items():
        is_odd = set(ranks) & set(stall.odd) and not where.startswith(NO_ANSWER)
        note = " (elsewhere than the others)" if is_odd else ""
        text = f"{rank_names(ranks)}{note}: {where}"
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
    return lines


def rank_names(ranks: Sequence[int]) -> str:
    """Write `rank 3`, `ranks 0-2, 5`; of many that lie apart only the first."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][-1] == rank - 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    shown = ", ".join("-".join(map(str, span)) for span in spans[:MOST_SPANS])
    left = sum(span[-1] - span[0] + 1 for span in spans[MOST_SPANS:])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{f' and {left} more' if left else ''}"
