"""Effects of keys on memory and speed.

Sources: measurements of DeepSpeed 0.19 (allocations per stage, on the device and on the host), its source,
and the ZeRO papers. P is the number of parameters, N the number of ranks; 16-bit training with Adam
unless stated otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zlaunch.dsconfig.schema.section import ZERO


@dataclass(frozen=True)
class KeyEffect:
    """The effect of a key on memory and speed, and related keys."""

    memory: str
    speed: str
    related: tuple[str, ...] = ()
    """Dotted keys, from the top."""
    example: object = None
    """A typical value; None to derive one from the type."""


def _zero(*keys: str) -> tuple[str, ...]:
    return tuple(f"{ZERO}.{key}" for key in keys)


_NONE = "none"
_PINNED = "pinned buffers are rounded up to a power of two, never swapped out, and never freed"

_OF_ZERO: Mapping[str, KeyEffect] = {
    "stage": KeyEffect(
        "bytes per parameter on each GPU: 14 and the gradients at stage 0; 2 + 12/N and the gradients at 1; "
        "2 + 14/N at 2; 16/N at 3; in addition buckets, and temporary memory of the step",
        "stages 1 and 2 send as much as plain data parallelism, stage 3 50 % more",
        _zero("offload_optimizer", "offload_param", "reduce_bucket_size"),
        3,
    ),
    "contiguous_gradients": KeyEffect(
        "one buffer for the gradients instead of many: less fragmentation; always on with optimizer offload",
        "one more copy of each gradient",
        _zero("reduce_bucket_size", "overlap_comm"),
    ),
    "reduce_scatter": KeyEffect(
        _NONE,
        "each rank receives only its own part: less traffic than all-reduce; Muon at stage 3 needs it off",
        ("gradient_predivide_factor", "prescale_gradients", *_zero("reduce_bucket_size")),
    ),
    "reduce_bucket_size": KeyEffect(
        "2 bytes per element, 4 with `overlap_comm`, and about as much again while a bucket is reduced; "
        "at stage 3 the buffer is permanent. It does not shrink for small models: below 500 M parameters "
        "the default is larger than the model",
        "fewer, larger messages: better use of the network, later overlap",
        _zero("overlap_comm", "allgather_bucket_size", "stage3_prefetch_bucket_size"),
        50_000_000,
    ),
    "allgather_bucket_size": KeyEffect(
        "a buffer for this many elements of updated parameters after the step",
        "fewer, larger messages",
        _zero("reduce_bucket_size"),
        200_000_000,
    ),
    "overlap_comm": KeyEffect(
        "a second bucket: 2 bytes per element of `reduce_bucket_size` (stages 1 and 2)",
        "gradients are reduced during the backward pass",
        _zero("reduce_bucket_size", "contiguous_gradients"),
    ),
    "compute_grad_norm": KeyEffect(
        "off saves the temporary 64-bit copy for the norm: 8 bytes per element of the largest gradient on "
        "a rank",
        "off saves one pass over the gradients and one reduction",
        ("gradient_clipping",),
    ),
    "round_robin_gradients": KeyEffect(
        _NONE,
        "with optimizer offload, ranks copy different gradients to the host at the same time",
        _zero("offload_optimizer.device"),
    ),
    "ignore_unused_parameters": KeyEffect(_NONE, "off raises an error if a parameter gets no gradient"),
    "elastic_checkpoint": KeyEffect(
        "merged states while a checkpoint is saved", "slower checkpoints", ("checkpoint.load_universal",)
    ),
    "sub_group_size": KeyEffect(
        "the step takes about 6 temporary bytes per element of the largest group, so smaller groups lower "
        "the peak; with NVMe it sets the size of the swap buffers on the host",
        "many small groups make the step slower",
        _zero("offload_optimizer.device", "offload_optimizer.buffer_count"),
        100_000_000,
    ),
    "stage3_prefetch_bucket_size": KeyEffect(
        "up to 2 bytes per element for prefetched parameters",
        "if it is too small, layers wait for their parameters",
        _zero("stage3_max_live_parameters", "stage3_max_reuse_distance"),
        50_000_000,
    ),
    "stage3_param_persistence_threshold": KeyEffect(
        "smaller parameters, such as norms and biases, stay whole on every rank; they take little memory",
        "avoids many small gathers, which are dominated by latency",
        _zero("stage3_model_persistence_threshold"),
        100_000,
    ),
    "stage3_model_persistence_threshold": KeyEffect(
        "a limit for all parameters that stay whole",
        _NONE,
        _zero("stage3_param_persistence_threshold"),
        1_000_000,
    ),
    "stage3_max_live_parameters": KeyEffect(
        "a limit for prefetching; nothing is allocated for it",
        "if it is too low, nothing is prefetched",
        _zero("stage3_prefetch_bucket_size", "stage3_max_reuse_distance"),
        500_000_000,
    ),
    "stage3_max_reuse_distance": KeyEffect(
        "parameters needed again soon stay gathered: with the default, about 2 GB from the second step on",
        "0 gathers them again in the backward pass",
        _zero("stage3_max_live_parameters", "stage3_prefetch_bucket_size"),
        0,
    ),
    "stage3_gather_16bit_weights_on_model_save": KeyEffect(
        "the whole model in 16 bits on the host of rank 0 while it is saved: 2 bytes per parameter",
        "slower saving; without it, `zero_to_fp32.py` must merge the model afterwards",
        ("checkpoint.load_universal",),
        True,
    ),
    "stage3_module_granularity_threshold": KeyEffect(
        "smaller modules are gathered as a whole",
        "fewer hooks in models of many tiny modules",
        _zero("leaf_module"),
    ),
    "leaf_module": KeyEffect(
        "all parameters of a block, such as all experts, are gathered at once",
        "one gather instead of many; required if ranks take different paths through a block",
        _zero("stage3_module_granularity_threshold"),
    ),
    "memory_efficient_linear": KeyEffect(
        "the gathered weight of a linear layer is not kept for the backward pass", _NONE
    ),
    "pipeline_loading_checkpoint": KeyEffect(
        "ranks load their checkpoints one after another, not all at once", "slower loading"
    ),
    "enable_sanity_checks": KeyEffect(_NONE, "slow: checks at every step"),
    "zero_hpz_partition_size": KeyEffect(
        "a second copy of the parameters, partitioned over this many ranks: 2P bytes divided by the number",
        "the backward pass gathers within a host; set it to the number of GPUs per host",
        _zero("zero_quantized_weights", "zero_quantized_gradients"),
        8,
    ),
    "zero_quantized_weights": KeyEffect(
        "buffers for the quantized parameters",
        "gathers send 8 bits instead of 16; not together with `torch_autocast`",
        ("torch_autocast.enabled", *_zero("zero_hpz_partition_size", "zero_quantized_gradients")),
    ),
    "zero_quantized_gradients": KeyEffect(
        "buffers for the quantized gradients",
        "reductions send fewer bits, with less precision",
        _zero("zero_quantized_weights", "zero_hpz_partition_size"),
    ),
    "zero_quantized_nontrainable_weights": KeyEffect(
        "frozen parameters stay quantized, as for adapters on a large model",
        "they are dequantized at each use",
        _zero("zero_quantized_weights"),
    ),
    "offload_param": KeyEffect(
        "moves 2P/N bytes from each GPU to pinned host memory, or to a drive; the GPU keeps gathered layers "
        "and buckets",
        "every layer is read over PCIe, or from the drive, twice per step",
        _zero("offload_param.device", "offload_optimizer.device", "sub_group_size"),
    ),
    "offload_param.device": KeyEffect(
        "`cpu`: 2 pinned bytes per parameter of the rank. `nvme`: staging buffers on the host, 2 bytes per "
        "parameter on the drive",
        "`none` is fastest, then `cpu`, then `nvme`",
        _zero("offload_param.nvme_path", "offload_param.buffer_size", "offload_optimizer.device"),
        "cpu",
    ),
    "offload_param.nvme_path": KeyEffect(
        "files with 2 bytes per parameter; they are never removed, and two jobs must not share a directory",
        "limited by the drive",
        ("aio", *_zero("offload_param.device")),
        "/local_nvme",
    ),
    "offload_param.buffer_count": KeyEffect(
        "`buffer_count` x `buffer_size` x 2 bytes on the host, twice as much during initialization",
        "with too few, the run fails if layers need more at once: Llama 3 8B fails with 5 and runs with 20",
        _zero("offload_param.buffer_size"),
        20,
    ),
    "offload_param.buffer_size": KeyEffect(
        "`buffer_count` x `buffer_size` x 2 bytes on the host",
        "the largest parameter of a rank must fit; otherwise the job fails at start",
        _zero("offload_param.buffer_count", "offload_param.max_in_cpu"),
        300_000_000,
    ),
    "offload_param.max_in_cpu": KeyEffect(
        "this many elements stay on the host instead of the drive",
        "elements on the host are not read from the drive",
        _zero("offload_param.device"),
    ),
    "offload_param.pin_memory": KeyEffect(
        _PINNED, "copies to the GPU are faster and overlap", _zero("offload_param.device")
    ),
    "offload_optimizer": KeyEffect(
        "saves 12 bytes per parameter of a rank on the GPU; takes about 18 on the host, or 20 at stage 3 "
        "with `offload_param`",
        "the step runs on the CPU, and gradients and parameters are copied over PCIe once per step",
        _zero("offload_optimizer.device", "offload_param.device", "round_robin_gradients"),
    ),
    "offload_optimizer.device": KeyEffect(
        "`cpu`: see `offload_optimizer`; initialization takes more than training. `nvme`: 16 bytes per "
        "parameter on the drive, and swap buffers on the host; below stage 3 it is the same as `cpu`",
        "`none` is fastest, then `cpu`, then `nvme`",
        _zero("offload_optimizer.nvme_path", "offload_optimizer.pin_memory", "sub_group_size"),
        "cpu",
    ),
    "offload_optimizer.nvme_path": KeyEffect(
        "files with 16 bytes per parameter; they are never removed",
        "limited by the drive",
        ("aio", *_zero("offload_optimizer.device")),
        "/local_nvme",
    ),
    "offload_optimizer.buffer_count": KeyEffect(
        "`buffer_count` x 4 bytes per element of the largest parameter group, on the host",
        "Adam needs four; with fewer, the first step fails",
        _zero("sub_group_size", "offload_optimizer.device"),
        4,
    ),
    "offload_optimizer.pin_memory": KeyEffect(
        _PINNED, "copies between host and GPU are faster and overlap", _zero("offload_optimizer.device")
    ),
    "offload_optimizer.pipeline_read": KeyEffect(
        "more swap buffers in use at once",
        "reading overlaps with the step",
        _zero("offload_optimizer.pipeline_write", "offload_optimizer.buffer_count"),
    ),
    "offload_optimizer.pipeline_write": KeyEffect(
        "more swap buffers in use at once",
        "writing overlaps with the step",
        _zero("offload_optimizer.pipeline_read", "offload_optimizer.buffer_count"),
    ),
    "offload_optimizer.fast_init": KeyEffect(
        "no pinned buffer during initialization", "a faster start on NVMe", _zero("offload_optimizer.device")
    ),
    "offload_optimizer.ratio": KeyEffect(
        "this share of the states is on the host, the rest on the GPU",
        "the GPU updates its share at the same time as the CPU",
        _zero("offload_optimizer.device"),
        0.5,
    ),
    "offload_optimizer.super_offload": KeyEffect(
        "same as optimizer offload",
        "host and GPU steps overlap; for hosts with a fast link to the GPU",
        _zero("offload_optimizer.cpuadam_cores_perc"),
    ),
    "zenflow": KeyEffect(
        "the important gradients and their states stay on the GPU",
        "the GPU does not wait for the step on the host",
        _zero("zenflow.topk_ratio", "offload_optimizer.device"),
    ),
    "zenflow.topk_ratio": KeyEffect(
        "more columns mean more states on the GPU", "more is updated at every step", _zero("zenflow"), 0.05
    ),
}
"""Effects of the keys below `zero_optimization`."""

EFFECTS: Mapping[str, KeyEffect] = {
    **{f"{ZERO}.{key}": effect for key, effect in _OF_ZERO.items()},
    "train_batch_size": KeyEffect(
        "none; only the micro-batch matters",
        "fewer optimizer steps for the same samples",
        ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        64,
    ),
    "train_micro_batch_size_per_gpu": KeyEffect(
        "activations and logits grow with it",
        "larger micro-batches use the GPU better",
        ("train_batch_size", "gradient_accumulation_steps"),
        4,
    ),
    "gradient_accumulation_steps": KeyEffect(
        "gradients stay in memory between the passes; with optimizer offload at stage 2, values above 1 take "
        "2 more bytes per parameter of a rank on the host",
        "more passes share one optimizer step and one copy to the host",
        ("train_batch_size", "data_types.grad_accum_dtype"),
        8,
    ),
    "gradient_clipping": KeyEffect(
        "the norm is computed in 64 bits: 8 temporary bytes per element of the largest gradient on a rank",
        "one pass over the gradients and one small reduction",
        ("zero_optimization.compute_grad_norm",),
        1.0,
    ),
    "optimizer": KeyEffect(
        "Adam in 16-bit training keeps 12 bytes per parameter: master weight and two moments",
        "DeepSpeed compiles its own optimizers on first use; with this section, all parameters are decayed",
        ("optimizer.type", "zero_optimization.offload_optimizer"),
    ),
    "optimizer.type": KeyEffect(
        "Adam keeps two moments per parameter, Lion one, SGD none without momentum",
        "DeepSpeed has its own Adam, Adagrad and Lion for the host",
        ("optimizer.params.torch_adam", "zero_allow_untested_optimizer"),
        "AdamW",
    ),
    "optimizer.params.torch_adam": KeyEffect(
        _NONE, "nothing is compiled; slow on the host", ("optimizer.type",), True
    ),
    "optimizer.params.fp32_optimizer_states": KeyEffect(
        "off halves the moments on the host",
        "less data to move",
        ("zero_optimization.offload_optimizer.device",),
        False,
    ),
    "scheduler": KeyEffect(_NONE, _NONE, ("scheduler.type", "optimizer.params.lr")),
    "zero_allow_untested_optimizer": KeyEffect(
        "depends on the optimizer",
        "depends on the optimizer; the Trainer turns it on",
        ("optimizer.type",),
        True,
    ),
    "zero_force_ds_cpu_optimizer": KeyEffect(
        _NONE,
        "off accepts PyTorch's optimizers on the host, which are much slower there",
        ("zero_optimization.offload_optimizer.device",),
        False,
    ),
    "fp16.enabled": KeyEffect(
        "2 bytes instead of 4 for weights, gradients and activations; fp32 master weights stay",
        "fast on GPUs from Volta on; steps that overflow are skipped",
        ("bf16.enabled", "fp16.loss_scale"),
        True,
    ),
    "fp16.loss_scale": KeyEffect(
        _NONE, "with a fixed scale, each overflow skips a step", ("fp16.initial_scale_power",), 0
    ),
    "fp16.initial_scale_power": KeyEffect(
        _NONE, "if it is too high, the first steps are skipped until the scale fits", ("fp16.hysteresis",), 12
    ),
    "fp16.loss_scale_window": KeyEffect(
        _NONE,
        "a shorter window tries a larger scale more often; each overflow skips a step",
        ("fp16.hysteresis",),
    ),
    "fp16.hysteresis": KeyEffect(
        _NONE,
        "more steps are skipped before the scale is halved",
        ("fp16.loss_scale_window",),
    ),
    "fp16.fp16_master_weights_and_grads": KeyEffect(
        "2 bytes less per master weight and gradient, on the host",
        "less data to move",
        ("bf16.bf16_master_weights_and_grads",),
    ),
    "bf16.enabled": KeyEffect(
        "2 bytes instead of 4 for weights, gradients and activations; fp32 master weights stay",
        "fast on GPUs from Ampere on; no loss scale, no skipped steps",
        ("fp16.enabled", "data_types.grad_accum_dtype"),
        True,
    ),
    "bf16.immediate_grad_update": KeyEffect(
        "16-bit gradients are not kept in addition to the fp32 ones",
        "gradients are added as they are produced",
        ("data_types.grad_accum_dtype",),
    ),
    "bf16.check_grad_overflow": KeyEffect(
        _NONE,
        "one check of the gradients per step; off also applies steps with infinite gradients",
        ("gradient_clipping",),
    ),
    "bf16.bf16_master_weights_and_grads": KeyEffect(
        "2 bytes instead of 4 per master weight, with less precision",
        "less data to move",
        ("bf16.bf16_optimizer_states",),
    ),
    "bf16.bf16_optimizer_states": KeyEffect(
        "the two moments take 4 bytes per parameter instead of 8",
        "less data to move",
        ("bf16.bf16_master_weights_and_grads",),
    ),
    "data_types.grad_accum_dtype": KeyEffect(
        "`fp32` adds 2 bytes per gradient of the rank at stages 2 and 3; at stage 1 with bf16 another "
        "optimizer is used, which keeps 4 bytes for every parameter and doubles the peak",
        "accumulation in 16 bits loses small gradients over many passes",
        ("gradient_accumulation_steps", "bf16.immediate_grad_update"),
        "fp32",
    ),
    "communication_data_type": KeyEffect(
        "`fp32` makes buckets twice as large",
        "`fp32` sends twice as much",
        ("gradient_predivide_factor",),
        "fp32",
    ),
    "prescale_gradients": KeyEffect(_NONE, _NONE, ("gradient_predivide_factor",)),
    "gradient_predivide_factor": KeyEffect(
        _NONE, "none; it keeps fp16 sums in range", ("prescale_gradients", "zero_optimization.reduce_scatter")
    ),
    "torch_autocast.enabled": KeyEffect(
        "weights stay in fp32: 4 bytes per parameter",
        "matrix products run in 16 bits",
        ("torch_autocast.dtype", "bf16.enabled"),
        True,
    ),
    "activation_checkpointing": KeyEffect(
        "only the inputs of blocks are kept; the Trainer has its own switch, `--activation_checkpointing`",
        "one more forward pass: about a third more work",
        ("activation_checkpointing.cpu_checkpointing", "activation_checkpointing.partition_activations"),
    ),
    "activation_checkpointing.cpu_checkpointing": KeyEffect(
        "kept activations are moved to the host",
        "they are copied over PCIe twice",
        ("activation_checkpointing.partition_activations",),
    ),
    "activation_checkpointing.partition_activations": KeyEffect(
        "kept activations are partitioned over the model-parallel ranks",
        "they are gathered in the backward pass",
    ),
    "aio": KeyEffect("negligible", "speed of NVMe offload", ("aio.queue_depth",)),
    "aio.block_size": KeyEffect(
        "smaller tensors, and those below 1 MiB, are not swapped",
        "larger requests suit most drives",
        ("aio.queue_depth",),
    ),
    "aio.queue_depth": KeyEffect(
        "more requests in flight",
        "drives are fast only with many requests",
        ("aio.block_size", "aio.intra_op_parallelism"),
        32,
    ),
    "aio.intra_op_parallelism": KeyEffect(
        "one set of requests per thread", "one thread may not saturate a fast drive", ("aio.queue_depth",), 4
    ),
    "aio.single_submit": KeyEffect(_NONE, "on: one system call per request", ("aio.overlap_events",)),
    "aio.overlap_events": KeyEffect(
        _NONE, "off: each batch waits for the previous one", ("aio.single_submit",)
    ),
    "aio.use_gds": KeyEffect(
        "no staging buffers on the host",
        "direct transfers between drive and GPU",
        ("zero_optimization.offload_param.device",),
    ),
    "wall_clock_breakdown": KeyEffect(_NONE, "slow: each timer synchronizes the GPU; for profiling only"),
    "memory_breakdown": KeyEffect(_NONE, "prints in every phase"),
    "flops_profiler.enabled": KeyEffect(
        _NONE,
        "one slow step; also turns on `wall_clock_breakdown` for all steps",
        ("flops_profiler.profile_step",),
        True,
    ),
    "comms_logger.enabled": KeyEffect(
        _NONE, "each collective is timed on its own", ("comms_logger.prof_all",), True
    ),
    "steps_per_print": KeyEffect(_NONE, "negligible; the Trainer turns it off"),
    "disable_python_gc": KeyEffect(
        "garbage is collected at the end of the step",
        "no pauses within a step, for which all ranks would wait",
    ),
    "autotuning.enabled": KeyEffect(
        _NONE,
        "in a normal run, it ends the job after a few steps with status 0",
        ("autotuning.end_profile_step",),
    ),
    "checkpoint.load_universal": KeyEffect(
        "same as the checkpoint",
        "slower loading, but with any number of ranks",
        ("zero_optimization.elastic_checkpoint",),
        True,
    ),
    "checkpoint.writer": KeyEffect(
        "`io_buffer_size` bytes, twice with `io_buffer_double`",
        "faster checkpoints",
        ("checkpoint.writer.decoupled",),
    ),
    "checkpoint.use_node_local_storage": KeyEffect(
        "each host saves its part on its own disk",
        "faster than a shared file system",
        ("checkpoint.load_universal",),
    ),
    "compile.deepcompile": KeyEffect(
        "its passes can offload more to the host",
        "gathers are scheduled by the compiler",
        ("compile.passes",),
        True,
    ),
    "tensor_parallel.autotp_size": KeyEffect(
        "divides weights and activations of split layers by this number",
        "reductions in every layer: keep it within a host",
        ("tensor_parallel.tp.tp_size", "train_batch_size"),
        2,
    ),
}
"""Dotted key → what it does."""
