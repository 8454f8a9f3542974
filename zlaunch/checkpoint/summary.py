"""What a checkpoint contains, in a few values."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from zlaunch.checkpoint.dtypes import FLOATS
from zlaunch.checkpoint.engine_files import EngineFiles, ModelFile, OptimFile, engine_files
from zlaunch.checkpoint.find import CheckpointFolder, SavedBy, trainer_step
from zlaunch.checkpoint.safetensors import DAMAGED, NAMES, read_header
from zlaunch.checkpoint.torch_file import BadArchive
from zlaunch.checkpoint.verify import Problem, verify

State = TypeVar("State")

_OF_DEEPSPEED = "DeepSpeed alone has converted it, which is for one kind of stage"
"""Obstacle of a universal checkpoint; other files without an optimizer have nothing to convert."""

_FLOATS = {NAMES[dtype]: dtype for dtype in FLOATS}


@dataclass(frozen=True)
class Summary:
    """One checkpoint; None for what its files do not tell."""

    checkpoint: CheckpointFolder
    step: int | None
    stage: int | None
    ranks: int | None
    """Ranks of data parallelism."""
    model_ranks: int | None
    """Ranks of tensor and pipeline parallelism."""
    dtype: str | None
    """Type of most tensors of the model."""
    num_parameters: int | None
    has_optimizer: bool
    release: str | None
    """The version of DeepSpeed."""
    offload: str | None
    """Where the optimizer was while it trained: none, cpu or nvme."""
    is_swapped: bool
    """Whether numbers of the optimizer are in files of NVMe."""
    is_deepspeeds_adam: bool
    """Whether the optimizer has what DeepSpeed's Adam needs, and torch's does not save."""
    has_experts: bool
    """Whether the model has DeepSpeed's own MoE layers."""
    fits_all_stages: bool
    """Whether it is a universal one that stages 1, 2 and 3 can load."""
    obstacle: str | None
    """Why it cannot be converted for other ranks and stages, if that is certain."""
    nbytes: int
    problems: tuple[Problem, ...]
    unknown: tuple[Problem, ...] = ()
    """Files of a layout that zlaunch does not know. They can be read, and DeepSpeed may load them."""
    cannot_load: str | None = None
    """Why DeepSpeed cannot load it in any job, if that is certain."""
    settings: frozenset[str] = frozenset()
    """Names of the settings of the optimizer, with which another one may not be able to resume."""
    largest_group: int = 0
    """Most parameters in a group of the optimizer."""
    is_dealt_out: bool | None = None
    """Whether `round_robin_gradients` gave the optimizer another order; None if it would be the same."""

    @property
    def all_ranks(self) -> int | None:
        """Ranks of the job, of data and of model parallelism."""
        return None if self.ranks is None else self.ranks * (self.model_ranks or 1)


def summarize(checkpoint: CheckpointFolder, complete: bool = False) -> Summary:
    """Read and verify a checkpoint; `complete` as for `verify`."""
    model, is_universal = _model(checkpoint), checkpoint.saved_by is SavedBy.UNIVERSAL
    files = None if checkpoint.engine is None else engine_files(checkpoint.engine)
    shard = None if files is None else _first(OptimFile, files.optim.values())
    found = verify(checkpoint, complete)
    return Summary(
        checkpoint,
        _step(checkpoint, model),
        _stage(model, shard),
        ranks=(model and model.ranks) or (shard and shard.ranks) or None,
        model_ranks=None if model is None else model.model_ranks,
        dtype=_dtype(checkpoint, model),
        num_parameters=None if model is None or model.is_of_pipeline else _num_parameters(model),
        has_optimizer=bool(shard) or is_universal or _has_optimizer(checkpoint, model),
        release=None if model is None else model.release,
        offload=None if model is None else model.offload,
        is_swapped=shard is not None and shard.is_swapped,
        is_deepspeeds_adam=shard is not None and shard.is_deepspeeds_adam,
        has_experts=model is not None and bool(model.num_experts),
        fits_all_stages=is_universal and files is not None and files.fits_all_stages,
        obstacle=_obstacle(files, model, shard),
        nbytes=checkpoint.nbytes,
        problems=tuple(one for one in found if not one.is_unknown),
        unknown=tuple(one for one in found if one.is_unknown),
        cannot_load=None if shard is None else shard.cannot_load,
        settings=frozenset() if shard is None else shard.settings,
        largest_group=0 if model is None else max(map(len, model.shapes), default=0),
        is_dealt_out=None if model is None else _is_dealt_out(model, shard),
    )


