"""Resume a training: find the checkpoint to go on from, and tell the script about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zlaunch.checkpoint.archive import Archive, BadArchive, Unknown
from zlaunch.checkpoint.find import LATEST_UNIVERSAL, TRAINER_STATE, CheckpointFolder, SavedBy, latest_tag
from zlaunch.checkpoint.newest import by_age, newest_complete
from zlaunch.checkpoint.summary import Summary, summarize
from zlaunch.errors import InputMissing, WrongUsage
from zlaunch.files import shown
from zlaunch.hosts.environment import Variable
from zlaunch.job.script import RESUME, ConfigInterface, Script
from zlaunch.job.spec import JobSpec
from zlaunch.job.trainer_args import flags
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.run_files import read_run_files
from zlaunch.runs.saved import output_dir_of

LATEST = "latest"
"""The newest checkpoint in the output directory of the job."""

VARIABLE = "ZLAUNCH_RESUME"
"""The directory that a script without a flag for it passes to `load_checkpoint` or `load_state`."""

TAG_VARIABLE = "ZLAUNCH_RESUME_TAG"
"""The tag below this directory, for scripts that do not load the one that `latest` names."""

_TRAINING_ARGS = "training_args.bin"


@dataclass(frozen=True)
class Resumption:
    """The checkpoint that a job goes on from, and how its script is told."""

    saved: Summary
    flag: str
    """The argument before its directory; empty if the script reads `$ZLAUNCH_RESUME`."""
    is_certain: bool
    """Whether the script certainly reads this, or certainly does not."""
    is_read: bool
    """Whether the script seems to read this."""
    reads_tag: bool = False
    is_to_convert: bool = False
    """Whether it is converted before the job starts, so that it fits."""

    @property
    def checkpoint(self) -> CheckpointFolder:
        """The checkpoint."""
        return self.saved.checkpoint

    @property
    def directory(self) -> Path:
        """What the script loads: of an engine's checkpoint, the directory of its tags."""
        one = self.checkpoint
        return one.base if one.base is not None and one.engine == one.folder else one.folder

    @property
    def loads_latest(self) -> bool:
        """Whether the script gets the tag that `latest` names, and no other."""
        return self.directory != self.checkpoint.folder and (bool(self.flag) or not self.reads_tag)

    @property
    def is_latest(self) -> bool:
        """Whether `latest` names this checkpoint."""
        is_universal = self.checkpoint.saved_by is SavedBy.UNIVERSAL
        return latest_tag(self.directory, LATEST_UNIVERSAL if is_universal else LATEST) == self.checkpoint.tag

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments of the script."""
        return (self.flag, str(self.directory)) if self.flag else ()

    @property
    def variables(self) -> dict[str, Variable]:
        """The variables of the ranks."""
        if self.flag:
            return {}
        why = f"`--resume`: {self.saved.step} steps were taken"
        tag = {} if self.checkpoint.tag is None else {TAG_VARIABLE: Variable(self.checkpoint.tag, why)}
        return {VARIABLE: Variable(str(self.directory), why), **tag}


def find_resumption(job: JobSpec, script: Script) -> Resumption | None:
    """Find what a job goes on from; None if it begins anew.

    Raise InputMissing if there is no such checkpoint, WrongUsage if several directories have one.
    """
    if job.resume is None:
        return None
    flag, is_read, is_certain = told_by(script)
    saved = _newest(_directory(job.resume, job, script))
    return Resumption(saved, flag, is_certain, is_read, script.mentions(TAG_VARIABLE))


def told_by(script: Script) -> tuple[str, bool, bool]:
    """Return the flag for a checkpoint, whether the script seems to read it, and whether that is certain.

    The flag is empty if the script can only be told by a variable.
    """
    if script.resume_flag:
        return script.resume_flag, True, True
    flag = RESUME if script.takes_trainer_args else ""
    if flag and script.mentions(RESUME.removeprefix("--")):  # its Trainer is given it in `train`
        return flag, True, True
    if script.mentions(VARIABLE):
        return "", True, True
    return flag, False, script.is_sure and not script.has_other_modules


def _directory(name: str, job: JobSpec, script: Script) -> Path:
    """Find the directory that is meant: by its path, as that of a run, or the output of this job."""
    if name == LATEST:
        given = "output_dir" in dict(flags(script.trainer_flags(job.script_args)))
        if not (given or script.own_output_dir or script.interface is ConfigInterface.TRAINER):
            raise InputMissing(
                f"`--resume latest`: {script.path.name} does not say where it saves",
                "name the directory: `--resume DIR`",
            )
        return script.output_dir(job.script_args).absolute()
    if Path(name).is_dir() and not RunDir(Path(name)).job.exists():
        return Path(name).absolute()
    from zlaunch.runs.store import find_run  # what judges a run; a start needs it only here

    try:
        run = find_run(name, None)
    except InputMissing:
        raise InputMissing(
            f"`--resume {name}`: there is neither such a directory nor such a run",
            "`zlaunch checkpoint list` and `zlaunch runs list` show what there is",
        ) from None
    if (saved := output_dir_of(read_run_files(run))) is None:
        raise InputMissing(
            f"the run `{run.name}` did not record where it saves", "name the directory: `--resume DIR`"
        )
    return saved


def _newest(folder: Path) -> Summary:
    """Read the checkpoint at a path, or the newest below it; one that is complete, if there is any."""
    found = by_age(folder)
    if not found:
        hint = "`zlaunch checkpoint list DIR` shows what a directory has"
        raise InputMissing(f"there is no checkpoint in `{shown(folder)}`", hint)
    if len({one.folder.parent for one in found}) > 1:
        raise WrongUsage(
            f"there are checkpoints of several trainings in `{shown(folder)}`",
            f"name one directory, such as `--resume {shown(found[0].folder.parent)}`",
        )
    first = summarize(found[0])
    return (first.problems and newest_complete(folder)) or first


@dataclass(frozen=True)
class DataPosition:
    """Where a resumed training goes on in its data; amounts in samples, None if unknown."""

    resumption: Resumption
    is_trainer: bool
    """Whether a Trainer skips the data of the steps that were taken."""
    ignores: bool = False
    """Whether it begins the epoch again."""
    seen: int | None = None
    skipped: int | None = None


def data_position(
    resumption: Resumption, interface: ConfigInterface, batch: int | None, ignores: bool
) -> DataPosition:
    """Work out what a training sees again, given its global batch. A Trainer skips by steps."""
    step, before = resumption.saved.step, _batch_before(resumption)
    is_trainers = (resumption.directory / TRAINER_STATE).is_file()
    is_trainer = interface is ConfigInterface.TRAINER and is_trainers
    if not is_trainer or step is None or before is None or batch is None:
        return DataPosition(resumption, is_trainer, ignores)
    return DataPosition(resumption, is_trainer, ignores, step * before, step * batch)


def _batch_before(resumption: Resumption) -> int | None:
    """Read the global batch with which a Trainer's checkpoint was trained."""
    try:
        value = Archive(resumption.directory / _TRAINING_ARGS).value
    except (BadArchive, OSError):
        return None
    state = value.state if isinstance(value, Unknown) else None
    if not isinstance(state, Mapping):
        return None
    factors = [
        state.get("per_device_train_batch_size"),
        state.get("gradient_accumulation_steps"),
        resumption.saved.ranks,
    ]
    micro, pieces, ranks = (one if isinstance(one, int) else 0 for one in factors)
    return micro * pieces * ranks or None
