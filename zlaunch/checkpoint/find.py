"""Find checkpoints, and recognize what wrote them."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from zlaunch.checkpoint.engine_files import EngineFiles, engine_files
from zlaunch.errors import InputMissing
from zlaunch.files import read_regular, why_not_directory
from zlaunch.frozen import dataclass

LATEST = "latest"
"""The file in which the engine names the newest tag."""

LATEST_UNIVERSAL = "latest_universal"

TRAINER_STATE = "trainer_state.json"

DCP_METADATA = ".metadata"
"""The file in which torch.distributed.checkpoint says what is stored where."""

ACCELERATE_TAG = "pytorch_model"
"""The tag that accelerate's `save_state` gives an engine."""

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin", "adapter_model*.bin")
"""Files of a model, whole or in parts, and of an adapter."""

_OF_A_MODEL = re.compile("model|weights|consolidated")
"""In the name of a file of a model; other files of safetensors may be anything."""

_TRAINER_NAME = re.compile(r"checkpoint-(\d+)")
_STEP = re.compile(r"(?:global_step|checkpoint-|step[_-]?|epoch[_-]?)(\d+)")
_LONGEST_NAME = 255
"""What is longer names no directory, and no path can have it."""

_LEVELS = 2
"""How many levels below a directory are searched: `outputs/run-3/checkpoint-100`."""


class SavedBy(Enum):
    """What wrote a checkpoint."""

    TRAINER = "Trainer"
    ENGINE = "DeepSpeed"
    ACCELERATE = "accelerate"
    UNIVERSAL = "universal"
    DCP = "torch DCP"
    WEIGHTS = "weights"
    """`save_pretrained`: a model, without the state of a training."""


@dataclass(frozen=True)
class CheckpointFolder:
    """One checkpoint: the state of a training at one step."""

    folder: Path
    """What a user names: `checkpoint-500`, or the directory of a tag."""
    saved_by: SavedBy
    engine: Path | None = None
    """The directory with the files of DeepSpeed's engine."""
    named_step: int | None = None
    """The step in its name."""

    @property
    def base(self) -> Path | None:
        """The directory that `load_checkpoint` is given, which has the file `latest`."""
        return None if self.engine is None else self.engine.parent

    @property
    def tag(self) -> str | None:
        """The name that the engine loads it by."""
        return None if self.engine is None else self.engine.name

    def engine_files(self) -> EngineFiles | None:
        """The files of DeepSpeed's engine; None if there are none."""
        return None if self.engine is None else engine_files(self.engine)

    def files(self) -> list[Path]:
        """All files of the checkpoint; beside a model there may be others of the training."""
        pattern = "*" if self.saved_by is SavedBy.WEIGHTS else "**/*"
        return [file for file in sorted(self.folder.glob(pattern)) if file.is_file()]

    @property
    def nbytes(self) -> int:
        """Size on disk; a file with two names counts once."""
        sizes = {}
        for file in self.files():
            with contextlib.suppress(OSError):
                status = file.stat()
                sizes[status.st_dev, status.st_ino] = status.st_size
        return sum(sizes.values())

    @property
    def written(self) -> float:
        """When its files were last written, in seconds since 1970; a conversion of it does not count."""
        files = list(self.folder.glob("*"))
        if self.engine is not None:
            files += self.engine.glob("*")
        files = [file for file in files if file.name != LATEST_UNIVERSAL and file.is_file()]
        return max(map(_changed, files), default=0.0)


def _changed(file: Path) -> float:
    with contextlib.suppress(OSError):  # a running training deletes its oldest checkpoints
        return file.stat().st_mtime
    return 0.0


def find(folder: Path) -> list[CheckpointFolder]:
    """Find the checkpoints at a path and two levels below it, those of earlier steps first."""
    checkpoints = sorted(
        _below(folder, _LEVELS),
        key=lambda checkpoint: (str(checkpoint.folder.parent), checkpoint.named_step or 0),
    )
    return list(dict.fromkeys(checkpoints))


def checkpoints_at(folder: Path) -> list[CheckpointFolder]:
    """Find them as `find` does. Raise InputMissing if there are none."""
    if checkpoints := find(folder):
        return checkpoints
    if (why := why_not_directory(folder)) is not None:
        raise InputMissing(why)
    raise InputMissing(f"there is no checkpoint in `{folder}`", "name the directory that was saved to")


def recognize(folder: Path) -> CheckpointFolder | None:
    """Recognize the checkpoint that a directory is; of an engine's directory the one that `latest` names."""
    if (checkpoint := _at(folder)) is not None:
        return checkpoint
    tags, latest = {checkpoint.tag: checkpoint for checkpoint in _tags(folder)}, latest_tag(folder)
    if latest in tags:
        return tags[latest]
    return next(iter(tags.values())) if len(tags) == 1 else None


def checkpoint_at(folder: Path) -> CheckpointFolder:
    """Recognize the checkpoint at a path, or the only one below it. Raise InputMissing if it is not one."""
    if (checkpoint := recognize(folder)) is not None:
        return checkpoint
    checkpoints = checkpoints_at(folder)
    if len(checkpoints) == 1:
        return checkpoints[0]
    names = ", ".join(str(inner.folder) for inner in checkpoints[-3:])
    raise InputMissing(
        f"there are {len(checkpoints)} checkpoints in `{folder}`", f"name one, such as {names}"
    )


