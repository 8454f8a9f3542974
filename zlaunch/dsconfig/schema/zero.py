"""`zero_optimization`: what is partitioned over the ranks, and what is offloaded."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, Field

from zlaunch.dsconfig.schema.section import (
    OUTDATED,
    Count,
    Fraction,
    MaybeAuto,
    OnDemand,
    Positive,
    Section,
    Whole,
)
from zlaunch.frozen import dataclass

Device = Literal["none", "cpu", "nvme"]
Stage = Whole[Literal[0, 1, 2, 3]]


def _either(name: str, default: object) -> Any:
    """DeepSpeed takes these keys with and without `stage3_`."""
    return Field(default, validation_alias=AliasChoices(f"stage3_{name}", name))


T = TypeVar("T")


@dataclass(frozen=True)
class ReadAt:
    """Stages at which DeepSpeed reads a key and those below it; at other stages it ignores them.

    They follow `DeepSpeedEngine._configure_zero_optimizer` and `zero.Init`.
    """

    stages: frozenset[int]


Partitioned = Annotated[T, ReadAt(frozenset({1, 2, 3}))]
Stages12 = Annotated[T, ReadAt(frozenset({1, 2}))]
Stage3 = Annotated[T, ReadAt(frozenset({3}))]
Unread = Annotated[T, ReadAt(frozenset())]


class _Offload(Section):
    device: MaybeAuto[Device] = "none"
    """Device to offload to; `nvme` needs stage 3."""

    nvme_path: Stage3[MaybeAuto[str] | None] = None
    """Directory on the NVMe drive; required when `device` is `nvme`."""

    pin_memory: bool = True
    """Page-lock host buffers: copies are faster, but the memory cannot be swapped out."""


class OffloadParam(_Offload):
    """Keep the 16-bit parameters on the host or on NVMe between uses (stage 3)."""

    buffer_count: Count = 5
    """Number of staging buffers on the host for NVMe."""

    buffer_size: Count = 100_000_000
    """Elements in one staging buffer; the largest partitioned parameter must fit."""

    max_in_cpu: Count = 1_000_000_000
    """Parameter elements that may stay on the host when `device` is `nvme`."""


class OffloadOptimizer(_Offload):
    """Keep the optimizer states and run its step on the host (stage 1 and up)."""

    buffer_count: Stage3[Count] = 4
    """Staging buffers for NVMe; Adam needs four: parameter, gradient and two moments."""

    pipeline_read: Stage3[bool] = False
    """Read the next tile from NVMe during the update of this one."""

    pipeline_write: Stage3[bool] = False
    """Write the last tile to NVMe during the update of this one."""

    fast_init: Stage3[bool] = False
    """Initialize optimizer states on NVMe without going through a pinned buffer."""

    ratio: Stage3[Fraction] = 1.0
    """Share of the parameters whose step runs on the host; below 1 needs stage 3."""

    super_offload: Stage3[bool] = False
    """Overlap CPU and GPU steps on hosts with a fast CPU-GPU link (CUDA, stage 3)."""

    cpuadam_cores_perc: Stage3[Fraction] = 0.8
    """Share of the cores that the host optimizer may use under `super_offload`."""


class ZenFlow(Section):
    """Stall-free optimizer offload to the CPU: the GPU updates the most important gradients."""

    topk_ratio: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Share of gradient columns updated on the GPU at every step."""

    select_strategy: Literal["auto", "step", "epoch"] = "auto"
    """When the important columns are selected again."""

    select_interval: Literal["auto"] | int = "auto"
    """Steps or epochs between selections."""

    update_interval: Literal["auto"] | Positive = "auto"
    """Steps between host updates."""

    overlap_step: bool = False
    """Overlap the host update with GPU work."""

    offload: bool = False
    """Keep the selected optimizer states on the host as well."""

    auto_ratio: Fraction = 0.99
    """Confidence required for the automatic interval."""

    full_warm_up_rounds: int = 0
    """Rounds at the start in which everything is updated."""

    pt_reserved_cores_perc: Fraction = 0.5
    """Share of the cores kept for PyTorch."""

    steps_per_epoch: int | None = None
    """Required when `select_strategy` is `epoch`."""


class LeafModule(Section):
    """Modules that stage 3 gathers as a whole, such as MoE blocks."""

    classes: list[str] = [
        "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
        "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
        "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
    ]
    """Class names."""

    names: list[str] = []
    """Full module names."""

    name_suffixes: list[str] = []
    """Suffixes of module names."""


