"""Effects of the keys outside `zero_optimization`."""

from collections.abc import Mapping

from zlaunch.dsconfig.keys.effect import KeyEffect

_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_NONE = "none"

_STEP: Mapping[str, KeyEffect] = {
    "train_batch_size": KeyEffect(
        "none of its own: the micro-batch decides",
        "fewer optimizer steps for the same samples",
        _BATCH[1:],
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
}

_FORMATS: Mapping[str, KeyEffect] = {
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
}

_ELSEWHERE: Mapping[str, KeyEffect] = {
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

TRAINING: Mapping[str, KeyEffect] = {**_STEP, **_FORMATS, **_ELSEWHERE}
