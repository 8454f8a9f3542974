"""Model parallelism: `tensor_parallel` and `expert_parallel`."""

from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from zlaunch.dsconfig.schema.section import OUTDATED, AnyCase, Count, Positive, Section, Switched, Whole


class LayerSpec(Section):
    """One entry of `tensor_parallel.partition_config.layer_specs`."""

    patterns: list[str] = []
    """Regular expressions for parameter names."""

    partition_type: AnyCase[Literal["column", "row", "skip"]] = "column"
    """How the weight is split."""

    gather_output: bool = False
    """Gather the output of the layer."""

    grad_allreduce: bool = False
    """All-reduce the gradient of the layer."""

    shape: list[object] | None = None
    """Shape of a fused weight before it is split."""

    partition_dim: int | None = None
    """Dimension that is split."""

    model_types: list[str] | None = None
    """Only for these model types."""


class PartitionConfig(Section):
    """How each layer is split."""

    tp_size: int = 1
    """Ranks that share a layer."""

    layer_specs: list[LayerSpec] = []
    """How each layer is split."""

    embedding_partition_dim: int = 1
    """Dimension of the embedding that is split."""

    lm_head_patterns: list[str] = ["lm_head", "embed_out"]
    """Names of the output layer."""

    use_default_specs: bool = True
    """Use the built-in specification for known models."""

    strict_mode: bool = False
    """Refuse layers without a specification."""


class TensorParallelGroup(Section):
    """Size and grain of the group."""

    tp_size: int = 1
    """1, or the same as `autotp_size`."""

    tp_grain_size: int = 1
    """Smallest shard of a layer."""


class TensorParallel(Section):
    """Layers split over ranks: AutoTP training.

    DeepSpeed also lists a key `dtype`, which no JSON value satisfies.
    """

    autotp_size: int = 0
    """Ranks that share each layer; 0 for none."""

    tp_overlap_comm: bool = False
    """Overlap the reductions with computing."""

    vocab_parallel_lm_head: bool | None = None
    """Split the output layer over the vocabulary."""

    vocab_parallel_ce_backend: Literal["torch", "liger"] = "torch"
    """Backend for the loss of a split output layer."""

    tp: TensorParallelGroup = Field(
        TensorParallelGroup.model_construct(), validation_alias=AliasChoices("tp", "tensor_parallel")
    )

    injection_policy_tuple: list[object] | None = None
    """Modules to split, by hand."""

    partition_config: PartitionConfig | None = None

    preset_model: str | None = None
    """Use the built-in specification of this model."""

    keep_module_on_host: bool = False
    """Load modules on the host."""

    kernel_inject: bool = Field(
        False, validation_alias=AliasChoices("kernel_inject", "replace_with_kernel_inject")
    )
    """Replace modules with DeepSpeed's kernels."""


class ExpertParallel(Switched):
    """Experts of an MoE model spread over ranks: AutoEP."""

    autoep_size: Positive = 1
    """Ranks that share the experts."""

    expert_tensor_parallel_size: Whole[Literal[1]] = 1
    """Must be 1."""

    validate_folding_routing: bool = False
    """Check the routing of folded groups."""

    async_split_plan: bool = False
    """Exchange token counts asynchronously."""

    preset_model: str | None = None
    """Use the built-in names of this model."""

    moe_layer_pattern: str | None = None
    """Names of the MoE layers."""

    expert_pattern: str | None = None
    """Names of the experts."""

    router_pattern: str | None = None
    """Names of the routers."""

    use_grouped_mm: bool = True
    """Compute the experts in one grouped product."""

    disable_triton_grouped_mm: bool = False
    """Do not use the Triton kernel for it."""

    route_norm: bool | None = None
    """Normalize the routing weights."""

    route_scale: float = 1.0
    """Scale the routing weights."""

    score_apply: Literal["auto", "pre", "post"] = "auto"
    """Where the routing weights are applied."""

    combine_impl: Literal["auto", "weighted_sum", "fused_weighted_sum", "legacy_bmm"] = "auto"
    """How expert outputs are combined."""

    row_weighting_impl: Literal["auto", "eager", "fused"] = "auto"
    """How rows are weighted."""

    gate_up_impl: Literal["separate", "fused"] = "separate"
    """How the two input products are computed."""

    comm_backend: Literal["comm", "deepep"] = "comm"
    """Backend for the token exchange."""

    comm_num_sm: Positive = 12
    """Multiprocessors DeepEP may use."""

    comm_qp_margin: Count = 4
    """Extra queue pairs for DeepEP."""

    comm_max_tokens_per_rank: Count = 0
    """Tokens per rank for which DeepEP allocates; 0 to detect."""

    num_expert_groups: int | None = None
    """Groups of experts the router chooses from."""

    num_limited_groups: int | None = None
    """Groups that a token may use."""

    score_func: Literal["auto", "softmax", "sigmoid"] = "auto"
    """How routing scores are computed."""

    top_k: Literal["auto"] | int = "auto"
    """Experts per token."""

    load_balance_coeff: Annotated[None, OUTDATED] = None
    """Not supported by DeepSpeed; only null is accepted."""

    routed_scaling_factor: Literal["auto"] | float = "auto"
    """Scale of the routed output."""

    expert_w1: str | None = None
    """Name of the first weight."""

    expert_w2: str | None = None
    """Name of the second weight."""

    expert_w3: str | None = None
    """Name of the third weight; null if fused with the first."""

    num_experts_attr: str | None = None
    """Model config attribute with the number of experts."""

    top_k_attr: str | None = None
    """Model config attribute with the experts per token."""

    has_shared_experts: bool | None = None
    """Whether there are shared experts, which process every token."""

    shared_experts_pattern: str | None = None
    """Names of the shared experts."""

    shared_experts_gate_pattern: str | None = None
    """Names of the gates of shared experts."""

    expert_activation: str | None = None
    """Activation function of the experts."""