class Zero(Section):
    """What is partitioned over the ranks, and what is offloaded."""

    stage: Annotated[MaybeAuto[Stage], ReadAt(frozenset({0, 1, 2, 3}))] = 0
    """0: plain data parallel; 1: optimizer states partitioned; 2: gradients too; 3: parameters too."""

    contiguous_gradients: Partitioned[bool] = True
    """Copy gradients into one buffer as they are produced, to reduce fragmentation."""

    reduce_scatter: Partitioned[bool] = True
    """Stage 3: reduce gradients to their owner only. Stages 1 and 2 all-reduce whole buckets by default."""

    reduce_bucket_size: Partitioned[MaybeAuto[Positive]] = 500_000_000
    """Gradient elements reduced at once; larger is faster only up to a point, and takes more GPU memory."""

    use_multi_rank_bucket_allreduce: Stages12[bool] = True
    """Reduce buckets that belong to several ranks in one call (stages 1 and 2)."""

    allgather_partitions: Unread[Annotated[bool, OUTDATED]] = True
    """Ignored: updated parameters are always gathered with all-gather."""

    allgather_bucket_size: Stages12[Count] = 500_000_000
    """Parameter elements gathered at once after the step (stages 1 and 2); must be even."""

    overlap_comm: Partitioned[bool | None] = None
    """Overlap gradient reduction with the backward pass."""

    compute_grad_norm: Stages12[bool] = True
    """Compute the global gradient norm; off needs stage 1 or 2 and `gradient_clipping` 0."""

    load_from_fp32_weights: Partitioned[bool] = True
    """On load, restore the 16-bit weights from the master weights in fp32."""

    elastic_checkpoint: Stages12[bool] = False
    """Save merged optimizer states, to resume on another number of ranks (stages 1 and 2)."""

    offload_param: Stage3[OnDemand[OffloadParam] | None] = None
    offload_optimizer: Partitioned[OnDemand[OffloadOptimizer] | None] = None
    zenflow: Partitioned[OnDemand[ZenFlow] | None] = None

    sub_group_size: Stage3[Count] = 1_000_000_000
    """Parameter elements whose optimizer step is done at once (stage 3)."""

    cpu_offload_param: Stage3[Annotated[bool | None, OUTDATED]] = None
    """Old name of `offload_param`."""

    cpu_offload_use_pin_memory: Unread[Annotated[bool | None, OUTDATED]] = None
    """Old name of `pin_memory` in the offload sections."""

    cpu_offload: Partitioned[Annotated[bool | None, OUTDATED]] = None
    """Old name of `offload_optimizer`."""

    stage3_prefetch_bucket_size: Stage3[MaybeAuto[Count]] = _either("prefetch_bucket_size", 50_000_000)
    """Parameter elements fetched ahead of their use (stage 3)."""

    stage3_param_persistence_threshold: Stage3[MaybeAuto[Count]] = _either(
        "param_persistence_threshold", 100_000
    )
    """Parameters with fewer elements are never partitioned (stage 3)."""

    stage3_model_persistence_threshold: Stage3[Count] = _either("model_persistence_threshold", sys.maxsize)
    """Most elements that may stay unpartitioned in the whole model (stage 3)."""

    stage3_max_live_parameters: Stage3[Count] = _either("max_live_parameters", 1_000_000_000)
    """Most gathered parameter elements on a GPU at a time (stage 3)."""

    stage3_max_reuse_distance: Stage3[Count] = _either("max_reuse_distance", 1_000_000_000)
    """Keep a parameter gathered if it is used again within so many elements (stage 3)."""

    stage3_gather_16bit_weights_on_model_save: Stage3[MaybeAuto[bool]] = _either(
        "gather_16bit_weights_on_model_save", False
    )
    """Gather the whole model on rank 0 when it is saved; without it a saved model is empty (stage 3)."""

    stage3_module_granularity_threshold: Stage3[int] = _either("module_granularity_threshold", 0)
    """Treat modules smaller than this as leaves (stage 3)."""

    stage3_use_all_reduce_for_fetch_params: Stage3[bool] = _either("use_all_reduce_for_fetch_params", False)
    """Gather parameters with all-reduce, for interconnects on which that is faster (stage 3)."""

    stage3_allgather_sequential: Stage3[bool] = _either("allgather_sequential", False)
    """Gather one parameter after another (stage 3)."""

    stage3_gather_fp16_weights_on_model_save: Stage3[Annotated[bool, OUTDATED]] = False
    """Old name of `stage3_gather_16bit_weights_on_model_save`."""

    ignore_unused_parameters: Stages12[bool] = True
    """Allow parameters without gradients (stages 1 and 2)."""

    legacy_stage1: Partitioned[Annotated[bool, OUTDATED]] = False
    """Removed: DeepSpeed refuses `true`."""

    round_robin_gradients: Stages12[bool] = False
    """Spread gradient copies to the host over the ranks (stages 1 and 2)."""

    parameter_alignment: Stages12[bool] = False
    """Align each parameter in the flat buffers (stages 1 and 2)."""

    zero_hpz_partition_size: Stage3[Count] = 1
    """Ranks that share a secondary partition of the parameters (ZeRO++, stage 3)."""

    zero_quantized_weights: Stage3[bool] = False
    """Gather parameters quantized to 8 bits (ZeRO++, stage 3, CUDA)."""

    zero_quantized_nontrainable_weights: Stage3[bool] = False
    """Keep frozen parameters quantized (ZeRO++, stage 3, CUDA)."""

    zero_quantized_gradients: Stage3[bool] = False
    """Reduce gradients quantized (ZeRO++, stage 3, CUDA)."""

    memory_efficient_linear: Stage3[bool] = True
    """Use a linear layer that does not keep the gathered weight for backward (stage 3)."""

    pipeline_loading_checkpoint: Stage3[bool] = False
    """Load checkpoints one rank after another, to save host memory (stage 3)."""

    override_module_apply: Stage3[bool] = True
    """Let `Module.apply` see gathered parameters (stage 3)."""

    log_trace_cache_warnings: Stage3[bool] = False
    """Warn when the order of modules changes and prefetching restarts (stage 3)."""

    enable_sanity_checks: Stage3[bool] = False
    """Check internal invariants at every step; slow (stage 3)."""

    save_muon_momentum_buffer_in_memory: Stage3[bool] = False
    """Keep Muon's momentum buffers in memory (stage 3 with offload)."""

    leaf_module: Stage3[OnDemand[LeafModule]] = LeafModule.model_construct()

    @property
    def offloads(self) -> Mapping[str, OffloadOptimizer | OffloadParam]:
        """The offload sections in use, including their old names."""
        optimizer = self.offload_optimizer or (OffloadOptimizer(device="cpu") if self.cpu_offload else None)
        param = self.offload_param or (OffloadParam(device="cpu") if self.cpu_offload_param else None)
        sections = {"offload_optimizer": optimizer, "offload_param": param}
        return {
            key: section for key, section in sections.items() if section and section.device in ("cpu", "nvme")
        }
