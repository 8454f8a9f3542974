"""How a person wants a job to be watched, and what may be tried after a failure."""

from dataclasses import dataclass
from typing import Literal

from zlaunch.errors import WrongUsage

STEP_PATIENCE_SECONDS = 60.0
"""The least time without a step that counts as a stall, unless somebody says otherwise."""

OnStall = Literal["report", "stop"]
OnOom = Literal["stop", "retry"]


@dataclass(frozen=True, slots=True)
class Manner:
    """How a person wants a job to be watched."""

    show_ranks: tuple[int, ...] = (0,)
    """Ranks whose output is shown. Where none is, there is one line that says how far the job is."""
    on_stall: OnStall = "report"
    stall_after: float = STEP_PATIENCE_SECONDS
    """The least time without a step that counts as a stall, in seconds."""
    debugged: int | None = None
    """A rank that waits for a debugger. It may stand still, and the others with it: that is no stall."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a person allows to be tried."""

    max_restarts: int = 0
    on_oom: OnOom = "stop"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person said about watching a job, and about going on after a failure."""

    show_ranks: str | None = None
    """Ranks whose output is shown, as `ranks_to_show` reads them."""
    on_stall: OnStall = "report"
    stall_after: float = STEP_PATIENCE_SECONDS
    policy: Policy = Policy()

    def manner(self, world_size: int, interactive: bool, debugged: int | None = None) -> Manner:
        """Say how a job of so many ranks is watched; raise WrongUsage for a rank that will not be there."""
        shown = ranks_to_show(self.show_ranks, world_size, interactive)
        return Manner(shown, self.on_stall, self.stall_after, debugged)


def ranks_to_show(text: str | None, world_size: int, interactive: bool) -> tuple[int, ...]:
    """Read `0,3`, `all` or `none`; raise WrongUsage for a rank that will not be there.

    Left out, rank 0 goes where output is kept or passed on, and nobody is shown to a person, who
    has one quiet line instead.
    """
    match text:
        case None:
            return () if interactive else (0,)
        case "all":
            return tuple(range(world_size))
        case "none":
            return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) < world_size for word in words):
        ranks = "is rank 0 only" if world_size == 1 else f"are ranks 0 to {world_size - 1}"
        raise WrongUsage(f"`--show-ranks {text}`: there {ranks}", "write `--show-ranks 0`, all or none")
    return tuple(sorted({int(word) for word in words}))
