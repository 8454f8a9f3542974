"""At which stages, and under which switch, DeepSpeed reads a key; otherwise it ignores it.

The stages follow `DeepSpeedEngine._configure_zero_optimizer` and `zero.Init`.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from zlaunch.dsconfig.text.document import dotted

ZERO = "zero_optimization"
Part = TypeVar("Part", bound=str | int)

_NOWHERE: frozenset[int] = frozenset()
_PARTITIONED = frozenset({1, 2, 3})
_LOWER = frozenset({1, 2})
_THREE = frozenset({3})

READ_AT: Mapping[str, frozenset[int]] = {
    "stage": frozenset({0, 1, 2, 3}),
    **dict.fromkeys(
        (
            "contiguous_gradients",
            "cpu_offload",
            "legacy_stage1",
            "load_from_fp32_weights",
            "offload_optimizer",
            "overlap_comm",
            "reduce_bucket_size",
            "reduce_scatter",
            "zenflow",
        ),
        _PARTITIONED,
    ),
    **dict.fromkeys(
        (
            "allgather_bucket_size",
            "compute_grad_norm",
            "elastic_checkpoint",
            "ignore_unused_parameters",
            "parameter_alignment",
            "round_robin_gradients",
            "use_multi_rank_bucket_allreduce",
        ),
        _LOWER,
    ),
    **dict.fromkeys(
        (
            "cpu_offload_param",
            "enable_sanity_checks",
            "leaf_module",
            "log_trace_cache_warnings",
            "memory_efficient_linear",
            "offload_optimizer.buffer_count",
            "offload_optimizer.cpuadam_cores_perc",
            "offload_optimizer.fast_init",
            "offload_optimizer.nvme_path",
            "offload_optimizer.pipeline_read",
            "offload_optimizer.pipeline_write",
            "offload_optimizer.ratio",
            "offload_optimizer.super_offload",
            "offload_param",
            "override_module_apply",
            "pipeline_loading_checkpoint",
            "save_muon_momentum_buffer_in_memory",
            "stage3_allgather_sequential",
            "stage3_gather_16bit_weights_on_model_save",
            "stage3_gather_fp16_weights_on_model_save",
            "stage3_max_live_parameters",
            "stage3_max_reuse_distance",
            "stage3_model_persistence_threshold",
            "stage3_module_granularity_threshold",
            "stage3_param_persistence_threshold",
            "stage3_prefetch_bucket_size",
            "stage3_use_all_reduce_for_fetch_params",
            "sub_group_size",
            "zero_hpz_partition_size",
            "zero_quantized_gradients",
            "zero_quantized_nontrainable_weights",
            "zero_quantized_weights",
        ),
        _THREE,
    ),
    **dict.fromkeys(("allgather_partitions", "cpu_offload_use_pin_memory"), _NOWHERE),
}
"""Key, dotted below `zero_optimization` → the stages that read it; deeper keys are like theirs."""


def stages_reading(key: str) -> frozenset[int]:
    """Find the stages that read a dotted key below `zero_optimization`; raise KeyError if unknown."""
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        if (name := ".".join(parts[:end])) in READ_AT:
            return READ_AT[name]
    raise KeyError(key)


OFF_BY_DEFAULT: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "autotuning",
            "bf16",
            "bfloat16",
            "comet",
            "comms_logger",
            "csv_monitor",
            "data_efficiency",
            "data_efficiency.data_routing",
            "data_efficiency.data_routing.random_ltd",
            "data_efficiency.data_sampling",
            "data_efficiency.data_sampling.curriculum_learning",
            "data_efficiency.data_sampling.dynamic_batching",
            "expert_parallel",
            "flops_profiler",
            "fp16",
            "hybrid_engine",
            "tensorboard",
            "torch_autocast",
            "wandb",
        ),
        "enabled",
    ),
    "compile": "deepcompile",
}
"""Section → the key that turns it on."""

SWITCHES: Mapping[str, str] = {
    **OFF_BY_DEFAULT,
    "timers.throughput": "enabled",
    "weight_quantization": "enabled",
}
"""Section → the key that turns it on or off."""


def switches_over(path: tuple[Part, ...]) -> Iterator[tuple[Part | str, ...]]:
    """List the switches of the sections around a key, outermost first; a switch is not its own."""
    for end in range(1, len(path)):
        key = SWITCHES.get(dotted(path[:end]))
        if key is not None and (*path[:end], key) != path:
            yield *path[:end], key
