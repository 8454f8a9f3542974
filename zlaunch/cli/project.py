"""What a directory has that a job needs: training scripts, ds_configs and GPUs. Nothing is run or changed."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from zlaunch.config.find_configs import find_configs
from zlaunch.errors import ZlaunchError
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.probe import probe_machine
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.script_reader import read_script

SCRIPT_FOLDERS = (".", "scripts", "src", "examples", "train", "training")
MOST_SCRIPT_BYTES = 1 << 20

_PACKAGES = frozenset({"deepspeed", "accelerate", "transformers", "trl"})
"""A script that may train imports one of these."""
_NOT_TRAINING = re.compile(r"(test_.*|.*_test|setup|conftest|__init__|eval.*|infer.*|predict.*)\.py")
_TRAINING = re.compile(r"train|tune|sft|dpo|run_")


@dataclass(frozen=True)
class Project:
    """What was found in a directory; paths are relative to it."""

    scripts: tuple[Path, ...]
    """Scripts that train with the Trainer, accelerate or DeepSpeed, the most likely first."""
    ds_configs: tuple[Path, ...]
    num_gpus: int


def look_around(directory: Path) -> Project:
    """Find what a directory has."""
    scripts: set[Path] = set()
    for folder in SCRIPT_FOLDERS:
        scripts.update(_scripts(directory / folder))
    ordered = sorted(
        (file.relative_to(directory) for file in scripts),
        key=lambda file: (not _TRAINING.search(file.name), len(file.parts), file),
    )
    return Project(tuple(ordered), tuple(find_configs(directory)), _num_gpus())


def _num_gpus() -> int:
    try:
        return len(probe_machine(os.environ, inspect_python(None)).gpus)
    except ZlaunchError:  # a driver that gives no answer
        return 0


def _scripts(folder: Path) -> Iterator[Path]:
    for file in folder.glob("*.py"):
        if _NOT_TRAINING.fullmatch(file.name) or not file.is_file():
            continue
        script = script_of(file) if file.stat().st_size <= MOST_SCRIPT_BYTES else None
        if script is not None and not _PACKAGES.isdisjoint(script.imported):
            yield file


def script_of(file: Path) -> Script | None:
    """Read a script that can train with DeepSpeed; None for any other file."""
    try:
        script = read_script(file)
    except ZlaunchError:
        return None
    return None if script.interface is ConfigInterface.NONE else script
