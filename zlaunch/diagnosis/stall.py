"""A stall: where all ranks are, which of them differ, and how to say it."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import field

from zlaunch.frozen import dataclass
from zlaunch.rundir.record import SampleRecord
from zlaunch.units import brief, clock


@dataclass(frozen=True, slots=True)
class StallEvidence:
    """A run that made no progress."""

    seconds: float
    step: int = 0
    where: Mapping[int, str] = field(default_factory=dict)
    """Rank → `file:line function`."""
    odd: tuple[int, ...] = ()
    """The ranks whose stacks differ from those of most."""
    ended_job: bool = True
    """Whether the job was stopped for it; otherwise it was only reported."""


NO_ANSWER = "did not answer"

STATES = {
    "stopped": "its process is stopped",
    "tracing-stop": "a debugger has stopped it",
    "disk-sleep": "it is waiting for a disk or a network file system",
    "zombie": "it has ended",
    "dead": "it has ended",
}
"""Process status from psutil → its meaning for a process that does not answer."""

MOST_SPANS = 8
"""Maximum number of rank ranges listed."""

SILENCE_SECONDS = 15.0
"""Samples are taken every two seconds; without one for this long, the host may be lost."""


def silence(sample: SampleRecord, age: float) -> str:
    """Say why a rank may not have written its stacks, from its last sample and the sample's age."""
    if not sample:
        return f"{NO_ANSWER}; it never sent a sample"
    if age > SILENCE_SECONDS:
        return f"{NO_ANSWER}; no sample from `{sample.get('host')}` for {clock(age)}"
    if state := STATES.get(sample.get("status", "")):
        return f"{NO_ANSWER}; {state}"
    return NO_ANSWER


def stall_lines(stall: StallEvidence, seconds_per_step: float | None, width: int) -> list[str]:
    """Say how long there was no progress and where the ranks are, grouped by place."""
    when = f"in step {stall.step + 1}" if stall.step else "before the end of the first step"
    if seconds_per_step is not None:
        when += f"; a step took {brief(seconds_per_step)}"
    lines = [f"no progress for {clock(stall.seconds)}, {when}:"]
    places: dict[str, list[int]] = {}
    for rank, where in stall.where.items():
        places.setdefault(where, []).append(rank)
    for where, ranks in places.items():
        names = rank_names(ranks)
        if set(ranks) & set(stall.odd) and not where.startswith(NO_ANSWER):
            names += " (differs from the others)"
        lines += textwrap.wrap(f"{names}: {where}", width, initial_indent="  ", subsequent_indent="    ")
    return lines


def rank_names(ranks: Sequence[int]) -> str:
    """Write `rank 3` or `ranks 0-2, 5`; of many separate spans only the first."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][-1] == rank - 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    names = ", ".join("-".join(map(str, span)) for span in spans[:MOST_SPANS])
    if left := sum(span[-1] - span[0] + 1 for span in spans[MOST_SPANS:]):
        names += f" and {left} more"
    return f"ranks {names}" if len(ranks) > 1 else f"rank {names}"