def weight_files(folder: Path) -> list[Path]:
    """List the files in a directory that have weights of a model or an adapter."""
    files: list[Path] = []
    for pattern in _WEIGHT_FILES:
        files += sorted(folder.glob(pattern))
    return files


def checkpoint_parent(saved: Path) -> Path:
    """Return the directory with all checkpoints of a training, given the one of its last save."""
    if _TRAINER_NAME.fullmatch(saved.name):
        return saved.parent
    checkpoint = _at(saved)  # an engine may save beside the model
    if checkpoint is None or checkpoint.saved_by is SavedBy.WEIGHTS:
        return saved
    return saved.parent


def latest_tag(folder: Path, name: str = LATEST) -> str | None:
    """Read which tag is the newest; None if there is no such file."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        named = read_regular(folder / name).decode().strip()
        if len(named) <= _LONGEST_NAME:
            return named
    return None


def trainer_step(folder: Path) -> int | None:
    """Read how many steps a Trainer had taken; None if its state cannot be read."""
    step = trainer_state(folder).get("global_step")
    return step if isinstance(step, int) else None


def trainer_state(folder: Path) -> Mapping[str, Any]:
    """Read what a Trainer has written about its course; nothing if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        state = json.loads(read_regular(folder / TRAINER_STATE))
        return state if isinstance(state, dict) else {}
    return {}


def _below(folder: Path, levels: int) -> Iterator[CheckpointFolder]:
    if (checkpoint := _at(folder)) is not None:
        yield checkpoint
        if checkpoint.saved_by is not SavedBy.WEIGHTS:
            return
    tags = list(_tags(folder))
    yield from tags
    others = set(_folders(folder)) - {tag.folder for tag in tags}
    if levels:
        for inner in sorted(others):
            yield from _below(inner, levels - 1)


def _at(folder: Path) -> CheckpointFolder | None:
    checkpoint = _by_files(folder) if folder.is_dir() else None
    if checkpoint is None:
        return None
    # At its end a Trainer writes its state and the model into the directory of its checkpoints, too. At stage
    # 3 the model may be all that an engine saves.
    inner = [below.saved_by for below in map(_by_files, _folders(folder)) if below is not None]
    inner = [writer for writer in inner if writer is not SavedBy.WEIGHTS]  # such as adapters by name
    if SavedBy.TRAINER not in inner and (not inner or checkpoint.engine is not None):
        return checkpoint
    return CheckpointFolder(folder, SavedBy.WEIGHTS) if _has_weights(folder) else None


def _by_files(folder: Path) -> CheckpointFolder | None:
    engine: Path | None = None
    if (folder / TRAINER_STATE).is_file():
        saved_by, engine = SavedBy.TRAINER, _engine_in(folder)
    elif (inner := folder / ACCELERATE_TAG).is_dir() or any(folder.glob("random_states_*.pkl")):
        saved_by = SavedBy.ACCELERATE
        if engine_files(inner) is not None:
            engine = inner
    elif _TRAINER_NAME.fullmatch(folder.name):
        saved_by, engine = SavedBy.TRAINER, _engine_in(folder)
    elif engine_files(folder) is not None:
        saved_by, engine = _saved_by(folder), folder
    elif (folder / DCP_METADATA).is_file() or any(folder.glob("*.distcp")):
        saved_by = SavedBy.DCP
    elif _has_weights(folder):
        saved_by = SavedBy.WEIGHTS
    else:
        return None
    if engine is not None and _saved_by(engine) is SavedBy.UNIVERSAL:  # what surrounds it is a copy
        return CheckpointFolder(engine, SavedBy.UNIVERSAL, engine, step_in(engine.name))
    return CheckpointFolder(folder, saved_by, engine, step_in(folder.name))


def _has_weights(folder: Path) -> bool:
    named = (file.name for file in weight_files(folder) if _OF_A_MODEL.search(file.name))
    return any((folder / name).is_file() for name in (*WEIGHTS, *named))


def _saved_by(folder: Path) -> SavedBy:
    return SavedBy.UNIVERSAL if (folder / "zero").is_dir() else SavedBy.ENGINE


def _tags(folder: Path) -> Iterator[CheckpointFolder]:
    """Find the tags of an engine: directories with its files, or the one that `latest` names."""
    named = {latest_tag(folder), latest_tag(folder, LATEST_UNIVERSAL)} - {None}
    for inner in sorted(_folders(folder), key=lambda tag: (step_in(tag.name) or 0, tag.name)):
        if engine_files(inner) is not None or inner.name in named:
            yield CheckpointFolder(inner, _saved_by(inner), inner, step_in(inner.name))


def _engine_in(folder: Path) -> Path | None:
    """Find the engine's part of a Trainer's checkpoint: what `latest` names, or the only one."""
    named = latest_tag(folder)
    if named and (folder / named).is_dir():
        return folder / named
    tags = [inner for inner in _folders(folder) if inner.name.startswith("global_step")]
    return tags[-1] if tags else None


def _folders(folder: Path) -> list[Path]:
    """List the directories in one, without hidden ones, which are being written or deleted."""
    with contextlib.suppress(OSError):
        return sorted(inner for inner in folder.iterdir() if inner.name[0] != "." and inner.is_dir())
    return []


def step_in(name: str) -> int | None:
    """Read the step in the name of a checkpoint."""
    named = _STEP.fullmatch(name)
    return None if named is None else int(named[1])
