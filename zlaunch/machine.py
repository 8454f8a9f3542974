"""What a machine has, as far as a plan needs to know."""

from dataclasses import dataclass

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
