"""Verify a checkpoint: files that are missing, damaged or from different saves, and sizes that disagree."""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

from zlaunch.checkpoint.engine_files import EngineFiles, ModelFile, OptimFile, engine_files
from zlaunch.checkpoint.find import (
    DCP_METADATA,
    LATEST,
    LATEST_UNIVERSAL,
    TRAINER_STATE,
    CheckpointFolder,
    SavedBy,
    latest_tag,
    trainer_step,
    weight_files,
)
from zlaunch.checkpoint.flat_groups import Shapes
from zlaunch.checkpoint.model_files import model_problems, text_problems, unreadable
from zlaunch.checkpoint.problem import Problem
from zlaunch.checkpoint.same_numbers import damaged_numbers
from zlaunch.checkpoint.swap_files import partition_numel, swap_files
from zlaunch.checkpoint.torch_file import Archive, BadArchive
from zlaunch.errors import Finding, Refused
from zlaunch.files import open_regular, read_from, typed
from zlaunch.frozen import dataclass
from zlaunch.units import plural

Key = TypeVar("Key", bound=Hashable)
State = TypeVar("State", ModelFile, OptimFile)

SCHEDULER = "scheduler.pt"

_OF_TRAINER = (SCHEDULER, "optimizer.pt", "rng_state*.pth")
_OF_ACCELERATE = ("scheduler*.bin", "optimizer*.bin", "sampler*.bin", "random_states_*.pkl")
"""Files of `torch.save` beside those of the engine."""

_RECOVERY_SCRIPT = "zero_to_fp32.py"

MOST_NAMES = 4
"""Maximum number of ranks or files named in one problem."""


def require_engine(checkpoint: CheckpointFolder) -> None:
    """Raise Refused if the engine's files of a checkpoint have a problem; others do not count."""
    engine = checkpoint.engine
    problems = [problem for problem in verify(checkpoint) if not problem.of_model]
    if engine is not None:
        problems = [problem for problem in problems if problem.file.is_relative_to(engine)]
    if problems:
        raise Refused(
            [Finding("bad-checkpoint", problem.message, where=problem.file.name) for problem in problems],
            f"`zlaunch checkpoint verify {typed(checkpoint.folder)}` lists all problems",
        )


def verify(checkpoint: CheckpointFolder, complete: bool = False) -> list[Problem]:
    """Find all problems; with `complete`, read every byte and compare the checksums."""
    problems = list(_verified(checkpoint, complete))
    for file in checkpoint.files() if complete else ():
        problems += _read_whole(file)
    weights = weight_files(checkpoint.folder)
    of_model = model_problems(checkpoint, _trained_shapes(checkpoint) if weights else {})
    if complete:
        of_model += text_problems(checkpoint)
    if complete and not problems:
        of_model += damaged_numbers(checkpoint)
    if checkpoint.engine is not None:
        of_model = [replace(problem, of_model=True) for problem in of_model]
        problems = [replace(problem, of_model=problem.file in weights) for problem in problems]
    return list(dict.fromkeys((*problems, *of_model)))


def _read_whole(file: Path) -> list[Problem]:
    """Compare checksums, if the file has any; a part of a disk that cannot be read is found anyway."""
    try:
        if file.suffix in (".pt", ".pth", ".bin", ".pkl") and _is_zip(file):
            return _damage(file, complete=True)
        if file.suffix == ".safetensors":
            for _ in read_from(file, 0):
                pass
    except OSError as error:
        return [unreadable(file, error)]
    return []


