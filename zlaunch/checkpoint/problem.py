"""Why a checkpoint cannot be loaded."""

from pathlib import Path

from zlaunch.frozen import dataclass


@dataclass(frozen=True)
class Problem:
    """Why a checkpoint cannot be loaded, or not completely."""

    file: Path
    message: str
    is_unknown: bool = False
    """Whether the file can be read, but zlaunch does not know what is in it: DeepSpeed may load it."""
    of_model: bool = False
    """Whether it concerns only the model beside an engine's files, without which a training resumes."""
