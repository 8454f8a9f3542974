"""What a checkpoint contains, in a few values."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import TypeVar

from zlaunch.checkpoint.dtypes import FLOATS
from zlaunch.checkpoint.engine_files import ModelFile, OptimFile
from zlaunch.checkpoint.find import LATEST, CheckpointFolder, SavedBy, latest_tag, trainer_step
from zlaunch.checkpoint.problem import Problem
from zlaunch.checkpoint.safetensors import DAMAGED, NAMES, read_header
from zlaunch.checkpoint.torch_file import BadArchive
from zlaunch.checkpoint.verify import verify
from zlaunch.files import typed
from zlaunch.frozen import dataclass

State = TypeVar("State")

_OF_DEEPSPEED = "DeepSpeed alone has converted it, which is for one kind of stage"
"""Obstacle of a universal checkpoint; other files without an optimizer have nothing to convert."""

_FLOATS = {NAMES[dtype]: dtype for dtype in FLOATS}


@dataclass(frozen=True)
class Summary:
    """One checkpoint; None for what its files do not tell."""

    checkpoint: CheckpointFolder
    nbytes: int
    problems: tuple[Problem, ...]
    unknown: tuple[Problem, ...]
    """Files of a layout that zlaunch does not know. They can be read, and DeepSpeed may load them."""
    step: int | None
    stage: int | None
    dtype: str | None
    """The type in which the model trained, or of most of its tensors."""
    has_optimizer: bool
    fits_all_stages: bool
    """Whether it is a universal one that stages 1, 2 and 3 can load."""
    is_bf16: bool | None = None
    """Whether the optimizer has the names of files of bf16; None if it has no names for it."""
    ranks: int | None = None
    """Ranks of data parallelism."""
    model_ranks: int | None = None
    """Ranks of tensor and pipeline parallelism."""
    num_parameters: int | None = None
    release: str | None = None
    """The version of DeepSpeed."""
    offload: str | None = None
    """Where the optimizer was while it trained: none, cpu or nvme."""
    has_writer: bool = False
    """Whether a checkpoint writer saved it, with which torch 2.6 and newer does not load it."""
    has_experts: bool = False
    """Whether the model has DeepSpeed's own MoE layers."""
    largest_group: int = 0
    """Most parameters in a group of the optimizer."""
    is_dealt_out: bool | None = None
    """Whether `round_robin_gradients` gave the optimizer another order; None if it would be the same."""
    is_swapped: bool = False
    """Whether numbers of the optimizer are in files of NVMe."""
    is_deepspeeds_adam: bool = False
    """Whether the optimizer has what DeepSpeed's Adam needs, and torch's does not save."""
    settings: frozenset[str] = frozenset()
    """Names of the settings of the optimizer, with which another one may not be able to resume."""
    cannot_load: str | None = None
    """Why DeepSpeed cannot load it in any job, if that is certain."""
    obstacle: str | None = _OF_DEEPSPEED
    """Why it cannot be converted for other ranks and stages, if that is certain."""

    @property
    def obstructions(self) -> tuple[Problem, ...]:
        """The problems that keep a training from resuming: not of the model beside an engine's files."""
        return tuple(problem for problem in self.problems if not problem.of_model)

    @property
    def all_ranks(self) -> int | None:
        """Ranks of the job, of data and of model parallelism."""
        return None if self.ranks is None else self.ranks * (self.model_ranks or 1)


def summarize(checkpoint: CheckpointFolder, complete: bool = False) -> Summary:
    """Read and verify a checkpoint; `complete` as for `verify`."""
    files, model, shard = checkpoint.engine_files(), _model_file(checkpoint), None
    if files is not None:
        shard = _first(OptimFile, files.optim.values())
    problems, is_universal = verify(checkpoint, complete), checkpoint.saved_by is SavedBy.UNIVERSAL
    summary = Summary(
        checkpoint,
        nbytes=checkpoint.nbytes,
        problems=tuple(problem for problem in problems if not problem.is_unknown),
        unknown=tuple(problem for problem in problems if problem.is_unknown),
        step=_step_of(checkpoint, model),
        stage=_stage_of(model, shard),
        dtype=_dtype(checkpoint, model),
        has_optimizer=shard is not None or is_universal or _has_optimizer(checkpoint, model),
        fits_all_stages=is_universal and files is not None and files.fits_all_stages,
        is_bf16=None if files is None else files.is_bf16,
    )
    if shard is not None:
        summary = replace(
            summary,
            ranks=shard.ranks,
            is_swapped=shard.is_swapped,
            is_deepspeeds_adam=shard.is_deepspeeds_adam,
            settings=shard.settings,
            cannot_load=shard.cannot_load,
        )
    if model is not None:
        summary = replace(
            summary,
            ranks=model.ranks or summary.ranks,
            model_ranks=model.model_ranks,
            num_parameters=None if model.is_of_pipeline else _num_parameters(model),
            release=model.release,
            offload=model.offload,
            has_writer=model.has_writer,
            has_experts=bool(model.num_experts),
            largest_group=max(map(len, model.shapes), default=0),
            is_dealt_out=model.is_round_robin,
        )
    if files is None or model is None or shard is None:
        return summary
    if shard.is_of_bf16_optimizer:
        summary = replace(summary, is_dealt_out=False)
    return replace(summary, obstacle=files.obstacle(model, shard))


