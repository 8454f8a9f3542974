"""A user's program to check, and what its ranks measured."""

from pathlib import Path
from typing import Final

from zlaunch.frozen import dataclass
from zlaunch.job.spec import Precision
from zlaunch.parity.verdict import Comparison

STEPS: Final = 3
"""Steps of a program that are compared, unless it is told otherwise."""
NO_STEP: Final = "it ended before its engine took a step"
MOST_SECONDS: Final = 600
"""How long a program may take for them."""


@dataclass(frozen=True, slots=True)
class ScriptOrder:
    """A program, as its first rank would start."""

    argv: tuple[str, ...]
    """Its file, or `-m` and a module, and its arguments."""
    free_bytes: int
    """Memory that all ranks may take."""
    steps: int = STEPS
    local_rank_flag: str | None = None
    most_seconds: int = MOST_SECONDS


@dataclass(frozen=True, slots=True)
class TrainedEngine:
    """The engine of a program that was compared."""

    model: str
    """The class of its model."""
    stage: int
    precision: Precision
    """The format in which gradients are computed or sent, whichever has fewer bits."""
    accumulated: int
    """Micro-batches of a step."""
    asked: int
    """Micro-batches of a step without a check."""


@dataclass(frozen=True, slots=True)
class MeasuredScript:
    """What a rank of a program measured; without a comparison, why there is none."""

    comparison: Comparison | None = None
    engine: TrainedEngine | None = None
    steps: int = 0
    """Steps that were compared."""
    unchecked: tuple[str, ...] = ()
    """What of the program was not compared."""
    error: str | None = None
    """Why nothing can be told, or what ended the program."""
    exited: bool = False
    """Whether it exited with a status instead of an exception: what it printed may tell more."""
    place: str | None = None
    """Where in the program that was: file and line."""
    is_refusal: bool = False
    """Whether DeepSpeed's engine raised it, because the job cannot work."""
    ended: float = 0.0
    """When, as of `time.time`: the first rank to fail is the reason why others do."""
    made: tuple[str, ...] = ()
    """Directories that it made, which are empty."""


def result_of(folder: Path, rank: int) -> Path:
    """Return the file with what a rank measured."""
    return folder / f"measured.{rank}.json"
