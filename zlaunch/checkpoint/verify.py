"""Verify a checkpoint: files that are missing, damaged or of different saves, and sizes that disagree."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from zlaunch.checkpoint.archive import Archive, BadArchive, Unknown, read_pickle
from zlaunch.checkpoint.find import (
    LATEST,
    LATEST_UNIVERSAL,
    TRAINER_STATE,
    CheckpointFolder,
    SavedBy,
    latest_tag,
    trainer_step,
)
from zlaunch.checkpoint.safetensors import DAMAGED, IncompleteHeader, read_header
from zlaunch.checkpoint.states import OFFLOADED, EngineFiles, ModelFile, OptimFile, Shapes, engine_files
from zlaunch.errors import Finding, Refused
from zlaunch.files import typed
from zlaunch.units import plural

Key = TypeVar("Key", bound=Hashable)
State = TypeVar("State", ModelFile, OptimFile)

SCHEDULER = "scheduler.pt"

MOST_NAMES = 4
"""Maximum number of ranks or files named in one problem."""


@dataclass(frozen=True)
class Problem:
    """Why a checkpoint cannot be loaded, or not completely."""

    file: Path
    message: str


def require_engine(checkpoint: CheckpointFolder) -> None:
    """Raise Refused if the engine's files of a checkpoint have a problem; others do not count."""
    engine = checkpoint.engine
    if problems := [one for one in verify(checkpoint) if engine is None or one.file.is_relative_to(engine)]:
        raise Refused(
            [Finding("bad-checkpoint", one.message, where=one.file.name) for one in problems],
            f"`zlaunch checkpoint verify {typed(checkpoint.folder)}` lists all problems",
        )


def verify(checkpoint: CheckpointFolder, complete: bool = False) -> list[Problem]:
    """Find all problems; with `complete`, read every byte and compare the checksums."""
    problems = list(_verified(checkpoint, complete))
    for file in _torch_files(checkpoint) if complete else ():
        problems += _damage(file, complete=True)
    return list(dict.fromkeys(problems))


def _verified(checkpoint: CheckpointFolder, complete: bool) -> Iterator[Problem]:
    match checkpoint.saved_by:
        case SavedBy.TRAINER:
            yield from _trainer(checkpoint)
        case SavedBy.UNIVERSAL:
            yield from _universal(checkpoint, complete)
        case SavedBy.DCP:
            yield from _dcp(checkpoint)
    yield from _partial_files(checkpoint)
    yield from _weights(checkpoint.folder)
    if checkpoint.engine is not None and checkpoint.saved_by is not SavedBy.UNIVERSAL:
        if checkpoint.saved_by is not SavedBy.ACCELERATE:
            yield from _latest(checkpoint, LATEST)
        files = engine_files(checkpoint.engine)
        if files is None:
            yield Problem(checkpoint.engine, "it has no files of DeepSpeed's engine")
        else:
            yield from _engine(checkpoint, files)


def _latest(checkpoint: CheckpointFolder, name: str) -> Iterator[Problem]:
    base = checkpoint.base
    if base is None:
        return
    named = latest_tag(base, name)
    if named is None:
        # A script may name the tag; a Trainer, and a universal checkpoint, are found by this file alone.
        if checkpoint.saved_by is not SavedBy.ENGINE:
            yield Problem(base / name, "it is missing or not text, and DeepSpeed finds the checkpoint by it")
    elif not named or not (base / named).is_dir():
        yield Problem(base / name, f"it names `{named}`, which is not there")


def _partial_files(checkpoint: CheckpointFolder) -> Iterator[Problem]:
    for file in checkpoint.files():
        if file.name.endswith((".tmp", ".partial", ".incomplete")):
            yield Problem(file, "it is left of a save that was interrupted")
        elif file.suffix in (".pt", ".pth", ".bin", ".safetensors") and not file.stat().st_size:
            yield Problem(file, "it is empty")


# DeepSpeed's engine


@dataclass(frozen=True)
class _Save:
    """The files of one save that can be read."""

    files: EngineFiles
    models: Mapping[tuple[int | None, int], ModelFile]
    shards: Mapping[tuple[int, int], OptimFile]

    @property
    def is_whole(self) -> bool:
        """Whether all files could be read."""
        return len(self.models) == len(self.files.model) and len(self.shards) == len(self.files.optim)

    def model_of(self, dp: int, mp: int) -> ModelFile | None:
        """Find the model file that describes the parameters of a rank."""
        return self.models.get((dp, mp)) or self.models.get((None, mp))