def _verified(checkpoint: CheckpointFolder, complete: bool) -> Iterator[Problem]:
    match checkpoint.saved_by:
        case SavedBy.TRAINER:
            yield from _trainer(checkpoint)
        case SavedBy.UNIVERSAL:
            yield from _universal(checkpoint, complete)
        case SavedBy.DCP:
            yield _of_dcp(checkpoint.folder / DCP_METADATA)
        case SavedBy.ACCELERATE:
            yield from _missing_engine(checkpoint)
            yield from _structures(checkpoint.folder, _OF_ACCELERATE)
    yield from _partial_files(checkpoint)
    if checkpoint.engine is not None and checkpoint.saved_by is not SavedBy.UNIVERSAL:
        if checkpoint.saved_by is SavedBy.TRAINER:
            yield from _latest(checkpoint, LATEST)
        files = engine_files(checkpoint.engine)
        if files is None:
            yield Problem(checkpoint.engine, "it has no files of DeepSpeed's engine")
        else:
            yield from _engine_problems(checkpoint, files)


def _trained_shapes(checkpoint: CheckpointFolder) -> Shapes:
    """Read what an engine has trained; empty if its files say nothing, or only together with others."""
    files = checkpoint.engine_files()
    is_universal = checkpoint.saved_by is SavedBy.UNIVERSAL
    if files is None or is_universal or files.other or len({mp for _, mp in files.model}) > 1:
        return {}
    try:
        return dict(chain.from_iterable(group.items() for group in files.first_model.shapes))
    except (BadArchive, OSError, StopIteration):
        return {}


def _of_dcp(metadata: Path) -> Problem:
    """Say what torch.distributed.checkpoint saved: zlaunch only knows whether the save has ended."""
    if not metadata.is_file():  # which torch writes last
        return Problem(metadata, "it is missing: the save was interrupted")
    message = (
        "zlaunch does not read torch DCP; `python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
        "DIR FILE` converts it to a file of `torch.save`"
    )
    return Problem(metadata, message, is_unknown=True)


def _latest(checkpoint: CheckpointFolder, name: str) -> Iterator[Problem]:
    """A Trainer's and a universal checkpoint are found by this file alone; a script may name another tag."""
    base = checkpoint.base
    if base is None:
        return
    named = latest_tag(base, name)
    if not named:
        yield Problem(
            base / name, "it is missing, empty or not text, and DeepSpeed finds the checkpoint by it"
        )
    elif not (base / named).is_dir():
        yield Problem(base / name, f"it names `{named}`, which is not there")


def _partial_files(checkpoint: CheckpointFolder) -> Iterator[Problem]:
    for file in checkpoint.files():
        if file.name.endswith((".tmp", ".partial", ".incomplete")):
            yield Problem(file, "it is left over from an interrupted save")
        elif file.suffix in (".pt", ".pth", ".bin") and not file.stat().st_size:
            yield Problem(file, "it is empty")


# DeepSpeed's engine


@dataclass(frozen=True)
class _Save:
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


def _engine_problems(checkpoint: CheckpointFolder, files: EngineFiles) -> Iterator[Problem]:
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
        yield from _random_states(checkpoint, save)
    if save.is_whole and not files.other:
        yield from _sizes(save)
        yield from _sizes_together(save)


def _opened(
    files: "Mapping[Key, Path]", read: "Callable[[Path], State]"
) -> "tuple[dict[Key, State], list[Problem]]":
    opened: dict[Key, State] = {}
    problems = []
    for key, file in files.items():
        try:
            state = read(file)
            damage = state.archive.problem()
        except (BadArchive, OSError) as error:
            problems.append(unreadable(file, error))
            continue
        if damage is None:
            opened[key] = state
        else:
            problems.append(Problem(file, damage))
    return opened, problems


def _damage(file: Path, complete: bool = False) -> list[Problem]:
    try:
        damage = Archive(file).problem(complete)
    except (BadArchive, OSError) as error:
        return [unreadable(file, error)]
    return [] if damage is None else [Problem(file, damage)]


