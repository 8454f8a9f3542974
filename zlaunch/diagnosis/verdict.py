"""Why a run ended as it did: a cause, where it began, what shows it, and what to change."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a person is told about an ending. On the screen it takes ten lines at most."""

    code: str
    """A stable name, in kebab case: `host-out-of-memory`."""
    cause: str
    """One sentence, without its full stop."""
    rank: int | None = None
    """The rank it began with; None if it began with none of them, or nobody knows."""
    host: str | None = None
    phase: str | None = None
    """What that rank was doing, of `zlaunch.rundir.phases`."""
    facts: tuple[str, ...] = ()
    """At most three: numbers, a line of a log, a counter."""
    advice: tuple[str, ...] = ()
    """What to change, computed for this job. Nothing rather than something that may be wrong."""