def _engine(checkpoint: CheckpointFolder, files: EngineFiles) -> Iterator[Problem]:
    models, bad_models = _opened(files.model, ModelFile)
    shards, bad_shards = _opened(files.optim, OptimFile)
    yield from (*bad_models, *bad_shards)
    for file in files.other:
        yield from _damage(file)
    save = _Save(files, models, shards)
    yield from _missing_models(save)
    yield from _missing_experts(save)
    yield from _missing_shards(save)
    yield from _different_saves(checkpoint, save)
    if checkpoint.saved_by is SavedBy.TRAINER:
        yield from _scheduler(checkpoint, save)
    if save.is_whole and not files.other:
        yield from _sizes(save)
        yield from _sizes_together(save)


def _opened(
    files: "Mapping[Key, Path]", read: "Callable[[Path], State]"
) -> "tuple[dict[Key, State], list[Problem]]":
    """Open the files that are not damaged, each once."""
    opened: dict[Key, State] = {}
    problems = []
    for key, file in files.items():
        try:
            state = read(file)
            damage = state.archive.problem()
        except (BadArchive, OSError) as error:
            damage = _unreadable(error)
        if damage is None:
            opened[key] = state
        else:
            problems.append(Problem(file, damage))
    return opened, problems


def _damage(file: Path, complete: bool = False) -> list[Problem]:
    try:
        damage = Archive(file).problem(complete)
    except (BadArchive, OSError) as error:
        damage = _unreadable(error)
    return [] if damage is None else [Problem(file, damage)]


def _unreadable(error: BadArchive | OSError) -> str:
    return f"it cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)


def _missing_models(save: _Save) -> Iterator[Problem]:
    """Stage 3 writes a model file in each rank, the other stages one for each rank of model parallelism."""
    files = save.files
    if not files.model:
        yield Problem(files.folder, "the model is missing: there is no `*_model_states.pt`")
    present = {mp for _, mp in files.model}
    parallel = max((one.model_ranks or 0 for one in save.models.values()), default=0)
    if len(present) < parallel and not files.other:  # a pipeline writes a file for each layer
        said = f"the model has {len(present)} of {parallel} parts of model parallelism"
        yield Problem(files.folder, said)
    if not any(dp is not None for dp, _ in files.model):
        return
    known = [*(one.ranks for one in save.models.values()), *(one.ranks for one in save.shards.values())]
    ranks = max((one for one in known if one is not None), default=0)
    for mp in sorted({mp for _, mp in files.model}):
        missing = [dp for dp in range(ranks) if (dp, mp) not in files.model]
        if missing:
            name = f"zero_pp_rank_{missing[0]}_mp_rank_{mp:02}_model_states.pt"
            yield Problem(files.folder / name, f"the model of {_ranks(missing)} of {ranks} is missing")


def _missing_experts(save: _Save) -> Iterator[Problem]:
    present = save.files.experts
    counts = next((one.num_experts for one in save.models.values()), []) if present else []
    for layer, count in enumerate(counts):
        missing = [expert for expert in range(count) if (layer, expert) not in present]
        if missing:
            name = f"layer_{layer}_expert_{missing[0]}_mp_rank_00_model_states.pt"
            said = f"{len(missing)} of {plural(count, 'expert')} of a layer are missing"
            yield Problem(save.files.folder / name, said)


def _missing_shards(save: _Save) -> Iterator[Problem]:
    files = save.files
    stage = max((one.stage or 0 for one in save.models.values()), default=0)
    if not files.optim and stage:
        yield Problem(files.folder, f"the optimizer of stage {stage} is missing: no `*_optim_states.pt`")
    ranks = _most_common(one.ranks for one in save.shards.values())
    for mp in () if ranks is None else sorted({mp for _, mp in files.optim}):
        present = {dp: file for (dp, other), file in files.optim.items() if other == mp}
        wanted = set(range(ranks or 0))
        missing, extra = sorted(wanted - present.keys()), sorted(present.keys() - wanted)
        if missing:
            file = _with_rank(next(iter(present.values())), missing[0])
            yield Problem(file, f"the optimizer of {_ranks(missing)} of {ranks} is missing")
        if extra:
            yield Problem(present[extra[0]], f"it is of another save: this one has {ranks} ranks")


def _with_rank(file: Path, rank: int) -> Path:
    head, _, tail = file.name.partition("zero_pp_rank_")
    return file.with_name(f"{head}zero_pp_rank_{rank}_{tail.partition('_')[2]}")


def _different_saves(checkpoint: CheckpointFolder, save: _Save) -> Iterator[Problem]:
    models = {save.files.model[key]: one for key, one in save.models.items()}
    shards = {save.files.optim[key]: one for key, one in save.shards.items()}
    yield from _odd({file: one.step for file, one in models.items()}, "step {}")
    yield from _odd({file: one.ranks for file, one in models.items()}, "{} ranks")
    yield from _odd({file: one.ranks for file, one in shards.items()}, "{} ranks")
    yield from _odd({file: one.stage for file, one in shards.items()}, "stage {}")
    yield from _odd({file: one.optimizer_step for file, one in shards.items()}, "optimizer step {:.0f}")
    step, tag = _most_common(one.step for one in models.values()), checkpoint.tag or ""
    if step is not None and re.fullmatch(r"global_step\d+", tag) and tag != f"global_step{step}":
        yield Problem(save.files.folder, f"its model is of step {step}")
    written = trainer_step(checkpoint.folder)
    if written is not None and checkpoint.named_step not in (None, written):
        yield Problem(checkpoint.folder / TRAINER_STATE, f"it is of step {written}")


