"""The verdict on a run: the cause of its end, the evidence, and what to change."""

from zlaunch.frozen import dataclass


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
    when: str | None = None
    """The step of that rank: `in step 3`, or `after step 2` if it was between two; None if unknown."""

    @property
    def beginning(self) -> str | None:
        """The rank that failed first, its host, its phase and its step; None if there is none."""
        if self.rank is None:
            return None
        who = f"rank {self.rank}"
        if self.host:
            who += f" on {self.host}"
        return ", ".join(filter(None, (who, self.phase, self.when)))