def _missing_models(save: _Save) -> Iterator[Problem]:
    """Stage 3 writes a model file in each rank, the other stages one for each rank of model parallelism."""
    files = save.files
    if not files.model:
        yield Problem(files.folder, "the model is missing: there is no `*_model_states.pt`")
    yield from _missing_layers(save)
    present = {mp for _, mp in files.model}
    parallel = max((state.model_ranks or 0 for state in save.models.values()), default=0)
    if len(present) < parallel and not files.other:  # a pipeline writes a file for each layer
        message = f"the model has {len(present)} of {parallel} parts of model parallelism"
        yield Problem(files.folder, message)
    for (_, mp), file in files.model.items():
        if mp >= parallel > 0:  # DeepSpeed merges all that it finds
            yield Problem(
                file, f"it is from another save: this one has {plural(parallel, 'part')} of model parallelism"
            )
    if not any(dp is not None for dp, _ in files.model):
        return
    known = [
        *(state.ranks for state in save.models.values()),
        *(state.ranks for state in save.shards.values()),
    ]
    ranks = max((state for state in known if state is not None), default=0)
    for mp in sorted({mp for _, mp in files.model}):
        missing = [dp for dp in range(ranks) if (dp, mp) not in files.model]
        if missing:
            name = f"zero_pp_rank_{missing[0]}_mp_rank_{mp:02}_model_states.pt"
            yield Problem(files.folder / name, f"the model of {_ranks(missing)} of {ranks} is missing")


def _missing_layers(save: _Save) -> Iterator[Problem]:
    """A pipeline names its parameters by the number of their layer."""
    of_pipeline = [model for model in save.models.values() if model.is_of_pipeline]
    present = save.files.layers
    if of_pipeline and not present:
        message = "the layers of a pipeline are missing: there is no `layer_*-model_states.pt`"
        yield Problem(save.files.folder, message)
    names = chain.from_iterable(model.trained for model in of_pipeline)
    layers = {name.partition(".")[0] for name in names}
    missing = sorted({int(layer) for layer in layers if layer.isdecimal()} - present.keys())
    if missing and present:
        are = "is" if len(missing) == 1 else "are"
        message = f"{plural(len(missing), 'layer')} of a pipeline {are} missing"
        yield Problem(save.files.folder / f"layer_{missing[0]:02}-model_states.pt", message)


def _missing_experts(save: _Save) -> Iterator[Problem]:
    present = save.files.experts
    if not present or not save.models:
        return
    for layer, count in enumerate(next(iter(save.models.values())).num_experts):
        missing = [expert for expert in range(count) if (layer, expert) not in present]
        if missing:
            name = f"layer_{layer}_expert_{missing[0]}_mp_rank_00_model_states.pt"
            message = f"{len(missing)} of {plural(count, 'expert')} of a layer are missing"
            yield Problem(save.files.folder / name, message)


def _missing_shards(save: _Save) -> Iterator[Problem]:
    files = save.files
    stage = max((state.stage or 0 for state in save.models.values()), default=0)
    if not files.optim and stage:
        yield Problem(files.folder, f"the optimizer of stage {stage} is missing: no `*_optim_states.pt`")
    ranks = _most_common(state.ranks for state in save.shards.values())
    if ranks is None:
        return
    wanted = set(range(ranks))
    for mp in sorted({mp for _, mp in files.optim}):
        present = {dp: file for (dp, other), file in files.optim.items() if other == mp}
        missing, extra = sorted(wanted - present.keys()), sorted(present.keys() - wanted)
        if missing:
            file = _with_rank(next(iter(present.values())), missing[0])
            yield Problem(file, f"the optimizer of {_ranks(missing)} of {ranks} is missing")
        if extra:
            yield Problem(present[extra[0]], f"it is from another save: this one has {ranks} ranks")


def _with_rank(file: Path, rank: int) -> Path:
    head, _, tail = file.name.partition("zero_pp_rank_")
    return file.with_name(f"{head}zero_pp_rank_{rank}_{tail.partition('_')[2]}")


