"""What a launcher runs in each rank."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Target:
    """A Python script, a Python module or any program, with its arguments."""

    name: str
    args: tuple[str, ...]
    kind: Literal["script", "module", "program"] = "script"
    wants_local_rank: bool = False
    """Whether it reads its local rank from the argument `--local_rank`."""
    hostfile: str | None = None
    """The hostfile, for launchers that reach other hosts themselves."""
