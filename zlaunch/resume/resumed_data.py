"""Where a resumed training continues in its data, and which arguments its checkpoint overrides."""

from collections.abc import Mapping

from zlaunch.checkpoint.find import TRAINER_STATE, trainer_state
from zlaunch.checkpoint.torch_file import Archive, BadArchive, Unknown
from zlaunch.frozen import dataclass
from zlaunch.job.script import ConfigInterface
from zlaunch.resume.handover import Resumption
from zlaunch.units import whole

_TRAINING_ARGS = "training_args.bin"


@dataclass(frozen=True)
class DataPosition:
    """Where a resumed training continues in its data; amounts in samples, None if unknown."""

    resumption: Resumption
    is_trainer: bool
    """Whether a Trainer skips the data of the steps that were taken."""
    ignores: bool = False
    """Whether it starts the epoch again."""
    seen: int | None = None
    skipped: int | None = None

    @property
    def kept_arguments(self) -> dict[str, int]:
        """The arguments that a resumed Trainer takes from its checkpoint.

        `_init_training_state` of transformers loads the whole state, in which they are, and only warns.
        """
        state = trainer_state(self.resumption.directory) if self.is_trainer else {}
        intervals = {name: whole(state.get(name)) for name in ("save_steps", "logging_steps", "eval_steps")}
        return {name: steps for name, steps in intervals.items() if steps is not None and steps > 0}


def data_position(
    resumption: Resumption, interface: ConfigInterface, batch: int | None, ignores: bool
) -> DataPosition:
    """Compute what a training sees again, given its global batch. A Trainer skips by steps."""
    step, before = resumption.saved.step, _batch_before(resumption)
    is_trainers = (resumption.directory / TRAINER_STATE).is_file()
    is_trainer = interface is ConfigInterface.TRAINER and is_trainers
    if not is_trainer or step is None or before is None or batch is None:
        return DataPosition(resumption, is_trainer, ignores)
    return DataPosition(resumption, is_trainer, ignores, step * before, step * batch)


def _batch_before(resumption: Resumption) -> int | None:
    try:
        value = Archive(resumption.directory / _TRAINING_ARGS).value
    except (BadArchive, OSError):
        return None
    state = value.state if isinstance(value, Unknown) else None
    if not isinstance(state, Mapping):
        return None
    micro = whole(state.get("per_device_train_batch_size"))
    pieces = whole(state.get("gradient_accumulation_steps"))
    ranks = resumption.saved.ranks
    return micro * pieces * ranks if micro and pieces and ranks else None