def _odd(values: Mapping[Path, object], words: str) -> Iterator[Problem]:
    """Report the files whose value is not that of most of the others."""
    known = {file: value for file, value in values.items() if value is not None}
    usual = _most_common(known.values())
    for file, value in known.items():
        if value != usual:
            said, others = words.format(value), words.format(usual)
            yield Problem(file, f"it is of another save: it has {said}, the others {others}")


def _most_common(values: "Iterable[Key | None]") -> "Key | None":
    counted = Counter(one for one in values if one is not None).most_common(1)
    return counted[0][0] if counted else None


def _sizes(save: _Save) -> Iterator[Problem]:
    """Compare the flat groups of each rank with the parameters of the model."""
    for (dp, mp), shard in save.shards.items():
        model, file = save.model_of(dp, mp), save.files.optim[dp, mp]
        if model is None or not model.shapes or not shard.ranks:
            continue
        try:
            groups = [group.numel for group in shard.groups]
        except BadArchive as error:
            yield Problem(file, str(error))
            continue
        if shard.stage == 3:  # a group may be split by sub_group_size, so the sum counts
            wanted = sum(_partitioned(shapes, shard.ranks) for shapes in model.shapes)
            if model.swaps_optimizer and sum(groups) < wanted:
                yield from _swapped(save, dp, 4 * (wanted - sum(groups)) * (1 + shard.moments))
            elif sum(groups) != wanted:
                yield Problem(
                    file, f"it has {sum(groups)} fp32 parameters, and the model {wanted} in this rank"
                )
        elif len(groups) != len(model.shapes):
            yield Problem(
                file, f"it has {len(groups)} groups of parameters, and the model {len(model.shapes)}"
            )


def _swapped(save: _Save, rank: int, wanted: int) -> Iterator[Problem]:
    """Compare the size of what a rank had on NVMe: fp32 parameters and states, which may be padded."""
    folder = save.files.folder / OFFLOADED / f"rank{rank:02}"
    size = sum(file.stat().st_size for file in folder.glob("*.swp"))
    if size < wanted:
        yield Problem(folder, f"the optimizer on NVMe has {size} of {wanted} bytes in this rank")


def _partitioned(shapes: Shapes, ranks: int) -> int:
    return sum(math.ceil(math.prod(shape) / ranks) for shape in shapes.values())


def _sizes_together(save: _Save) -> Iterator[Problem]:
    """Below stage 3 a group is cut anywhere, after an alignment to twice the number of ranks."""
    for mp in sorted({mp for _, mp in save.shards}):
        mine = [shard for (_, other), shard in sorted(save.shards.items()) if other == mp and shard.stage < 3]
        model, ranks = save.models.get((None, mp)), len(mine)
        if model is None or any(one.ranks != ranks for one in mine):
            continue
        try:
            if any(len(one.groups) != len(model.shapes) for one in mine):
                continue
        except BadArchive:  # `_sizes` says so
            continue
        paddings = (mine[0].paddings if mine else None) or [[] for _ in model.shapes]
        for number, (shapes, padding) in enumerate(zip(model.shapes, paddings, strict=False)):
            wanted = sum(math.prod(shape) for shape in shapes.values()) + sum(padding)
            together, align = sum(one.groups[number].numel for one in mine), 2 * ranks
            if mine and math.ceil(wanted / align) != math.ceil(together / align):
                message = (
                    f"group {number} has {together} fp32 parameters in all ranks, and the model {wanted}"
                )
                yield Problem(save.files.optim[0, mp], message)


# other writers


def _trainer(checkpoint: CheckpointFolder) -> Iterator[Problem]:
    state = checkpoint.folder / TRAINER_STATE
    if not state.is_file():
        yield Problem(state, "it is missing: the save was interrupted")
    elif trainer_step(checkpoint.folder) is None:
        yield Problem(state, "it is damaged, or has no `global_step`")
    has_weights = any(any(checkpoint.folder.glob(name)) for name in ("*.safetensors", "*model*.bin"))
    if checkpoint.engine is None and not has_weights:
        yield Problem(checkpoint.folder, "it has neither a model nor a `global_step` directory of DeepSpeed")
    for name in (SCHEDULER, "optimizer.pt"):
        if (checkpoint.folder / name).is_file():
            yield from _damage(checkpoint.folder / name)


