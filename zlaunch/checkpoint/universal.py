"""Convert a checkpoint to DeepSpeed's universal format, which other ranks and stages can load.

DeepSpeed's own conversion does the work, in its own directory. The checkpoint is verified before, and the
result before it gets its name, so an interrupted conversion leaves nothing that looks like a checkpoint.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from zlaunch import files
from zlaunch.checkpoint.any_stage import fit_all_stages
from zlaunch.checkpoint.archive import BadArchive
from zlaunch.checkpoint.directory import new_directory, refuse_existing
from zlaunch.checkpoint.find import (
    LATEST,
    LATEST_UNIVERSAL,
    CheckpointFolder,
    SavedBy,
    latest_tag,
    recognize,
)
from zlaunch.checkpoint.states import ModelFile, OptimFile, engine_files
from zlaunch.checkpoint.verify import require_engine, verify
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.process import Foreground, Stopped, heed_signals

CONVERSION = "deepspeed.checkpoint.ds_to_universal"

SUFFIX = "_universal"
"""After the tag, in the name of the directory beside the checkpoint."""

GRACE_SECONDS = 5.0
_LOG = "log"
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


def converted(checkpoint: CheckpointFolder) -> CheckpointFolder | None:
    """Find the universal checkpoint that DeepSpeed would load in place of one: what `make_universal` wrote.

    It finds a universal checkpoint by its name in a file, and only one for each directory.
    """
    if checkpoint.engine is None:
        return None
    if checkpoint.saved_by is SavedBy.UNIVERSAL:
        folder = checkpoint.engine
    else:
        folder = universal_folder(checkpoint, None)
    return recognize(folder) if latest_tag(folder.parent, LATEST_UNIVERSAL) == folder.name else None


def make_universal(
    checkpoint: CheckpointFolder, out: Path | None, wait: Callable[[], None], int_steps: bool | None = None
) -> Path:
    """Convert a checkpoint; return the directory. `wait` is called again and again meanwhile.

    `int_steps` as for `fit_all_stages`. Raise Refused for a checkpoint with problems, Unavailable if it
    cannot be converted, WrongUsage if there is nothing to convert.
    """
    stage, folder = _convertible(checkpoint), universal_folder(checkpoint, out)
    is_beside = folder.parent == checkpoint.base
    target = folder if is_beside else folder.parent
    refuse_existing(target)
    _require_adam(checkpoint)
    with new_directory(target, checkpoint.nbytes) as partial:
        # The conversion writes a file beside its result, so the result is one level deeper at first.
        result = partial / folder.name
        _run(checkpoint, result, stage, wait)
        try:
            fit_all_stages(result, int_steps, wait)
        except BadArchive as error:
            raise Unavailable(
                f"DeepSpeed's conversion wrote files that are not understood: {error}"
            ) from None
        _check(checkpoint, result)
        for name in (_LOG, LATEST_UNIVERSAL):
            (partial / name).unlink(missing_ok=True)
        if is_beside:
            for one in result.iterdir():
                one.rename(partial / one.name)
            result.rmdir()
        else:
            _copy_companions(checkpoint, partial)
            files.write_whole(partial / LATEST_UNIVERSAL, folder.name)
    if is_beside:
        files.write_whole(folder.parent / LATEST_UNIVERSAL, folder.name)
    return folder


def not_restored(checkpoint: CheckpointFolder) -> list[str]:
    """Name what DeepSpeed does not load of a universal checkpoint: buffers and frozen parameters.

    `load_checkpoint` of 0.19.8 does not load the module then; they keep the values that the script has set.
    """
    found = None if checkpoint.engine is None else engine_files(checkpoint.engine)
    return [] if found is None else ModelFile(next(iter(found.model.values()))).not_restored


def _copy_companions(checkpoint: CheckpointFolder, out: Path) -> None:
    """Copy what a Trainer or accelerate has beside the engine's files, such as its step; not the weights."""
    for file in () if checkpoint.folder == checkpoint.engine else checkpoint.folder.iterdir():
        is_weights = file.suffix == ".safetensors" or re.fullmatch(
            r"(pytorch|adapter)_model.*\.bin", file.name
        )
        if file.is_file() and file.name != LATEST and not is_weights:
            shutil.copy2(file, out / file.name)


def _convertible(checkpoint: CheckpointFolder) -> int:
    """Return the stage. Raise WrongUsage for a checkpoint that any ranks can load."""
    if checkpoint.saved_by is SavedBy.UNIVERSAL:
        raise WrongUsage(f"`{checkpoint.folder}` is universal already")
    found = None if checkpoint.engine is None else engine_files(checkpoint.engine)
    if found is None or not found.model:
        raise WrongUsage(f"`{checkpoint.folder}` has no files of DeepSpeed's engine")
    require_engine(checkpoint)
    stage = next(iter(map(ModelFile, found.model.values()))).stage
    if not stage:
        raise WrongUsage(f"`{checkpoint.folder}` is of stage 0, which any number of ranks can load as it is")
    return stage


def _require_adam(checkpoint: CheckpointFolder) -> None:
    """DeepSpeed converts what is in the files of the optimizer, and of that only the moments of Adam."""
    assert checkpoint.engine is not None
    found = engine_files(checkpoint.engine)
    assert found is not None
    for file in found.optim.values():
        if not OptimFile(file).has_adam_states:
            raise Unavailable(
                f"`{file.name}` has no moments of Adam, and DeepSpeed converts no other optimizer",
                f"`zlaunch checkpoint export {files.typed(checkpoint.folder)} OUT` exports the weights",
            )


def _run(checkpoint: CheckpointFolder, result: Path, stage: int, wait: Callable[[], None]) -> None:
    # Below stage 3 the conversion stops at frozen parameters and buffers, unless it may add what it misses.
    inject = ["--inject_missing_state"] if stage < 3 else []
    argv = [sys.executable, "-m", CONVERSION, "--input_folder", str(checkpoint.engine)]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    log = result.parent / _LOG
    with log.open("wb") as output:
        child = Foreground(
            [*argv, "--output_folder", str(result), *inject], environment, output, GRACE_SECONDS
        )
        returncode = child.wait(wait)
    heed_signals()  # after a wait they are deferred, and the rest takes time, too
    if child.stopped_by is not None:
        raise Stopped(child.stopped_by)
    if returncode:
        said = log.read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace").strip().splitlines()
        raise Unavailable(
            f"DeepSpeed's conversion failed: {said[-1] if said else f'exit status {returncode}'}"
        )


def _check(checkpoint: CheckpointFolder, result: Path) -> None:
    """Raise Unavailable unless the result has every parameter that was trained, whole."""
    assert checkpoint.engine is not None
    found = engine_files(checkpoint.engine)
    assert found is not None
    wanted = {name for group in ModelFile(next(iter(found.model.values()))).shapes for name in group}
    missing = sorted(name for name in wanted if not (result / "zero" / name / "fp32.pt").is_file())
    found_bad = verify(CheckpointFolder(result, SavedBy.UNIVERSAL, result))
    problems = [one for one in found_bad if one.file.name != LATEST_UNIVERSAL]  # it is written last
    if missing or problems:
        named = [f"{one.file.name}: {one.message}" for one in problems]
        said = named[0] if named else f"`{missing[0]}` is missing in the result"
        raise Unavailable(f"DeepSpeed's conversion is incomplete: {said}")
