"""What a machine has, as far as a plan needs to know."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zlaunch.errors import Unavailable
from zlaunch.job import Precision


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, numbered as `nvidia-smi` numbers it."""

    index: int
    name: str
    uuid: str
    memory_bytes: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine zlaunch runs on."""

    hostname: str
    num_cores: int
    """Cores this process may use."""
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves visible, in its order."""
    hidden_gpus: tuple[int, ...] = ()
    """Numbers of the GPUs it hides."""

    @property
    def accelerator(self) -> str:
        """Name the accelerator as DeepSpeed does: `cuda` or `cpu`."""
        return "cuda" if self.gpus else "cpu"

    @property
    def best_precision(self) -> Precision:
        """Name the best format: bf16 from Ampere on and on CPUs, fp16 from Volta on.

        Source: `deepspeed/accelerator/cuda_accelerator.py` (compute capability 8 and 7) and
        `cpu_accelerator.py`, which supports bf16 on every CPU.
        """
        if not self.gpus:
            return "bf16"
        capability = min(gpu.compute_capability for gpu in self.gpus)
        return "bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else "fp32"


def weakest(machines: Sequence[Machine]) -> Machine:
    """Describe what every machine has at least; raise Unavailable if only some have GPUs."""
    without = [machine.hostname for machine in machines if not machine.gpus]
    if without and len(without) < len(machines):
        raise Unavailable(
            f"some hosts have GPUs, but not {', '.join(without)}", "take them out of the hostfile"
        )
    oldest = min(
        machines, key=lambda machine: min((gpu.compute_capability for gpu in machine.gpus), default=(0, 0))
    )
    return replace(
        oldest,
        num_cores=min(machine.num_cores for machine in machines),
        memory_bytes=min(machine.memory_bytes for machine in machines),
    )