def _scheduler(checkpoint: CheckpointFolder, save: _Save) -> Iterator[Problem]:
    """A Trainer keeps and loads its own scheduler, unless the ds_config has one: then the engine does."""
    file = checkpoint.folder / SCHEDULER
    configs = [model.config for model in save.models.values() if model.config]
    if configs and not any("scheduler" in config for config in configs) and not file.is_file():
        yield Problem(file, "it is missing, and the Trainer loads its scheduler from it")


def _universal(checkpoint: CheckpointFolder, complete: bool) -> Iterator[Problem]:
    folder = checkpoint.folder
    yield from _latest(checkpoint, LATEST_UNIVERSAL)
    parameters = [inner for inner in sorted((folder / "zero").iterdir()) if inner.is_dir()]
    if not parameters:
        yield Problem(folder / "zero", "it has no parameters")
    files = engine_files(folder)
    trained: set[str] = set()
    for file in () if files is None else files.model.values():
        if damage := _damage(file):
            yield from damage
        else:
            trained |= {name for group in ModelFile(file).shapes for name in group}
    for name in sorted(trained - {inner.name for inner in parameters}):
        yield Problem(folder / "zero" / name, "it is missing: the conversion was interrupted")
    states = {file.name for inner in parameters if inner.name in trained for file in inner.glob("*.pt")}
    for inner in parameters:
        yield from _parameter(inner, {"fp32.pt", *(states if inner.name in trained else ())}, complete)


def _parameter(folder: Path, wanted: set[str], complete: bool) -> Iterator[Problem]:
    for name in sorted(wanted):
        if not (folder / name).is_file():
            yield Problem(folder / name, "it is missing: the conversion was interrupted")
        elif not complete:  # otherwise every file is looked at anyway
            yield from _damage(folder / name)


def _dcp(checkpoint: CheckpointFolder) -> Iterator[Problem]:
    """Compare the files with `.metadata`, which torch writes last."""
    file = checkpoint.folder / ".metadata"
    if not file.is_file():
        yield Problem(file, "it is missing: the save was interrupted")
        return
    try:
        ends = dcp_ends(file)
    except BadArchive as error:
        yield Problem(file, str(error))
        return
    for name, end in ends.items():
        shard = checkpoint.folder / name
        if not shard.is_file():
            yield Problem(shard, "it is missing")
        elif shard.stat().st_size < end:
            yield Problem(shard, f"it has {shard.stat().st_size} of at least {end} bytes")


def dcp_ends(file: Path) -> dict[str, int]:
    """Read how long each file of a torch DCP checkpoint has to be, in bytes."""
    metadata = read_pickle(file)
    state = metadata.state if isinstance(metadata, Unknown) else None
    stored = state.get("storage_data") if isinstance(state, dict) else None
    if not isinstance(stored, dict):
        raise BadArchive("it does not say what is stored where")
    ends: dict[str, int] = {}
    for one in stored.values():
        where = one.state if isinstance(one, Unknown) and isinstance(one.state, dict) else {}
        name, offset, length = (where.get(key) for key in ("relative_path", "offset", "length"))
        if isinstance(name, str) and isinstance(offset, int) and isinstance(length, int):
            ends[name] = max(ends.get(name, 0), offset + length)
    return ends


def _weights(folder: Path) -> Iterator[Problem]:
    """Check model files in safetensors, and that an index names files that are there."""
    for index in sorted(folder.glob("*.index.json")):
        try:
            names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            yield Problem(index, "it is damaged")
            continue
        for name in sorted(str(one) for one in names):
            if not (folder / name).is_file():
                yield Problem(folder / name, f"it is missing, and `{index.name}` names it")
    for file in sorted(folder.glob("*.safetensors")):
        if (damage := safetensors_damage(file)) is not None:
            yield Problem(file, damage)
    for file in sorted(folder.glob("pytorch_model*.bin")):
        yield from _damage(file)


def safetensors_damage(file: Path) -> str | None:
    """Compare the length of a file with its header."""
    size = file.stat().st_size
    try:
        begin, tensors = read_header(file)
        wanted = begin + max((one["data_offsets"][1] for one in tensors.values()), default=0)
    except IncompleteHeader:
        return "its header is incomplete"
    except DAMAGED:
        return "its header is damaged"
    return None if size == wanted else f"it has {size} bytes, and its header says {wanted}"


def _torch_files(checkpoint: CheckpointFolder) -> list[Path]:
    return [file for file in checkpoint.files() if file.suffix in (".pt", ".pth", ".bin") and _is_zip(file)]


def _is_zip(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(2) == b"PK"


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:MOST_NAMES])) + (" …" if len(ranks) > MOST_NAMES else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {named}"
