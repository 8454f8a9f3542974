"""DeepSpeed's native ops that a job needs; they are compiled at their first use."""

from collections.abc import Iterator
from dataclasses import dataclass

from zlaunch.dsconfig.schema.optimizer import (
    AdagradOptimizer,
    AdamOptimizer,
    LambOptimizer,
    LionOptimizer,
    MuonOptimizer,
)
from zlaunch.dsconfig.schema.root import DsConfig


@dataclass(frozen=True, slots=True)
class NativeOp:
    """One op: the name of its build folder, the class that builds it, and why the job needs it."""

    name: str
    builder: str
    why: str
    along: tuple[str, ...] = ()
    """Ops that are built along with it."""


SHM_COMM = NativeOp(
    "deepspeed_shm_comm", "ShareMemCommBuilder", "ranks on one CPU reduce through shared memory"
)
ASYNC_IO = NativeOp(
    "async_io", "AsyncIOBuilder", "the offload to NVMe reads and writes asynchronously", ("pin_memory",)
)
CPU_ADAM = NativeOp("cpu_adam", "CPUAdamBuilder", "the optimizer is offloaded, so Adam runs on the CPU")
CPU_ADAGRAD = NativeOp(
    "cpu_adagrad", "CPUAdagradBuilder", "the optimizer is offloaded, so Adagrad runs on the CPU"
)
CPU_LION = NativeOp("cpu_lion", "CPULionBuilder", "the optimizer is offloaded, so Lion runs on the CPU")
FUSED_ADAM = NativeOp("fused_adam", "FusedAdamBuilder", "`optimizer` asks for DeepSpeed's Adam")
FUSED_LION = NativeOp("fused_lion", "FusedLionBuilder", "`optimizer` asks for DeepSpeed's Lion")
FUSED_LAMB = NativeOp("fused_lamb", "FusedLambBuilder", "`optimizer` asks for DeepSpeed's Lamb")


def needed_ops(config: DsConfig, accelerator: str, trainer_optimizer: str) -> tuple[NativeOp, ...]:
    """List the ops that a job compiles before its first step, in order of use."""
    return tuple(_needed(config, accelerator, trainer_optimizer))


def _needed(config: DsConfig, accelerator: str, trainer_optimizer: str) -> Iterator[NativeOp]:
    zero, offloads = config.zero_optimization, config.zero_optimization.offloads
    if accelerator == "cpu":
        yield SHM_COMM
    if "offload_optimizer" in offloads:
        yield from _on_the_host(config, trainer_optimizer)
    else:
        yield from _on_the_gpu(config)
    if zero.stage == 3 and any(section.device == "nvme" for section in offloads.values()):
        yield ASYNC_IO


def _on_the_host(config: DsConfig, trainer_optimizer: str) -> Iterator[NativeOp]:
    """Accelerate replaces the script's optimizer by DeepSpeed's (`map_pytorch_optim_to_deepspeed`)."""
    match config.optimizer:
        case (AdamOptimizer() | MuonOptimizer()) as optimizer if optimizer.params.torch_adam:
            return
        case AdagradOptimizer():
            yield CPU_ADAGRAD
        case LionOptimizer():
            yield CPU_LION
        case None if trainer_optimizer == "adagrad":
            yield CPU_ADAGRAD
        case LambOptimizer():
            yield FUSED_LAMB
        case AdamOptimizer() | MuonOptimizer() | None:
            yield CPU_ADAM


def _on_the_gpu(config: DsConfig) -> Iterator[NativeOp]:
    match config.optimizer:
        case (AdamOptimizer() | MuonOptimizer()) as optimizer if not optimizer.params.torch_adam:
            yield FUSED_ADAM
        case LionOptimizer():
            yield FUSED_LION
        case LambOptimizer():
            yield FUSED_LAMB
