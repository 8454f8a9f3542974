"""A user's program to rehearse, and what its rehearsal found out."""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Literal

from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.workload import Accelerator
from zlaunch.frozen import dataclass

MOST_BATCHES: Final = 32
"""Batches whose shapes are compared; the longest is counted."""
MOST_SECONDS: Final = 600
"""How long a program may take for two steps."""

ENDED_EARLY: Final = "it ended before an engine of DeepSpeed took two steps"


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """A program as its first rank would start, and the machine that it is rehearsed for."""

    argv: tuple[str, ...]
    """Its file, or `-m` and a module, and its arguments."""
    world_size: int
    ranks_per_host: int
    gpu_bytes: int
    cublas_bytes: int
    """What torch allocates on the GPU for each handle of cuBLAS."""
    accelerator: Accelerator = "cuda"
    ranks: tuple[int, ...] = (0,)
    """The ranks to rehearse."""
    most_batches: int = MOST_BATCHES
    most_seconds: int = MOST_SECONDS


def result_of(folder: Path, rank: int) -> Path:
    """Return the file with what the rehearsal of a rank found out."""
    return folder / f"result.{rank}.json"


Need = Literal["compares", "reads", "selects", "autocasts", "compiles", "starts"]
"""What a rehearsal cannot do: a comparison counts as false, what is read as zero, and a mask as all true.
Other precisions and compilers are left out, and other programs are not started."""


@dataclass(frozen=True, slots=True)
class ReadValue:
    """Where a program needs what a rehearsal does not have, mostly a value."""

    place: str
    """File and line."""
    code: str
    """The line, or the other program that it starts."""
    kind: Need
    """What it does with it."""


@dataclass(frozen=True, slots=True)
class Batches:
    """The shapes of the longest batch that a program read."""

    read: int
    """Batches that were compared."""
    shapes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class EngineSummary:
    """An engine of a program."""

    model: str
    """The class of its model."""
    parameters: int
    trainable: int
    steps: int
    """Optimizer steps that it took."""


@dataclass(frozen=True, slots=True)
class RehearsedProgram:
    """What the rehearsal of a program found out; without a forecast, why there is none."""

    forecast: Forecast | None = None
    engines: tuple[EngineSummary, ...] = ()
    batches: Batches | None = None
    values: tuple[ReadValue, ...] = ()
    """Where it needs values."""
    ds_config: Mapping[str, Any] = field(default_factory=dict)
    """That of the engine that trains, as the engine got it."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """The config.json of the model that trains, if it is one of transformers."""
    uncounted: Mapping[str, str] = field(default_factory=dict)
    """What of it took more memory than is counted, and why."""
    made: tuple[str, ...] = ()
    """Directories that it made, which are empty."""
    accumulated: int = 1
    """Micro-batches of a step; at most two of them were rehearsed."""
    error: str | None = None
    """The error that ended it."""
    exited: bool = False
    """Whether it exited with a status instead of an exception: what it printed may tell more."""
    place: str | None = None
    """Where in the program that was: file and line."""
    is_own_error: bool = False
    """Whether it may have ended so without a rehearsal, too."""
    is_refusal: bool = False
    """Whether DeepSpeed's engine raised it, because the job cannot work."""
