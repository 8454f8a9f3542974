"""What of a job decides its memory, read once: the ds_config's keys with DeepSpeed 0.19's defaults.

A ds_config comes here without "auto"; a value of another kind than DeepSpeed reads counts as absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from zlaunch.estimate.memory.model_states import OPTIMIZER_BYTES
from zlaunch.estimate.workload import Workload
from zlaunch.units import whole

_ITEM_BYTES: Final = {"fp32": 4, "fp16": 2, "bf16": 2, "bfloat16": 2}
_OPTIMIZER_NAMES: Final = {
    "onebitadam": "adam",
    "zerooneadam": "adam",
    "onebitlamb": "lamb",
    "fusedadam": "adam",
    "rmsprop": "adagrad",
}
"""Optimizers that keep what another one keeps."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A job's ds_config in numbers; elements for what is counted in parameters."""

    stage: int
    item: int
    """Bytes of a parameter while it is trained."""
    gradient_item: int
    """Bytes of a gradient while it is accumulated."""
    is_bf16: bool
    zero_init: bool
    """Whether the model is shared out while it is made."""
    world_size: int
    rank: int
    micro_batch: int
    accumulation: int
    reduce_bucket: int
    num_buckets: int
    """Two where communication overlaps with the backward pass."""
    sub_group: int
    reuse_distance: int
    prefetch: int
    optimizer_on: str
    """`gpu`, `cpu` or `nvme`."""
    parameters_on: str
    pins_optimizer: bool
    pins_parameters: bool
    buffer_count: int
    parameter_buffers: int
    """Elements in all buffers for parameters on their way to and from NVMe."""
    most_in_cpu: int
    """Elements of parameters that stay in the host's memory beside NVMe."""
    state_bytes: int
    """What the optimizer keeps for a parameter, without its copy in fp32."""

    @property
    def is_half(self) -> bool:
        """Say whether parameters are trained in bf16 or fp16."""
        return self.item == 2

    @property
    def widens_all(self) -> bool:
        """Say whether a copy of all gradients is kept in fp32, as BF16_Optimizer does at stage 1."""
        widened = self.is_bf16 and self.gradient_item == 4
        return self.stage == 1 and widened and self.optimizer_on == "gpu"

    def share(self, numel: int) -> int:
        """Say how much of so many elements a rank has, with what is filled up."""
        return -(-numel // self.world_size)


def read_settings(workload: Workload) -> Settings:
    """Read a workload's ds_config."""
    config = workload.ds_config
    zero = _section(config, "zero_optimization")
    stage = whole(zero.get("stage")) or 0
    bf16 = bool(_section(config, "bf16").get("enabled") or _section(config, "bfloat16").get("enabled"))
    item = 2 if bf16 or _section(config, "fp16").get("enabled") else 4
    accumulated = _section(config, "data_types").get("grad_accum_dtype")
    optimizer, parameters = (_section(zero, f"offload_{name}") for name in ("optimizer", "param"))
    overlap = zero.get("overlap_comm")
    return Settings(
        stage=stage,
        item=item,
        gradient_item=_ITEM_BYTES.get(str(accumulated), item),
        is_bf16=bf16,
        zero_init=workload.zero_init and stage == 3,
        world_size=workload.world_size,
        rank=workload.rank,
        micro_batch=whole(config.get("train_micro_batch_size_per_gpu")) or 1,
        accumulation=whole(config.get("gradient_accumulation_steps")) or 1,
        reduce_bucket=_count(zero, "reduce_bucket_size", 500_000_000),
        num_buckets=2 if overlap and stage in (1, 2) else 1,
        sub_group=_count(zero, "sub_group_size", 1_000_000_000),
        reuse_distance=_count(zero, "stage3_max_reuse_distance", 1_000_000_000),
        prefetch=_count(zero, "stage3_prefetch_bucket_size", 50_000_000),
        optimizer_on=_place(optimizer, stage, at_least=1),
        parameters_on=_place(parameters, stage, at_least=3),
        pins_optimizer=bool(optimizer.get("pin_memory", True)),
        pins_parameters=bool(parameters.get("pin_memory", True)),
        buffer_count=_count(optimizer, "buffer_count", 4),
        parameter_buffers=_count(parameters, "buffer_count", 5)
        * _count(parameters, "buffer_size", 100_000_000),
        most_in_cpu=_count(parameters, "max_in_cpu", 1_000_000_000),
        state_bytes=_state_bytes(workload),
    )


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _count(section: Mapping[str, Any], key: str, default: int) -> int:
    """Read a number of elements, which may be written as 5e8."""
    value = section.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return default
    return int(value)


def _place(section: Mapping[str, Any], stage: int, *, at_least: int) -> str:
    """Say where what could be offloaded is; below stage 3 NVMe means CPU, as DeepSpeed takes it."""
    device = str(section.get("device", "none"))
    if device not in ("cpu", "nvme") or stage < at_least:
        return "gpu"
    return device if stage == 3 else "cpu"


def _state_bytes(workload: Workload) -> int:
    """Say what the optimizer keeps per parameter: the ds_config's, or else the Trainer's."""
    section = _section(workload.ds_config, "optimizer")
    name = str(section.get("type") or workload.optimizer or "adamw").lower()
    if name == "sgd":
        return 4 if _section(section, "params").get("momentum") else 0
    if "8bit" in name:
        return 2
    known = _OPTIMIZER_NAMES.get(name, name).split("_")[0]
    return OPTIMIZER_BYTES.get(known, 8)