def _different_saves(checkpoint: CheckpointFolder, save: _Save) -> Iterator[Problem]:
    models = {save.files.model[key]: state for key, state in save.models.items()}
    shards = {save.files.optim[key]: state for key, state in save.shards.items()}
    yield from _odd({file: state.step for file, state in models.items()}, "step {}")
    yield from _odd({file: state.ranks for file, state in models.items()}, "{} ranks")
    yield from _odd(
        {file: state.model_ranks for file, state in models.items()}, "{} parts of model parallelism"
    )
    yield from _odd({file: state.ranks for file, state in shards.items()}, "{} ranks")
    yield from _odd({file: state.stage for file, state in shards.items()}, "stage {}")
    yield from _odd({file: state.optimizer_step for file, state in shards.items()}, "optimizer step {:.0f}")
    step, tag = _most_common(state.step for state in models.values()), checkpoint.tag or ""
    if step is not None and re.fullmatch(r"global_step\d+", tag) and tag != f"global_step{step}":
        yield Problem(save.files.folder, f"its model is at step {step}")
    written = trainer_step(checkpoint.folder)
    if written is not None and checkpoint.named_step not in (None, written):
        yield Problem(checkpoint.folder / TRAINER_STATE, f"it is at step {written}")


def _odd(values: Mapping[Path, object], words: str) -> Iterator[Problem]:
    known = {file: value for file, value in values.items() if value is not None}
    usual = _most_common(known.values())
    for file, value in known.items():
        if value != usual:
            message = (
                f"it is from another save: it has {words.format(value)}, the others {words.format(usual)}"
            )
            yield Problem(file, message)


def _most_common(values: "Iterable[Key | None]") -> "Key | None":
    counted = Counter(value for value in values if value is not None).most_common(1)
    return counted[0][0] if counted else None


def _sizes(save: _Save) -> Iterator[Problem]:
    for (dp, mp), shard in save.shards.items():
        model, file = save.model_of(dp, mp), save.files.optim[dp, mp]
        if model is None or not model.shapes or not shard.ranks:
            continue
        try:
            groups = [group.numel for group in shard.groups]
        except BadArchive as error:
            yield unreadable(file, error)
            continue
        if shard.stage == 3:
            yield from _partitioned_sizes(model, shard, dp, sum(groups))
        elif len(groups) != len(model.shapes):
            yield Problem(
                file, f"it has {len(groups)} groups of parameters, and the model {len(model.shapes)}"
            )


def _partitioned_sizes(model: ModelFile, shard: OptimFile, rank: int, numel: int) -> Iterator[Problem]:
    if shard.is_swapped and not model.has_fp32_master:
        return  # the form of the files is not known
    swapped = list(swap_files(model, shard, rank)) if shard.is_swapped else []
    yield from (Problem(file.path, file.problem) for file in swapped if file.problem is not None)
    together = numel + sum(file.tensor.numel for file in swapped if not file.state)
    wanted = sum(partition_numel(shapes, shard.ranks or 1) for shapes in model.shapes)
    if together != wanted:
        message = f"it has {together} fp32 parameters, and the model {wanted} in this rank"
        yield Problem(shard.archive.file, message)


def _sizes_together(save: _Save) -> Iterator[Problem]:
    """Below stage 3 a group is cut anywhere, after an alignment to twice the number of ranks."""
    cut = {key: shard for key, shard in sorted(save.shards.items()) if shard.stage < 3}
    for mp in sorted({mp for _, mp in cut}):
        shards = [shard for (_, other), shard in cut.items() if other == mp]
        model, ranks = save.models.get((None, mp)), len(shards)
        if model is None or any(shard.ranks != ranks for shard in shards):
            continue
        try:
            if any(len(shard.groups) != len(model.shapes) for shard in shards):
                continue
        except BadArchive:  # `_sizes` says so
            continue
        paddings = shards[0].paddings or [[] for _ in model.shapes]
        for number, (shapes, padding) in enumerate(zip(model.shapes, paddings, strict=False)):
            wanted = sum(math.prod(shape) for shape in shapes.values()) + sum(padding)
            together, align = sum(shard.groups[number].numel for shard in shards), 2 * ranks
            if math.ceil(wanted / align) != math.ceil(together / align):
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
    yield from _missing_engine(checkpoint)
    if checkpoint.engine is None and not weight_files(checkpoint.folder):
        yield Problem(checkpoint.folder, "it has neither a model nor a `global_step` directory of DeepSpeed")
    yield from _structures(checkpoint.folder, _OF_TRAINER)


