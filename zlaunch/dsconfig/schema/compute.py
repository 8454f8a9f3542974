"""Sections about computation: checkpointing, compiling, generation, pipeline, quantization."""

from typing import Annotated, Literal

from zlaunch.dsconfig.schema.section import OUTDATED, Positive, Section, Switched


class ActivationCheckpointing(Section):
    """For scripts that call `deepspeed.checkpointing.configure`.

    The Trainer never calls it; there the switch is `--gradient_checkpointing`.
    """

    partition_activations: bool = False
    """Spread checkpointed activations over model-parallel ranks."""

    number_checkpoints: Positive | None = None
    """Number of checkpoints, for contiguous buffers."""

    contiguous_memory_optimization: bool = False
    """Keep checkpoints in one buffer."""

    synchronize_checkpoint_boundary: bool = False
    """Synchronize the device at each boundary."""

    profile: bool = False
    """Time each checkpoint."""

    cpu_checkpointing: bool = False
    """Offload checkpoints to the CPU."""


class Compile(Section):
    """DeepCompile: compile the model together with its communication."""

    deepcompile: bool = False
    """Compile the model together with its communication."""

    autoep_non_moe: bool = False
    """Compile the parts of an AutoEP model that are not experts."""

    free_activation: bool = False
    """Free activations early."""

    free_activation_threshold: int = 10_485_760
    """Bytes above which an activation is freed early."""

    offload_activation: bool = False
    """Offload activations to the CPU."""

    offload_activation_pin_memory: bool = True
    """Page-lock the host buffers of offloaded activations."""

    offload_opt_states: bool = False
    """Offload optimizer states to the CPU."""

    double_buffer: bool = True
    """Overlap gathering with computing."""

    symmetric_memory: bool = False
    """Gather through symmetric memory."""

    debug_log: bool = False
    """Print what the passes do."""

    offload_parameters: bool = False
    """Offload parameters to the CPU."""

    sync_before_reduce: bool = False
    """Wait before each reduction."""

    sync_after_reduce: bool = False
    """Wait after each reduction."""

    sync_before_allgather: bool = False
    """Wait before each gathering."""

    sync_after_allgather: bool = False
    """Wait after each gathering."""

    keep_int_input_tensors: bool = True
    """Keep integer inputs of the graph alive."""

    keep_all_input_tensors: bool = False
    """Keep all inputs of the graph alive."""

    passes: list[Literal["z1", "z3", "autosp", "autotp"]] | None = None
    """Compiler passes; by default chosen by stage."""


class HybridEngine(Switched):
    """Training and generation with one model, for RLHF."""

    max_out_tokens: Positive = 512
    """Longest generated sequence."""

    inference_tp_size: int = 1
    """Tensor-parallel ranks in generation."""

    release_inference_cache: bool = False
    """Free the key-value cache before training continues."""

    pin_parameters: bool = True
    """Page-lock offloaded parameters."""

    tp_gather_partition_size: int = 8
    """Parameters gathered at a time."""

    enable_cuda_graph: bool = False
    """Capture generation as a CUDA graph."""


class Pipeline(Section):
    """Settings of a `PipelineModule`."""

    stages: Annotated[str | int, OUTDATED] = "auto"
    """Not read by the engine."""

    partition: Annotated[str, OUTDATED] = "best"
    """Not read by the engine."""

    seed_layers: Annotated[bool, OUTDATED] = False
    """Not read by the engine."""

    activation_checkpoint_interval: int = 0
    """Layers between activation checkpoints; 0 for none."""

    pipe_partitioned: bool = True
    """Partition activations between stages."""

    grad_partitioned: bool = True
    """Partition gradients between stages."""

    use_reentrant: bool = True
    """Kind of activation checkpointing."""


class WeightQuantization(Section):
    """Quantized weights for inference."""

    enabled: bool = True
    """Quantize."""

    num_bits: int = 8
    """Bits per weight."""

    q_type: Literal["symmetric", "asymmetric"] = "symmetric"
    """Kind of quantization."""

    q_groups: int = 1
    """Groups per tensor."""

    quantized_initialization: dict[str, object] = {}
    """Quantize while the model is created."""

    post_init_quant: dict[str, object] = {}
    """Quantize after the model was created."""
