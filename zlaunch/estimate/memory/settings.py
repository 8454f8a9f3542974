"""The settings of a job that the formulas use: ds_config keys, with the schema's defaults.

The ds_config has no "auto" any more; a value of a type that DeepSpeed does not read counts as absent.
"""

from collections.abc import Mapping
from typing import Final

from zlaunch.dsconfig.batch import RankGroups
from zlaunch.dsconfig.schema.section import Section
from zlaunch.dsconfig.schema.zero import OffloadOptimizer, OffloadParam, Zero
from zlaunch.estimate.memory.activations import Batch
from zlaunch.estimate.memory.model_states import MASTER_BYTES, ModelStates, optimizer_bytes
from zlaunch.estimate.memory.weights import Weights, weights_of
from zlaunch.estimate.workload import Workload
from zlaunch.frozen import dataclass
from zlaunch.job.transformer import Transformer, read_transformer
from zlaunch.units import whole

_ITEM_BYTES: Final = {"fp32": 4, "fp16": 2, "bf16": 2, "bfloat16": 2}


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
    """Whether the model is sharded while it is created."""
    groups: RankGroups
    rank: int
    micro_batch: int
    accumulation: int
    reduce_bucket: int
    reduces_to_all: bool
    """Whether every rank gets all reduced gradients at stages 1 and 2."""
    num_buckets: int
    """Two where communication overlaps with the backward pass."""
    sub_group: int
    reuse_distance: int
    prefetch: int
    optimizer_on: str
    """`gpu`, `cpu` or `nvme`."""
    parameters_on: str
    pins_optimizer: bool
    buffer_count: int
    parameter_buffers: int
    """Elements in all buffers for parameters that move to and from NVMe."""
    most_in_cpu: int
    """Elements of parameters that stay in host memory beside NVMe."""
    state_bytes: int
    """Bytes the optimizer keeps for a parameter, without its fp32 copy."""

    @property
    def is_half(self) -> bool:
        """Whether parameters are trained in bf16 or fp16."""
        return self.item == 2

    @property
    def per_parameter(self) -> ModelStates:
        """Bytes of the model states of a parameter."""
        optimizer = self.state_bytes
        if self.is_half:
            optimizer += MASTER_BYTES
        return ModelStates(self.item, self.gradient_item, optimizer)

    @property
    def widens_all(self) -> bool:
        """Whether an fp32 copy of all gradients is kept, as BF16_Optimizer does at stage 1."""
        widened = self.is_bf16 and self.gradient_item == 4
        return self.stage == 1 and widened and self.optimizer_on == "gpu"

    @property
    def bucket_bytes(self) -> int:
        """Bytes of the reduction buckets; stage 3 has permanent ones, counted elsewhere."""
        if self.stage not in (1, 2) or self.widens_all:
            return 0
        item = self.item
        if self.stage == 1:
            item = self.gradient_item
        return item * self.reduce_bucket * self.num_buckets

    def share(self, numel: int) -> int:
        """Elements of a rank's share, padding included."""
        return -(-numel // self.groups.zero)


def read_settings(workload: Workload) -> Settings:
    """Read a workload's ds_config."""
    config = workload.ds_config
    zero = _section(config, "zero_optimization")
    stage = whole(zero.get("stage")) or 0
    bf16 = bool(_section(config, "bf16").get("enabled") or _section(config, "bfloat16").get("enabled"))
    item = 4
    if bf16 or _section(config, "fp16").get("enabled"):
        item = 2
    accumulated = _section(config, "data_types").get("grad_accum_dtype")
    optimizer, parameters = _section(zero, "offload_optimizer"), _section(zero, "offload_param")
    num_buckets = 1
    if zero.get("overlap_comm") and stage in (1, 2):
        num_buckets = 2
    buffer_count = _count(parameters, OffloadParam, "buffer_count")
    return Settings(
        stage=stage,
        item=item,
        gradient_item=_ITEM_BYTES.get(str(accumulated), item),
        is_bf16=bf16,
        zero_init=workload.zero_init and stage == 3,
        groups=workload.groups,
        rank=workload.rank,
        micro_batch=whole(config.get("train_micro_batch_size_per_gpu")) or 1,
        accumulation=whole(config.get("gradient_accumulation_steps")) or 1,
        reduce_bucket=_count(zero, Zero, "reduce_bucket_size"),
        reduces_to_all=zero.get("use_multi_rank_bucket_allreduce") is not False,
        num_buckets=num_buckets,
        sub_group=_count(zero, Zero, "sub_group_size"),
        reuse_distance=_count(zero, Zero, "stage3_max_reuse_distance"),
        prefetch=_count(zero, Zero, "stage3_prefetch_bucket_size"),
        optimizer_on=_device_of(optimizer, stage, at_least=1),
        parameters_on=_device_of(parameters, stage, at_least=3),
        pins_optimizer=bool(optimizer.get("pin_memory", _schema_default(OffloadOptimizer, "pin_memory"))),
        buffer_count=_count(optimizer, OffloadOptimizer, "buffer_count"),
        parameter_buffers=buffer_count * _count(parameters, OffloadParam, "buffer_size"),
        most_in_cpu=_count(parameters, OffloadParam, "max_in_cpu"),
        state_bytes=_state_bytes(workload),
    )


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A workload, read."""

    workload: Workload
    model: Transformer
    settings: Settings
    weights: Weights
    batch: Batch


def read_job(workload: Workload) -> TrainingJob:
    """Read a workload; raise Refused if its config.json has no sizes."""
    model, settings = read_transformer(workload.model), read_settings(workload)
    if settings.groups.layers > 1:
        model = model.shared_by(settings.groups.layers)
    seq_len = -(-workload.seq_len // settings.groups.sequences)
    batch = Batch(settings.micro_batch, seq_len, settings.item, workload.attention)
    return TrainingJob(workload, model, settings, weights_of(model, workload.lora), batch)


def _section(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = config.get(name)
    if not isinstance(section, Mapping):
        return {}
    return section


def _schema_default(schema: type[Section], key: str) -> object:
    return schema.model_fields[key].default


def _count(section: Mapping[str, object], schema: type[Section], key: str) -> int:
    """Read a number of elements, which may be written as 5e8."""
    for value in (section.get(key), _schema_default(schema, key)):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return int(value)
    raise TypeError(f"the schema has no number for `{key}`")


def _device_of(section: Mapping[str, object], stage: int, *, at_least: int) -> str:
    """Return where states are; below stage 3 DeepSpeed takes NVMe as CPU."""
    device = str(section.get("device", "none"))
    if device not in ("cpu", "nvme") or stage < at_least:
        return "gpu"
    if stage < 3:
        return "cpu"
    return device


def optimizer_name(workload: Workload) -> str:
    """Return the name of the optimizer: the ds_config's, or else the Trainer's."""
    return str(_section(workload.ds_config, "optimizer").get("type") or workload.optimizer or "adamw")


def _state_bytes(workload: Workload) -> int:
    """Return what the optimizer keeps per parameter."""
    section, name = _section(workload.ds_config, "optimizer"), optimizer_name(workload).lower()
    if name == "sgd" and _section(section, "params").get("momentum"):
        name = "momentum"
    return optimizer_bytes(name)
