"""Effects of the keys of `zero_optimization`."""

from collections.abc import Mapping

from zlaunch.dsconfig.keys.effect import KeyEffect
from zlaunch.dsconfig.schema.section import ZERO


def _zero(*keys: str) -> tuple[str, ...]:
    return tuple(f"{ZERO}.{key}" for key in keys)


_NO_MEMORY, _NO_SPEED = "none", "none"
_PINNED = "pinned buffers are rounded up to a power of two, never swapped out, and not given back"

_SHARDING: Mapping[str, KeyEffect] = {
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
        _NO_MEMORY,
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
        _NO_MEMORY,
        "with optimizer offload, ranks copy different gradients to the host at the same time",
        _zero("offload_optimizer.device"),
    ),
    "ignore_unused_parameters": KeyEffect(
        _NO_MEMORY, "off ends a run in which a parameter gets no gradient, instead of going on"
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
}

_STAGE_3: Mapping[str, KeyEffect] = {
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
        _NO_SPEED,
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
        "the gathered weight of a linear layer is not kept for the backward pass", _NO_SPEED
    ),
    "pipeline_loading_checkpoint": KeyEffect(
        "one rank after another holds its checkpoint on the host, not all at once", "slower loading"
    ),
    "enable_sanity_checks": KeyEffect(_NO_MEMORY, "checks at every step: slow"),
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
}

_OFFLOAD: Mapping[str, KeyEffect] = {
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
        "files of 2 bytes per parameter; nobody removes them, and two jobs in one directory destroy "
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
        "files of 16 bytes per parameter; nobody removes them",
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

OF_ZERO: Mapping[str, KeyEffect] = {
    f"{ZERO}.{key}": effect for key, effect in {**_SHARDING, **_STAGE_3, **_OFFLOAD}.items()
}
