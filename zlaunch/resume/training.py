"""What resuming and saving need to know of a planned job."""

from pathlib import Path
from typing import TYPE_CHECKING

from zlaunch.config.resolve.values import Values
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.schema.storage import LOAD_UNIVERSAL, WRITER
from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface, Handover, Script
from zlaunch.resume.save_plan import UNKNOWN_SAVE_SECONDS, SavePlan
from zlaunch.units import whole

if TYPE_CHECKING:  # a job that resumes nothing needs none of it
    from zlaunch.resume.handover import Resumption
    from zlaunch.resume.resumed_data import DataPosition


@dataclass(frozen=True)
class PlannedTraining:
    """A planned training, as far as it concerns checkpoints."""

    script: Script
    args: ScriptArgs
    config: Values
    """The ds_config with every value that is known."""
    precision: str | None
    """None if the script decides."""
    world_size: int
    data_position: "DataPosition | None" = None
    """Where it continues in its data; None if it starts at step 0."""
    saves: SavePlan | None = None
    """When its Trainer saves checkpoints; None if it saves none."""
    refuses_classes: bool = False
    """Whether `torch.load` refuses DeepSpeed's classes where the caller does not say that it takes them."""

    @property
    def save_directory(self) -> Path | None:
        """Where its script certainly saves; None if only the script knows, or it has no engine to save."""
        if self.script.interface is ConfigInterface.NONE:
            return None
        return self.script.known_output_dir(self.args)

    @property
    def save_seconds(self) -> float:
        """Estimate how long its first save takes."""
        return UNKNOWN_SAVE_SECONDS if self.saves is None else self.saves.seconds

    @property
    def resumption(self) -> "Resumption | None":
        """The checkpoint that it resumes from, and how its script gets it."""
        return None if self.data_position is None else self.data_position.resumption

    @property
    def takes_ds_config(self) -> bool:
        """Whether its engine is configured by the ds_config of zlaunch."""
        return self.script.interface is not ConfigInterface.NONE and self.script.handover is not Handover.NOT

    @property
    def stage(self) -> int | None:
        """ZeRO stage; None if it is unknown."""
        return whole(self.config[(ZERO, "stage")])

    @property
    def offload(self) -> str:
        """Device of the optimizer: none, cpu or nvme."""
        device = self.config[(ZERO, "offload_optimizer", "device")]
        return device if isinstance(device, str) else "none"

    @property
    def has_writer(self) -> bool:
        """Whether its engine has a checkpoint writer, with which `load_checkpoint` asks torch for nothing."""
        return self.config.has(WRITER) and self.config.config()[WRITER[0]][WRITER[1]] is not None

    @property
    def loads_universal(self) -> bool:
        """Whether its engine loads universal checkpoints, and no others."""
        return self.config[LOAD_UNIVERSAL] is True