def _is_dealt_out(model: ModelFile, shard: OptimFile | None) -> bool | None:
    return False if shard is not None and shard.is_of_bf16_optimizer else model.is_round_robin


def _stage(model: ModelFile | None, shard: OptimFile | None) -> int | None:
    if shard is None or (shard.is_of_bf16_optimizer and model is not None):
        return None if model is None else model.stage
    return shard.stage


def _obstacle(files: EngineFiles | None, model: ModelFile | None, shard: OptimFile | None) -> str | None:
    if files is None or model is None or shard is None:
        return _OF_DEEPSPEED
    return files.obstacle(model, shard)


def _first(read: "Callable[[Path], State]", files: Iterable[Path]) -> "State | None":
    for file in files:
        try:
            return read(file)
        except (BadArchive, OSError):
            continue
    return None


def _has_optimizer(checkpoint: CheckpointFolder, model: ModelFile | None) -> bool:
    if model is not None:  # stage 0 keeps it in the file of the model
        return model.has_optimizer
    return any((checkpoint.folder / name).is_file() for name in ("optimizer.pt", "optimizer.bin"))


def _num_parameters(model: ModelFile) -> int | None:
    """Count parameters; those that share their numbers count once."""
    if model.is_partitioned:
        return sum(math.prod(shape) for group in (*model.shapes, model.frozen) for shape in group.values())
    once = {
        (one.storage.key, one.offset): one for name, one in model.module.items() if name not in model.buffers
    }
    return sum(one.numel for one in once.values()) or None


def age(checkpoint: CheckpointFolder) -> tuple[int, bool, float]:
    """Sort key: the steps taken, which a name may not tell; what was saved goes before its conversion."""
    step = _step(checkpoint, _model(checkpoint)) or 0
    return step, checkpoint.saved_by is not SavedBy.UNIVERSAL, checkpoint.written


def _step(checkpoint: CheckpointFolder, model: ModelFile | None) -> int | None:
    step = trainer_step(checkpoint.folder)
    if step is None and model is not None:
        step = model.step
    return checkpoint.named_step if step is None else step


def trained_type(checkpoint: CheckpointFolder) -> str | None:
    """Read the type of most parameters while the model trained."""
    return _dtype(checkpoint, _model(checkpoint))


def _model(checkpoint: CheckpointFolder) -> ModelFile | None:
    files = None if checkpoint.engine is None else engine_files(checkpoint.engine)
    return None if files is None else _first(ModelFile, files.model.values())


def _dtype(checkpoint: CheckpointFolder, model: ModelFile | None) -> str | None:
    if model is not None:
        types = Counter(one.dtype for name, one in model.module.items() if name not in model.buffers)
        return types.most_common(1)[0][0] if types else None
    return next(filter(None, map(safetensors_dtype, sorted(checkpoint.folder.glob("*.safetensors")))), None)


def safetensors_dtype(file: Path) -> str | None:
    """Read the type of most tensors of a file; None if it is damaged."""
    try:
        _, tensors = read_header(file)
        types = Counter(one["dtype"] for one in tensors.values())
    except (OSError, *DAMAGED):
        return None
    return _FLOATS.get(types.most_common(1)[0][0]) if types else None
