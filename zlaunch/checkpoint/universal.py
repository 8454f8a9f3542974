"""Convert a checkpoint to DeepSpeed's universal format, which other ranks and stages can load.

DeepSpeed's own conversion does the work, in its own directory. The checkpoint is verified before, and the
result before it gets its name, so an interrupted conversion leaves nothing that looks like a checkpoint. If
zlaunch is killed, its reaper ends the conversion and deletes its files.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

from zlaunch import files
from zlaunch.checkpoint.disk_need import DiskNeed, disk_need
from zlaunch.checkpoint.dtypes import BLOCK, convert
from zlaunch.checkpoint.engine_files import EngineFiles, OptimFile, engine_files
from zlaunch.checkpoint.find import (
    LATEST,
    LATEST_UNIVERSAL,
    CheckpointFolder,
    SavedBy,
    latest_tag,
    recognize,
    weight_files,
)
from zlaunch.checkpoint.new_directory import new_directory, refuse_existing
from zlaunch.checkpoint.torch_file import BadArchive
from zlaunch.checkpoint.universal_files import has_int_steps
from zlaunch.checkpoint.verify import require_engine, verify
from zlaunch.checkpoint.weights import StoredWeight, how_to_take_weights, weights
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.frozen import dataclass
from zlaunch.process import SAFE_PATH, Foreground, Stopped, heed_signals, ours
from zlaunch.units import size

CONVERSION = "deepspeed.checkpoint.ds_to_universal"
_IN_ORDER = "zlaunch.checkpoint.in_order"
_SWAP_IN = "zlaunch.checkpoint.swap_in"
_FOR_ALL_STAGES = "zlaunch.checkpoint.universal_files"

SUFFIX = "_universal"
"""After the tag, in the name of the directory beside the checkpoint."""

GRACE_SECONDS = 5.0
_LOG, _RESULT, _IN_MEMORY = "log", "result", "in-memory"
_LITTLE_BYTES = 1 << 20
_LOG_BYTES = 2000
"""How much of the end of the log is shown after a failure."""


def universal_folder(checkpoint: CheckpointFolder, out: Path | None) -> Path:
    """Name the directory to write: beside the checkpoint, where the engine looks for it, or in `out`.

    accelerate gives the engine the tag that it saves by, so its result is beside its own directory.
    """
    assert checkpoint.engine is not None
    if checkpoint.saved_by is SavedBy.ACCELERATE:
        base = checkpoint.folder.with_name(f"{checkpoint.folder.name}{SUFFIX}") if out is None else out
        return base / checkpoint.engine.name
    base = checkpoint.engine.parent if out is None else out
    return base / f"{checkpoint.engine.name}{SUFFIX}"


def written_folder(checkpoint: CheckpointFolder, folder: Path) -> Path:
    """Name what a conversion creates: the universal checkpoint, or the directory around it."""
    return folder if folder.parent == checkpoint.base else folder.parent


def converted(checkpoint: CheckpointFolder) -> CheckpointFolder | None:
    """Find the universal checkpoint that DeepSpeed would load in place of one: what `write_universal` wrote.

    It finds a universal checkpoint by its name in a file, and only one for each directory.
    """
    if checkpoint.engine is None:
        return None
    folder = checkpoint.engine
    if checkpoint.saved_by is not SavedBy.UNIVERSAL:
        folder = universal_folder(checkpoint, None)
    if latest_tag(folder.parent, LATEST_UNIVERSAL) != folder.name:
        return None
    return recognize(folder)


@dataclass(frozen=True)
class UniversalPlan:
    """What will be written."""

    checkpoint: CheckpointFolder
    source: EngineFiles
    """Its files."""
    folder: Path
    """The universal checkpoint."""
    disk: DiskNeed
    is_done: bool
    """Whether it was written before, and only has to be named to DeepSpeed."""

    @property
    def target(self) -> Path:
        """The directory that appears when all is written."""
        return written_folder(self.checkpoint, self.folder)

    @property
    def is_beside(self) -> bool:
        """Whether it is beside the checkpoint, and not in a directory of its own."""
        return self.target == self.folder


def plan_universal(checkpoint: CheckpointFolder, out: Path | None) -> UniversalPlan:
    """Plan what to write.

    Raise Refused for a checkpoint with problems, Unavailable if it cannot be converted, WrongUsage if there
    is nothing to convert, or something else in its place.
    """
    plan = _plan(checkpoint, out)
    if plan.is_done and (problem := _other_weights(plan.source, plan.folder, heed_signals)):
        raise _no_conversion(plan, problem)
    return plan


def _plan(checkpoint: CheckpointFolder, out: Path | None) -> UniversalPlan:
    source, folder = _convertible(checkpoint), universal_folder(checkpoint, out)
    plan = UniversalPlan(checkpoint, source, folder, _disk_need(checkpoint, source), is_done=False)
    if not (plan.is_beside and folder.is_dir()):
        refuse_existing(plan.target)
        return plan
    if problem := _incomplete(source, folder):
        raise _no_conversion(plan, problem)
    return replace(plan, is_done=True)


def _no_conversion(plan: UniversalPlan, problem: str) -> WrongUsage:
    return WrongUsage(
        f"`{plan.folder}` is not a complete conversion of `{plan.checkpoint.folder}`: {problem}",
        f"delete it first: `rm -r {files.typed(plan.folder)}`",
    )


def disk_need_of(checkpoint: CheckpointFolder) -> DiskNeed:
    """Compute the disk space that the conversion of a checkpoint without problems takes."""
    return _disk_need(checkpoint, _convertible(checkpoint))


def _disk_need(checkpoint: CheckpointFolder, source: EngineFiles) -> DiskNeed:
    try:
        return disk_need(source)
    except BadArchive as error:
        raise Unavailable(f"`{checkpoint.folder}` cannot be read: {error}") from None


def is_in_the_way(checkpoint: CheckpointFolder) -> bool:
    """Whether there is something else where a conversion of this checkpoint would write."""
    try:
        _plan(checkpoint, None)
    except WrongUsage:
        return True
    return False


def write_universal(
    plan: UniversalPlan,
    wait: Callable[[], None],
    int_steps: bool | None = None,
    python: str = sys.executable,
    log: Path | None = None,
) -> None:
    """Convert a checkpoint. `wait` is called repeatedly meanwhile; `int_steps` as for `fit_all_stages`.

    `python` has torch and DeepSpeed. Raise Unavailable if that is impossible, and leave nothing then but the
    log, if it is given.
    """
    if not plan.is_done:
        with new_directory(plan.target, plan.disk.certain) as partial:
            _write(plan, _Steps(partial, wait, python, log), int_steps)
    elif int_steps is not None and has_int_steps(plan.folder) is not int_steps:
        with tempfile.TemporaryDirectory(prefix="zlaunch-") as partial:
            _Steps(Path(partial), wait, python, log).fit(plan.folder, int_steps)
    if plan.is_beside:
        files.write_whole(plan.folder.parent / LATEST_UNIVERSAL, plan.folder.name)


def _write(plan: UniversalPlan, steps: "_Steps", int_steps: bool | None) -> None:
    # The conversion writes a file beside its result, so the result is one level deeper at first.
    partial, result = steps.partial, steps.partial / _RESULT
    steps.convert(plan.source)
    steps.fit(result, int_steps)
    if problem := _incomplete(plan.source, result) or _other_weights(plan.source, result, steps.tick):
        hint = how_to_take_weights(plan.checkpoint)
        raise Unavailable(f"DeepSpeed's conversion went wrong, and was deleted: {problem}", hint)
    for name in (_LOG, LATEST_UNIVERSAL):
        (partial / name).unlink(missing_ok=True)
    if plan.is_beside:
        for inner in result.iterdir():
            inner.rename(partial / inner.name)
        result.rmdir()
    else:
        result.rename(partial / plan.folder.name)
        _copy_companions(plan.checkpoint, partial)
        files.write_whole(partial / LATEST_UNIVERSAL, plan.folder.name)


@dataclass(frozen=True)
class _Steps:
    """The programs that convert a checkpoint, which run in a directory that is not complete yet."""

    partial: Path
    wait: Callable[[], None]
    python: str
    log: Path | None

    def convert(self, source: EngineFiles) -> None:
        """Run DeepSpeed's conversion, which takes paths for patterns: links have no special characters."""
        engine = source.folder.absolute()
        with tempfile.TemporaryDirectory(prefix="zlaunch-") as links:
            if any(OptimFile(file).is_swapped for file in source.optim.values()):
                in_memory = self.partial / _IN_MEMORY
                self._run(ours(_SWAP_IN, str(engine), str(in_memory), python=self.python), links)
                engine = in_memory
            link, out = Path(links, "in"), Path(links, "out")
            link.symlink_to(engine)
            out.symlink_to(self.partial)
            folders = ["--input_folder", str(link), "--output_folder", str(out / _RESULT)]
            program = [self.python, "-m", CONVERSION]
            if source.first_model.is_round_robin:
                program = ours(_IN_ORDER, python=self.python)
            if (source.first_model.stage or 0) < 3:
                # Below stage 3 the conversion stops at frozen parameters and buffers, unless it may add them.
                folders.append("--inject_missing_state")
            self._run([*program, *folders], links)
        shutil.rmtree(self.partial / _IN_MEMORY, ignore_errors=True)

    def tick(self) -> None:
        """Show that something is done, and stop if that is asked."""
        self.wait()
        heed_signals()

    def fit(self, folder: Path, int_steps: bool | None) -> None:
        """Make the result fit all stages, or change the form of its steps."""
        argument = "" if int_steps is None else str(int(int_steps))
        self._run(ours(_FOR_ALL_STAGES, str(folder), argument, python=self.python))

    def _run(self, argv: list[str], *temporary: str) -> None:
        environment = {**os.environ, **SAFE_PATH, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        log = self.log or self.partial / _LOG
        if_killed = ["rm", "-rf", "--", str(self.partial), *temporary]
        with log.open("ab") as output:
            start = output.tell()
            child = Foreground(argv, environment, output, GRACE_SECONDS, if_killed=if_killed)
            returncode = child.wait(self.wait)
        heed_signals()  # after a wait they are deferred, and the rest takes time, too
        if child.stopped_by is not None:
            raise Stopped(child.stopped_by)
        if returncode:
            lines = (
                files.read_regular(log)[start:][-_LOG_BYTES:].decode("utf-8", "replace").strip().splitlines()
            )
            why = lines[-1] if lines else f"exit status {returncode}"
            free = shutil.disk_usage(self.partial).free  # torch does not say that a disk is full
            if free < _LITTLE_BYTES:
                why = f"the disk is full: it has {size(free)} left; {why}"
            raise Unavailable(f"DeepSpeed's conversion failed: {why}")


def not_restored(checkpoint: CheckpointFolder) -> list[str]:
    """Name what DeepSpeed does not load from a universal checkpoint: buffers and frozen parameters.

    `load_checkpoint` of 0.19.8 does not load the module then; they keep the values that the script has set.
    """
    source = checkpoint.engine_files()
    return [] if source is None else source.first_model.not_restored


def _copy_companions(checkpoint: CheckpointFolder, out: Path) -> None:
    """Copy what a Trainer or accelerate has beside the engine's files, such as its step; not the weights."""
    if checkpoint.folder == checkpoint.engine:
        return
    left_out = {checkpoint.folder / LATEST, *weight_files(checkpoint.folder)}
    for file in checkpoint.folder.iterdir():
        if file.is_file() and file not in left_out and not file.name.endswith(".index.json"):
            shutil.copy2(file, out / file.name)


def _convertible(checkpoint: CheckpointFolder) -> EngineFiles:
    """Return its files. Raise WrongUsage for a checkpoint that any ranks can load."""
    if checkpoint.saved_by is SavedBy.UNIVERSAL:
        raise WrongUsage(f"`{checkpoint.folder}` is already universal")
    source = checkpoint.engine_files()
    if source is None:
        raise WrongUsage(f"`{checkpoint.folder}` has no files of DeepSpeed's engine")
    require_engine(checkpoint)
    model = source.first_model
    if not model.stage:
        raise WrongUsage(f"`{checkpoint.folder}` was saved at stage 0, so any number of ranks can load it")
    for file in source.optim.values():
        if obstacle := source.obstacle(model, OptimFile(file)):
            hint = how_to_take_weights(checkpoint)
            raise Unavailable(f"`{checkpoint.folder}` cannot be converted: {obstacle}", hint)
    return source


def _incomplete(source: EngineFiles, folder: Path) -> str | None:
    """Say what a universal checkpoint lacks of its source; None if it is complete."""
    made = engine_files(folder)
    if made is None or not made.model or not (folder / "zero").is_dir():
        return "it has no files of a conversion"
    for problem in verify(CheckpointFolder(folder, SavedBy.UNIVERSAL, folder)):
        if problem.file.name != LATEST_UNIVERSAL:  # it is written last
            return f"{problem.file.name}: {problem.message}"
    before, after = source.first_model, made.first_model
    if before.step != after.step:
        return f"it is at step {after.step}, not {before.step}"
    for name in sorted(before.trained):
        if not (folder / "zero" / name / "fp32.pt").is_file():
            return f"`{name}` is missing in it"
    return None


def _other_weights(source: EngineFiles, folder: Path, tick: Callable[[], None]) -> str | None:
    try:
        other = _other_weight(source, folder, tick)
    except BadArchive as error:
        return f"it cannot be read: {error}"
    return None if other is None else f"`{other}` has other numbers than in the checkpoint"


def _other_weight(source: EngineFiles, universal: Path, tick: Callable[[], None]) -> str | None:
    """Name a trained parameter that has other numbers in a universal checkpoint; None if there is none.

    They are read block by block; `tick` is called after each. Parameters that tensor parallelism has cut are
    not compared.
    """
    if len({mp for _, mp in source.model}) > 1:
        return None
    before = weights(CheckpointFolder(source.folder, SavedBy.ENGINE, source.folder))
    converted = weights(CheckpointFolder(universal, SavedBy.UNIVERSAL, universal))
    after, trained = {weight.name: weight for weight in converted}, source.first_model.trained
    for weight in before:
        if weight.name not in trained:
            continue
        if weight.name not in after or not _is_same(weight, after[weight.name], tick):
            return weight.name
    return None


def _is_same(saved: StoredWeight, made: StoredWeight, tick: Callable[[], None]) -> bool:
    """Compare bits, in the type of the checkpoint: of experts it has only that of the training."""
    import numpy as np

    if saved.numel != made.numel:
        return False
    start = 0
    for part in saved.read():
        for first in range(0, len(part), BLOCK):
            block = np.ascontiguousarray(part[first : first + BLOCK])
            (theirs,) = chain.from_iterable(row.read(start, len(block)) for row, *_ in made.pieces)
            if block.tobytes() != convert(theirs, made.dtype, saved.dtype).tobytes():
                return False
            start += len(block)
            tick()
    return True
