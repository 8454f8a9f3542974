"""DeepSpeed's native ops that a job needs; they are compiled at their first use."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from zlaunch.frozen import dataclass

if TYPE_CHECKING:  # pydantic; a host that looks for compiled ops reads no ds_config
    from zlaunch.dsconfig.schema.root import DsConfig


@dataclass(frozen=True, slots=True)
class NativeOp:
    """One op: the name of its build folder, the class that builds it, and why the job needs it."""

    name: str
    builder: str
    why: str
    along: tuple[str, ...] = ()
    """Ops that are built along with it."""


BETWEEN_RANKS = "deepspeed_shm_comm"
"""Only a short cut: without it, ranks on one CPU reduce over gloo."""
_ALL = (
    NativeOp(BETWEEN_RANKS, "ShareMemCommBuilder", "ranks on one CPU reduce through shared memory"),
    NativeOp("cpu_adam", "CPUAdamBuilder", "the optimizer is offloaded, so Adam runs on the CPU"),
    NativeOp("cpu_adagrad", "CPUAdagradBuilder", "the optimizer is offloaded, so Adagrad runs on the CPU"),
    NativeOp("cpu_lion", "CPULionBuilder", "the optimizer is offloaded, so Lion runs on the CPU"),
    NativeOp("fused_adam", "FusedAdamBuilder", "`optimizer` asks for DeepSpeed's Adam"),
    NativeOp("fused_lion", "FusedLionBuilder", "`optimizer` asks for DeepSpeed's Lion"),
    NativeOp("fused_lamb", "FusedLambBuilder", "`optimizer` asks for DeepSpeed's Lamb"),
    NativeOp("async_io", "AsyncIOBuilder", "offload to NVMe uses asynchronous I/O", ("pin_memory",)),
)
OPS: Mapping[str, NativeOp] = {op.name: op for op in _ALL}
"""Every op that a job can need, by name."""

NOT_ON_CPU = frozenset({"fused_lamb", "fused_lion"})
"""Ops that DeepSpeed's CPU accelerator does not have."""

_BY_OPTIMIZER: Mapping[str, tuple[str | None, str]] = {
    "adam": ("fused_adam", "cpu_adam"),
    "adamw": ("fused_adam", "cpu_adam"),
    "muon": ("fused_adam", "cpu_adam"),
    "adagrad": (None, "cpu_adagrad"),
    "lion": ("fused_lion", "cpu_lion"),
    "lamb": ("fused_lamb", "fused_lamb"),
}
"""`optimizer.type` in lower case → its op on the GPU, and offloaded."""


def needed_ops(config: "DsConfig", accelerator: str, trainer_optimizer: str) -> tuple[NativeOp, ...]:
    """List the ops that a job compiles before its first step, in order of use."""
    return tuple(OPS[name] for name in _needed(config, accelerator, trainer_optimizer) if name is not None)


def _needed(config: "DsConfig", accelerator: str, trainer_optimizer: str) -> Iterator[str | None]:
    zero, optimizer = config.zero_optimization, config.optimizer
    is_offloaded = "offload_optimizer" in zero.offloads
    if accelerator == "cpu":
        yield BETWEEN_RANKS
    if optimizer is None and is_offloaded:
        # accelerate replaces the script's optimizer by DeepSpeed's (`map_pytorch_optim_to_deepspeed`)
        yield "cpu_adagrad" if trainer_optimizer == "adagrad" else "cpu_adam"
    elif optimizer is not None and not getattr(optimizer.params, "torch_adam", False):
        yield _BY_OPTIMIZER.get(optimizer.type.lower(), (None, None))[is_offloaded]
    if zero.stage == 3 and any(section.device == "nvme" for section in zero.offloads.values()):
        yield "async_io"
