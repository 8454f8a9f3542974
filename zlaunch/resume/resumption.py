"""Resume a training: what its script is told, and where it goes on in its data."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zlaunch.checkpoint.disk_need import DiskNeed
from zlaunch.checkpoint.find import (
    LATEST,
    LATEST_UNIVERSAL,
    TRAINER_STATE,
    CheckpointFolder,
    SavedBy,
    latest_tag,
)
from zlaunch.checkpoint.summary import Summary
from zlaunch.checkpoint.torch_file import Archive, BadArchive, Unknown
from zlaunch.hosts.environment import Variable
from zlaunch.job.script import ConfigInterface
from zlaunch.resume.handover import TAG_VARIABLE, VARIABLE, CheckpointHandover
from zlaunch.rundir.layout import RunDir

_TRAINING_ARGS = "training_args.bin"


@dataclass(frozen=True)
class Conversion:
    """What makes a checkpoint fit a job: it is converted before the ranks start, and they load the result."""

    folder: Path
    """Where the result will be."""
    disk: DiskNeed
    reasons: tuple[str, ...]
    int_steps: bool | None
    """As for `write_universal`."""


@dataclass(frozen=True)
class Resumption:
    """The checkpoint that a job goes on from, and how its script is told."""

    saved: Summary
    handover: CheckpointHandover
    reads_tag: bool = False
    conversion: Conversion | None = None

    @property
    def checkpoint(self) -> CheckpointFolder:
        """What the script loads: the checkpoint itself, or what it is converted to."""
        if self.conversion is None:
            return self.saved.checkpoint
        folder = self.conversion.folder
        return CheckpointFolder(folder, SavedBy.UNIVERSAL, folder)

    @property
    def directory(self) -> Path:
        """What the script loads: of an engine's checkpoint, the directory of its tags."""
        one = self.checkpoint
        return one.base if one.base is not None and one.engine == one.folder else one.folder

    @property
    def _latest(self) -> str:
        """The file in which DeepSpeed looks for the tag to load, unless the script names one."""
        return LATEST_UNIVERSAL if self.checkpoint.saved_by is SavedBy.UNIVERSAL else LATEST

    @property
    def _is_latest(self) -> bool:
        """Whether this file names the checkpoint. A conversion writes it."""
        return self.conversion is not None or latest_tag(self.directory, self._latest) == self.checkpoint.tag

    @property
    def is_linked(self) -> bool:
        """Whether the script gets a directory of the run, as it would load the tag that `latest` names.

        That may be another one: of a later save that was interrupted after it had written `latest`.
        """
        gets_tag = not self.handover.flag and self.reads_tag
        return self.directory != self.checkpoint.folder and not gets_tag and not self._is_latest

    def words(self, run: RunDir) -> tuple[str, str] | tuple[()]:
        """Return the argument of the script and its value, if it has one."""
        return (self.handover.flag, str(self._told(run))) if self.handover.flag else ()

    def variables(self, run: RunDir) -> dict[str, Variable]:
        """Return the variables of the ranks."""
        if self.handover.flag:
            return {}
        why = f"`--resume`: {self.saved.step} steps were taken"
        tag = {} if self.checkpoint.tag is None else {TAG_VARIABLE: Variable(self.checkpoint.tag, why)}
        return {VARIABLE: Variable(str(self._told(run)), why), **tag}

    def _told(self, run: RunDir) -> Path:
        return run.resume if self.is_linked else self.directory

    def link(self, run: RunDir) -> None:
        """Write this directory: links to all that is beside the checkpoint, and another `latest`."""
        if self.is_linked and self.checkpoint.tag is not None:
            run.resume.mkdir()
            for one in self.directory.iterdir():
                if one.name != self._latest:
                    (run.resume / one.name).symlink_to(one)
            (run.resume / self._latest).write_text(self.checkpoint.tag)


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
