"""What is asked about a machine: JSON on the command line of the program on a host."""

import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from zlaunch.frozen import dataclass
from zlaunch.json_lines import plain

FOR_SLOTS = ("hardware",)
FOR_TRAINING = ("hardware", "cuda", "free", "files", "op_cache", "ports", "network")
FOR_DOCTOR = (
    *("hardware", "cuda", "links", "compilers", "ops", "free", "files", "network", "own_addresses", "hub"),
)
"""Topics of a command: the Python of the ranks and the connection are always told."""


@dataclass(frozen=True)
class Question:
    """What to find out."""

    topics: tuple[str, ...] = FOR_TRAINING
    """Fields of `MachineFacts`."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables of this machine that the ranks there will get."""
    python: Path | None = None
    """The interpreter of the ranks; None for the one that runs zlaunch."""
    needed: tuple[str, ...] = ()
    """Packages without which nothing can start."""
    packages: tuple[str, ...] = ()
    """Other packages to look up."""
    paths: tuple[Path, ...] = ()
    """Whether they exist, and the free space of their file systems."""
    identified: tuple[Path, ...] = ()
    """Whether they exist, and are the same as on other hosts."""
    compared: tuple[Path, ...] = ()
    """Files that must have the same bytes everywhere."""
    ops: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Accelerator → native ops that the job needs there."""
    debug_port: int | None = None

    def to_json(self) -> str:
        """Write the question as one line of ASCII."""
        return json.dumps(plain(self))


def read_question(text: str) -> Question:
    """Read what `to_json` wrote."""
    given: dict[str, Any] = json.loads(text)
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    paths = {name: tuple(map(Path, given[name])) for name in ("paths", "identified", "compared")}
    python = None if given["python"] is None else Path(given["python"])
    ops = {accelerator: tuple(names) for accelerator, names in given["ops"].items()}
    return Question(**{**given, **lists, **paths, "python": python, "ops": ops})