def _missing_engine(checkpoint: CheckpointFolder) -> Iterator[Problem]:
    """An engine that saves writes its own directory, and beside it `latest` and a script."""
    folder = checkpoint.folder
    if checkpoint.engine is not None:
        return
    if named := latest_tag(folder):
        message = f"it is missing, and `{LATEST}` names it"
        if (folder / named).is_dir():
            message = "it has no files of DeepSpeed's engine"
        yield Problem(folder / named, message)
    elif (folder / _RECOVERY_SCRIPT).is_file():
        message = f"the files of DeepSpeed's engine are missing, although it saved `{_RECOVERY_SCRIPT}`"
        yield Problem(folder, message)


def _structures(folder: Path, patterns: Iterable[str]) -> Iterator[Problem]:
    for pattern in patterns:
        for file in sorted(folder.glob(pattern)):
            yield from _damage(file)


def _scheduler(checkpoint: CheckpointFolder, save: _Save) -> Iterator[Problem]:
    """A Trainer keeps its own scheduler; the engine does if the ds_config has one, or an optimizer.

    Source: `deepspeed_optim_sched` in transformers/integrations/deepspeed.py.
    """
    file = checkpoint.folder / SCHEDULER
    configs = [model.config for model in save.models.values() if model.config]
    is_engines = any(config.keys() & {"optimizer", "scheduler"} for config in configs)
    if configs and not is_engines and not file.is_file():
        yield Problem(file, "it is missing, and the Trainer loads its scheduler from it")


def _random_states(checkpoint: CheckpointFolder, save: _Save) -> Iterator[Problem]:
    """Each rank of a Trainer writes its own, and rank 0 does not wait for the others."""
    folder, models = checkpoint.folder, save.models.values()
    ranks = max(((model.ranks or 0) * (model.model_ranks or 1) for model in models), default=0)
    missing = [rank for rank in range(ranks) if not (folder / f"rng_state_{rank}.pth").is_file()]
    if ranks > 1 and 0 < len(missing) < ranks:
        file = folder / f"rng_state_{missing[0]}.pth"
        yield Problem(file, f"the random numbers of {_ranks(missing)} of {ranks} are missing")


def _universal(checkpoint: CheckpointFolder, complete: bool) -> Iterator[Problem]:
    folder = checkpoint.folder
    yield from _latest(checkpoint, LATEST_UNIVERSAL)
    parameters = [inner for inner in sorted((folder / "zero").iterdir()) if inner.is_dir()]
    if not parameters:
        yield Problem(folder / "zero", "it has no parameters")
    files = engine_files(folder)
    models, damaged = _opened({} if files is None else files.model, ModelFile)
    yield from damaged
    trained = set(chain.from_iterable(model.trained for model in models.values()))
    for name in sorted(trained - {inner.name for inner in parameters}):
        yield Problem(folder / "zero" / name, "it is missing: the conversion was interrupted")
    states = {"fp32.pt"}
    for inner in parameters:
        if inner.name in trained:
            states.update(file.name for file in inner.glob("*.pt"))
    for inner in parameters:
        yield from _parameter(inner, states if inner.name in trained else {"fp32.pt"}, complete)


def _parameter(folder: Path, wanted: set[str], complete: bool) -> Iterator[Problem]:
    for name in sorted(wanted):
        if not (folder / name).is_file():
            yield Problem(folder / name, "it is missing: the conversion was interrupted")
        elif not complete:  # otherwise every file is looked at anyway
            yield from _damage(folder / name)


def _is_zip(file: Path) -> bool:
    with open_regular(file) as stream:
        return stream.read(2) == b"PK"


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:MOST_NAMES]))
    if len(ranks) > MOST_NAMES:
        named += " …"
    return f"ranks {named}" if len(ranks) > 1 else f"rank {named}"
