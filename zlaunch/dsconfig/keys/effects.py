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
_PINNED = "pinned buffers are rounded up to a power of two, never swapped out, and not given back"

_OF_ZERO: Mapping[str, KeyEffect] = {
    "stage": KeyEffect(
        "bytes per parameter on each GPU: 14 and the gradients at stage 0; 2 + 12/N and the gradients at 1; "
        "2 + 14/N at 2; 16/N at 3, and in each case buckets and what the step needs for a moment",
        "stages 1 and 2 send as much as plain data parallelism, stage 3 half as much again",
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
        "2 bytes per element, twice with `overlap_comm`, and about as much again while a bucket is reduced; "
        "at stage 3 the buffer stays all the time. It is not made smaller for small models: below 500 M "
        "parameters the default outweighs the model",
        "fewer, larger messages: better use of the network, later overlap",
        _zero("overlap_comm", "allgather_bucket_size", "stage3_prefetch_bucket_size"),
        50_000_000,
    ),
    "allgather_bucket_size": KeyEffect(
        "as many elements of updated parameters are in flight after the step",
        "fewer, larger messages",
        _zero("reduce_bucket_size"),
        200_000_000,
    ),
    "overlap_comm": KeyEffect(
        "a second bucket: 2 bytes per element of `reduce_bucket_size` (stages 1 and 2)",
        "gradients travel while the backward pass goes on",
        _zero("reduce_bucket_size", "contiguous_gradients"),
    ),
    "compute_grad_norm": KeyEffect(
        "off saves the norm's temporary copy in 64 bits: 8 bytes per element of the largest gradient on "
        "a rank",
        "off saves one pass over the gradients and one reduction",
        ("gradient_clipping",),
    ),
    "round_robin_gradients": KeyEffect(
        _NONE,
        "with optimizer offload, ranks copy different gradients to the host at the same time",
        _zero("offload_optimizer.device"),
    ),
    "ignore_unused_parameters": KeyEffect(
        _NONE, "off ends a run in which a parameter gets no gradient, instead of going on"
    ),
    "elastic_checkpoint": KeyEffect(
        "merged states while a checkpoint is written", "slower checkpoints", ("checkpoint.load_universal",)
    ),
    "sub_group_size": KeyEffect(
        "the step needs about 6 bytes per element of the largest group for a moment, so smaller groups lower "
        "the peak; with NVMe it sizes the swap buffers on the host",
        "many small groups make a slower step",
        _zero("offload_optimizer.device", "offload_optimizer.buffer_count"),
        100_000_000,
    ),
    "stage3_prefetch_bucket_size": KeyEffect(
        "up to 2 bytes per element for parameters that are fetched early",
        "too small, and layers wait for their parameters",
        _zero("stage3_max_live_parameters", "stage3_max_reuse_distance"),
        50_000_000,
    ),
    "stage3_param_persistence_threshold": KeyEffect(
        "parameters below it stay whole on every rank: norms and biases cost next to nothing",
        "spares many small gathers, whose latency is worse than their size",
        _zero("stage3_model_persistence_threshold"),
        100_000,
    ),
    "stage3_model_persistence_threshold": KeyEffect(
        "a ceiling for all that stays whole",
        _NONE,
        _zero("stage3_param_persistence_threshold"),
        1_000_000,
    ),
    "stage3_max_live_parameters": KeyEffect(
        "a ceiling for prefetching, not a buffer: nothing is allocated for it",
        "too low, and nothing is fetched early",
        _zero("stage3_prefetch_bucket_size", "stage3_max_reuse_distance"),
        500_000_000,
    ),
    "stage3_max_reuse_distance": KeyEffect(
        "parameters needed again soon stay gathered: with the default, about 2 GB from the second step on",
        "0 gathers them anew in the backward pass",
        _zero("stage3_max_live_parameters", "stage3_prefetch_bucket_size"),
        0,
    ),
    "stage3_gather_16bit_weights_on_model_save": KeyEffect(
        "the whole model in 16 bits on the host of rank 0 while it is saved: 2 bytes per parameter",
        "slower saving; without it `zero_to_fp32.py` has to put the model together afterwards",
        ("checkpoint.load_universal",),
        True,
    ),
    "stage3_module_granularity_threshold": KeyEffect(
        "modules below it are gathered as a whole",
        "fewer hooks in models of many tiny modules",
        _zero("leaf_module"),
    ),
    "leaf_module": KeyEffect(
        "all parameters of a block, such as all experts, are gathered at once",
        "one gather instead of many; needed where ranks take different ways through a block",
        _zero("stage3_module_granularity_threshold"),
    ),
    "memory_efficient_linear": KeyEffect(
        "the gathered weight of a linear layer is not kept for the backward pass", _NONE
    ),
    "pipeline_loading_checkpoint": KeyEffect(
        "one rank after another holds its checkpoint on the host, not all at once", "slower loading"
    ),
    "enable_sanity_checks": KeyEffect(_NONE, "checks at every step: slow"),
    "zero_hpz_partition_size": KeyEffect(
        "a second copy of the parameters, divided by this number: 2P bytes over so many ranks",
        "backward gathers within the node; give the number of GPUs of one",
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
        "reductions send fewer bits, at the cost of precision",
        _zero("zero_quantized_weights", "zero_hpz_partition_size"),
    ),
    "zero_quantized_nontrainable_weights": KeyEffect(
        "frozen parameters are kept quantized: for adapters on a large model",
        "they are unpacked wherever they are used",
        _zero("zero_quantized_weights"),
    ),
    "offload_param": KeyEffect(
        "2P/N bytes leave each GPU for pinned memory of the host, or for a drive; what is left there are "
        "gathered layers and buckets",
        "every layer comes over PCIe, or from the drive, twice per step",
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
        "files of 2 bytes per parameter; they are never removed, and two jobs in one directory destroy "
        "each other's",
        "that of the drive",
        ("aio", *_zero("offload_param.device")),
        "/local_nvme",
    ),
    "offload_param.buffer_count": KeyEffect(
        "times `buffer_size` x 2 bytes on the host, twice that at the start",
        "too few end the run when a model's layers need more at once: Llama 3 8B fails with 5 and runs "
        "with 20",
        _zero("offload_param.buffer_size"),
        20,
    ),
    "offload_param.buffer_size": KeyEffect(
        "times `buffer_count` x 2 bytes on the host",
        "the largest parameter of a rank must fit, or nothing starts",
        _zero("offload_param.buffer_count", "offload_param.max_in_cpu"),
        300_000_000,
    ),
    "offload_param.max_in_cpu": KeyEffect(
        "as many elements stay on the host instead of on the drive",
        "what stays is not read from the drive",
        _zero("offload_param.device"),
    ),
    "offload_param.pin_memory": KeyEffect(
        _PINNED, "copies to the GPU are faster and overlap", _zero("offload_param.device")
    ),
    "offload_optimizer": KeyEffect(
        "12 bytes per parameter of a rank leave the GPU; the host takes about 18 per parameter of the rank, "
        "at stage 3 20 together with `offload_param`",
        "the step runs on the CPU, and gradients and parameters cross PCIe once per step",
        _zero("offload_optimizer.device", "offload_param.device", "round_robin_gradients"),
    ),
    "offload_optimizer.device": KeyEffect(
        "`cpu`: see `offload_optimizer`; the start needs more than the run. `nvme`: 16 bytes per parameter "
        "on the drive and swap buffers on the host; below stage 3 it is the same as `cpu`",
        "`none` is fastest, then `cpu`, then `nvme`",
        _zero("offload_optimizer.nvme_path", "offload_optimizer.pin_memory", "sub_group_size"),
        "cpu",
    ),
    "offload_optimizer.nvme_path": KeyEffect(
        "files of 16 bytes per parameter; they are never removed",
        "that of the drive",
        ("aio", *_zero("offload_optimizer.device")),
        "/local_nvme",
    ),
    "offload_optimizer.buffer_count": KeyEffect(
        "times 4 bytes per element of the largest group of parameters, on the host",
        "Adam needs four; fewer end the run at its first step",
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
        "no pinned buffer at the start", "a faster start on NVMe", _zero("offload_optimizer.device")
    ),
    "offload_optimizer.ratio": KeyEffect(
        "this share of the states is on the host, the rest stays on the GPU",
        "what stays on the GPU is updated there, at the same time",
        _zero("offload_optimizer.device"),
        0.5,
    ),
    "offload_optimizer.super_offload": KeyEffect(
        "as optimizer offload",
        "host and GPU steps overlap; for hosts whose link to the GPU is fast",
        _zero("offload_optimizer.cpuadam_cores_perc"),
    ),
    "zenflow": KeyEffect(
        "the important gradients and their states stay on the GPU",
        "the step on the host no longer holds up the GPU",
        _zero("zenflow.topk_ratio", "offload_optimizer.device"),
    ),
    "zenflow.topk_ratio": KeyEffect(
        "more columns, more states on the GPU", "more is updated at once", _zero("zenflow"), 0.05
    ),
}
"""Effects of the keys below `zero_optimization`."""

