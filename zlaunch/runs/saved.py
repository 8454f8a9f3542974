"""What a run has saved, and where."""

from dataclasses import dataclass
from pathlib import Path

from zlaunch.checkpoint.find import WEIGHTS, checkpoint_parent
from zlaunch.checkpoint.newest import newest_complete
from zlaunch.checkpoint.summary import Summary
from zlaunch.job.trainer_args import flags
from zlaunch.rundir.run_files import RunFiles
from zlaunch.runs.what_ran import program_of

_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")


@dataclass(frozen=True)
class SavedByRun:
    """The model and the newest complete checkpoint of a run; None for what it has not."""

    model: Path | None = None
    """A directory for `from_pretrained`."""
    checkpoint: Summary | None = None


def saved_by_run(files: RunFiles) -> SavedByRun:
    """Look for what the script of a run has recorded as saved."""
    program, place = program_of(files), Path(files.job.get("working_directory", ""))
    model, engine = program.get("saved_model"), program.get("saved_checkpoint")
    try:
        return SavedByRun(
            _with_weights(place / model) if model else None,
            newest_complete(checkpoint_parent(place / engine)) if engine else None,
        )
    except OSError:  # the directory is on another host, or not ours to read
        return SavedByRun()


def _with_weights(folder: Path) -> Path | None:
    return folder if any((folder / name).is_file() for name in (*WEIGHTS, *_ADAPTERS)) else None


def output_dir_of(files: RunFiles) -> Path | None:
    """Find the directory in which a run saved checkpoints; None if it is not recorded."""
    job, program = files.job, program_of(files)
    place = Path(job.get("working_directory", ""))
    if saved := program.get("saved_checkpoint"):
        return checkpoint_parent(place / saved)
    told = program.get("trainer_args", {}).get("output_dir")
    given = told or dict(flags(job.get("script", []))).get("output_dir")
    return place / given if isinstance(given, str) else None
