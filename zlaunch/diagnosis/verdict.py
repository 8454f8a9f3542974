"""The verdict on a run: the cause of its end, the evidence, and what to change."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a run ended; at most ten lines on the screen."""

    code: str
    """A stable name, in kebab case: `host-out-of-memory`."""
    cause: str
    """One sentence without a period."""
    rank: int | None = None
    """The rank that failed first; None if there is none, or it is unknown."""
    host: str | None = None
    phase: str | None = None
    """Phase of that rank, from `zlaunch.rundir.phases`."""
    facts: tuple[str, ...] = ()
    """At most three numbers, log lines or counters."""
    advice: tuple[str, ...] = ()
    """What to change, computed for this job; empty if it might be wrong."""