EFFECTS: Mapping[str, KeyEffect] = {
    **{f"{ZERO}.{key}": effect for key, effect in _OF_ZERO.items()},
    "train_batch_size": KeyEffect(
        "none of its own: the micro-batch decides",
        "fewer optimizer steps for the same samples",
        ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        64,
    ),
    "train_micro_batch_size_per_gpu": KeyEffect(
        "activations and logits grow with it",
        "larger ones use the GPU better, until memory is full",
        ("train_batch_size", "gradient_accumulation_steps"),
        4,
    ),
    "gradient_accumulation_steps": KeyEffect(
        "gradients stay between the passes; with optimizer offload at stage 2, more than 1 takes 2 bytes "
        "more per parameter of a rank on the host",
        "the optimizer step, and an offload's way to the host, is shared by more passes",
        ("train_batch_size", "data_types.grad_accum_dtype"),
        8,
    ),
    "gradient_clipping": KeyEffect(
        "the norm is computed in 64 bits: 8 bytes per element of the largest gradient on a rank, for a "
        "moment",
        "one pass over the gradients and one small reduction",
        ("zero_optimization.compute_grad_norm",),
        1.0,
    ),
    "optimizer": KeyEffect(
        "Adam in 16-bit training keeps 12 bytes per parameter: master weight and two moments",
        "DeepSpeed's own are compiled when they are first used; with a section, every parameter is decayed",
        ("optimizer.type", "zero_optimization.offload_optimizer"),
    ),
    "optimizer.type": KeyEffect(
        "Adam keeps two moments per parameter, Lion one, SGD none without momentum",
        "on the host, DeepSpeed has Adam, Adagrad and Lion of its own",
        ("optimizer.params.torch_adam", "zero_allow_untested_optimizer"),
        "AdamW",
    ),
    "optimizer.params.torch_adam": KeyEffect(
        _NONE, "nothing has to be compiled; slow on the host", ("optimizer.type",), True
    ),
    "optimizer.params.fp32_optimizer_states": KeyEffect(
        "off halves the moments on the host",
        "less to move",
        ("zero_optimization.offload_optimizer.device",),
        False,
    ),
    "scheduler": KeyEffect(_NONE, _NONE, ("scheduler.type", "optimizer.params.lr")),
    "zero_allow_untested_optimizer": KeyEffect(
        "as the optimizer's", "as the optimizer's; the Trainer turns it on", ("optimizer.type",), True
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
        _NONE, "fixed, nothing is adapted, and each overflow is a lost step", ("fp16.initial_scale_power",), 0
    ),
    "fp16.initial_scale_power": KeyEffect(
        _NONE, "too high, and the first steps are skipped until the scale fits", ("fp16.hysteresis",), 12
    ),
    "fp16.loss_scale_window": KeyEffect(
        _NONE, "shorter tries a larger scale more often, and loses a step each time", ("fp16.hysteresis",)
    ),
    "fp16.hysteresis": KeyEffect(
        _NONE,
        "more overflows are tolerated, each a lost step, before the scale is halved",
        ("fp16.loss_scale_window",),
    ),
    "fp16.fp16_master_weights_and_grads": KeyEffect(
        "2 bytes less per master weight and gradient, on the host",
        "less to move",
        ("bf16.bf16_master_weights_and_grads",),
    ),
    "bf16.enabled": KeyEffect(
        "2 bytes instead of 4 for weights, gradients and activations; fp32 master weights stay",
        "fast on GPUs from Ampere on; no loss scale, no lost steps",
        ("fp16.enabled", "data_types.grad_accum_dtype"),
        True,
    ),
    "bf16.immediate_grad_update": KeyEffect(
        "16-bit gradients need not be kept beside the fp32 ones",
        "adds as they come",
        ("data_types.grad_accum_dtype",),
    ),
    "bf16.check_grad_overflow": KeyEffect(
        _NONE,
        "one look at the gradients per step; off takes steps with infinite ones",
        ("gradient_clipping",),
    ),
    "bf16.bf16_master_weights_and_grads": KeyEffect(
        "2 bytes instead of 4 per master weight, at the cost of precision",
        "less to move",
        ("bf16.bf16_optimizer_states",),
    ),
    "bf16.bf16_optimizer_states": KeyEffect(
        "the two moments take 4 bytes per parameter instead of 8",
        "less to move",
        ("bf16.bf16_master_weights_and_grads",),
    ),
    "data_types.grad_accum_dtype": KeyEffect(
        "`fp32` adds 2 bytes per gradient of the rank at stages 2 and 3; at stage 1 with bf16 another "
        "optimizer is used, which keeps 4 bytes for every parameter and doubles the peak",
        "16 bits lose small gradients over many passes",
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
        "keeps the inputs of blocks only; the Trainer's switch is `--activation_checkpointing`",
        "one more forward pass: about a third more work",
        ("activation_checkpointing.cpu_checkpointing", "activation_checkpointing.partition_activations"),
    ),
    "activation_checkpointing.cpu_checkpointing": KeyEffect(
        "kept activations go to the host",
        "they cross PCIe twice",
        ("activation_checkpointing.partition_activations",),
    ),
    "activation_checkpointing.partition_activations": KeyEffect(
        "kept activations are divided by the model-parallel ranks", "they are gathered again in backward"
    ),
    "aio": KeyEffect("none worth mentioning", "how fast NVMe offload is", ("aio.queue_depth",)),
    "aio.block_size": KeyEffect(
        "tensors below it, or below 1 MiB, are not swapped at all",
        "larger requests suit most drives",
        ("aio.queue_depth",),
    ),
    "aio.queue_depth": KeyEffect(
        "more requests in flight",
        "drives need many to be fast",
        ("aio.block_size", "aio.intra_op_parallelism"),
        32,
    ),
    "aio.intra_op_parallelism": KeyEffect(
        "one set of requests per thread", "one thread may not fill a fast drive", ("aio.queue_depth",), 4
    ),
    "aio.single_submit": KeyEffect(
        _NONE, "on, each request is a system call of its own", ("aio.overlap_events",)
    ),
    "aio.overlap_events": KeyEffect(
        _NONE, "off waits for a batch to end before the next one", ("aio.single_submit",)
    ),
    "aio.use_gds": KeyEffect(
        "no staging on the host", "drive to GPU without a detour", ("zero_optimization.offload_param.device",)
    ),
    "wall_clock_breakdown": KeyEffect(
        _NONE, "each timer waits for the GPU: for finding out, not for training"
    ),
    "memory_breakdown": KeyEffect(_NONE, "prints at every phase"),
    "flops_profiler.enabled": KeyEffect(
        _NONE,
        "one slow step; it turns `wall_clock_breakdown` on for all",
        ("flops_profiler.profile_step",),
        True,
    ),
    "comms_logger.enabled": KeyEffect(
        _NONE, "collectives are timed one by one", ("comms_logger.prof_all",), True
    ),
    "steps_per_print": KeyEffect(_NONE, "none worth mentioning; the Trainer turns it off"),
    "disable_python_gc": KeyEffect(
        "garbage waits for the end of the step", "no pauses within a step, which ranks would all wait for"
    ),
    "autotuning.enabled": KeyEffect(
        _NONE,
        "left on in a normal run, it ends the job after a few steps with status 0",
        ("autotuning.end_profile_step",),
    ),
    "checkpoint.load_universal": KeyEffect(
        "as the checkpoint",
        "slower loading, but onto any number of ranks",
        ("zero_optimization.elastic_checkpoint",),
        True,
    ),
    "checkpoint.writer": KeyEffect(
        "`io_buffer_size` bytes, twice with `io_buffer_double`",
        "faster checkpoints",
        ("checkpoint.writer.decoupled",),
    ),
    "checkpoint.use_node_local_storage": KeyEffect(
        "each host keeps its own part on its disk",
        "no shared drive to wait for",
        ("checkpoint.load_universal",),
    ),
    "compile.deepcompile": KeyEffect(
        "its passes can move more to the host",
        "gathers are scheduled by the compiler",
        ("compile.passes",),
        True,
    ),
    "tensor_parallel.autotp_size": KeyEffect(
        "weights and activations of split layers are divided by it",
        "reductions in every layer: keep it within a node",
        ("tensor_parallel.tp.tp_size", "train_batch_size"),
        2,
    ),
}
"""Dotted key → what it does."""