def _stage_of(model: ModelFile | None, shard: OptimFile | None) -> int | None:
    if shard is not None and (model is None or not shard.is_of_bf16_optimizer):
        return shard.stage
    return None if model is None else model.stage


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
    if model.is_partitioned:
        shapes = chain.from_iterable(group.values() for group in (*model.shapes, model.frozen))
        return sum(map(math.prod, shapes))
    parameters = [tensor for name, tensor in model.module.items() if name not in model.buffers]
    once = {(tensor.storage.key, tensor.offset): tensor.numel for tensor in parameters}
    return sum(once.values()) or None


def age(checkpoint: CheckpointFolder) -> tuple[int, bool, float]:
    """Sort key: the steps taken, which a name may not tell; what was saved goes before its conversion."""
    step = _step_of(checkpoint, _model_file(checkpoint)) or 0
    return step, checkpoint.saved_by is not SavedBy.UNIVERSAL, checkpoint.written


def _step_of(checkpoint: CheckpointFolder, model: ModelFile | None) -> int | None:
    step = trainer_step(checkpoint.folder)
    if step is None and model is not None:
        step = model.step
    return checkpoint.named_step if step is None else step


def trained_type(checkpoint: CheckpointFolder) -> str | None:
    """Read the type of most parameters while the model trained."""
    return _dtype(checkpoint, _model_file(checkpoint))


def _model_file(checkpoint: CheckpointFolder) -> ModelFile | None:
    files = checkpoint.engine_files()
    return None if files is None else _first(ModelFile, files.model.values())


def _dtype(checkpoint: CheckpointFolder, model: ModelFile | None) -> str | None:
    if model is not None:
        return model.dtype
    return next(filter(None, map(safetensors_dtype, sorted(checkpoint.folder.glob("*.safetensors")))), None)


def safetensors_dtype(file: Path) -> str | None:
    """Read the type of most tensors of a file; None if it is damaged."""
    try:
        _, tensors = read_header(file)
        types = Counter(tensor["dtype"] for tensor in tensors.values())
    except (OSError, *DAMAGED):
        return None
    return _FLOATS.get(types.most_common(1)[0][0]) if types else None


def wrong_latest(checkpoints: Sequence[Summary]) -> Iterator[Problem]:
    """Find files `latest` by which an engine does not find the newest complete tag beside them, or none.

    The engine's rank 0 writes it without waiting for the others, so it may name a save that was interrupted.
    """
    tags = [saved for saved in checkpoints if saved.checkpoint.saved_by is SavedBy.ENGINE]
    for base, beside in groupby(tags, key=lambda saved: saved.checkpoint.folder.parent):
        asked = {saved.checkpoint.folder.name: saved for saved in beside}
        complete = {name: saved for name, saved in asked.items() if not saved.obstructions}
        named, file = latest_tag(base), base / LATEST
        if named in complete or not file.exists():
            continue
        if named and named not in asked and (base / named).is_dir():
            continue
        message = f"{_what_is_wrong(named)}, and DeepSpeed would load that"
        if complete:
            newest = max(complete.values(), key=lambda saved: age(saved.checkpoint))
            message += f"; `echo {newest.checkpoint.tag} > {typed(file)}` repairs it"
        yield Problem(file, message)


def _what_is_wrong(named: str | None) -> str:
    if named is None:
        return "it is not text"
    return f"it names `{named}`, which is not complete" if named else "it is empty"
