"""Which data the model sees, and when: `data_efficiency`."""

from typing import Any, Literal

from pydantic import ConfigDict

from zlaunch.dsconfig.schema.section import Absent, Count, Positive, Section


class CurriculumMetric(Section):
    """One entry of `curriculum_metrics`; its schedules have settings of their own."""

    index_to_sample_path: str | None = None
    """Index from metric values to samples."""

    index_to_metric_path: str | None = None
    """Index from samples to metric values."""

    difficulty_type: Literal["value", "percentile"] | None = None
    """What a difficulty means."""

    clustering_type: Literal["single_cluster", "schedule_based"] | None = None
    """How samples are grouped."""

    min_difficulty: float | None = None
    """First difficulty."""

    max_difficulty: float | None = None
    """Last difficulty."""

    schedule_type: Literal["fixed_discrete", "fixed_root", "fixed_linear", "custom"] | None = None
    """How the difficulty rises."""

    schedule_config: dict[str, Any] = {}
    """Settings of the schedule."""


class CurriculumLearning(Section):
    """`data_efficiency.data_sampling.curriculum_learning`."""

    enabled: bool = False
    """Use it."""

    data_cluster_path: str | None = None
    """Where clusters are kept."""

    curriculum_metrics: dict[str, CurriculumMetric] | None = None
    """What makes a sample difficult; required when enabled."""


class DynamicBatching(Section):
    """`data_efficiency.data_sampling.dynamic_batching`."""

    enabled: bool = False
    """Use it."""

    metrics_path: str | None = None
    """Where sequence lengths are kept."""

    lr_scaling_method: Literal["linear", "sqrt", "none"] = "linear"
    """How the learning rate follows the batch size."""

    min_batch_size: Positive = 1
    """Smallest batch."""

    max_batch_size: Absent[Positive] = None
    """Largest batch."""

    sequence_picking_order: Literal["random", "seqlen", "dataloader"] = "dataloader"
    """Order of the samples."""

    max_tokens: Positive | None = None
    """Tokens per batch; required when enabled."""

    verbose: bool = False
    """Print each batch."""


class DataSampling(Section):
    """`data_efficiency.data_sampling`."""

    enabled: bool = False
    """Use it."""

    num_epochs: Positive = 1000
    """Epochs to prepare for."""

    num_workers: Count = 0
    """Workers of the data loader."""

    pin_memory: bool = False
    """Page-lock the batches."""

    curriculum_learning: Absent[CurriculumLearning] = None
    """Easy samples first."""

    dynamic_batching: Absent[DynamicBatching] = None
    """Batches of equal tokens rather than equal samples."""


class RandomLtd(Section):
    """`data_efficiency.data_routing.random_ltd`."""

    model_config = ConfigDict(protected_namespaces=())

    enabled: bool = False
    """Use it."""

    total_layer_num: Positive | None = None
    """Layers of the model."""

    random_ltd_layer_num: Positive | None = None
    """Layers that drop tokens."""

    random_ltd_layer_id: list[int] = []
    """Which layers."""

    model_mask_name: str | None = None
    """Argument that carries the attention mask."""

    model_type: Literal["encoder", "decoder"] | None = None
    """Kind of model."""

    hidden_state_order: str | None = None
    """Order of the dimensions."""

    micro_batch_size: Positive | None = None
    """Samples per rank."""

    global_batch_size: Positive | None = None
    """Samples per step."""

    random_ltd_schedule: dict[str, Any] = {}
    """How many tokens are kept, and when."""

    layer_token_lr_schedule: dict[str, Any] = {}
    """Not implemented by DeepSpeed when enabled."""


class DataRouting(Section):
    """`data_efficiency.data_routing`."""

    enabled: bool = False
    """Use it."""

    random_ltd: Absent[RandomLtd] = None
    """Drop random tokens in the middle layers."""


class DataEfficiency(Section):
    """`data_efficiency`."""

    enabled: bool = False
    """Use it."""

    seed: int = 1234
    """Seed of the sampler."""

    data_sampling: Absent[DataSampling] = None
    """Which samples, in which order."""

    data_routing: Absent[DataRouting] = None
    """Which tokens reach which layers."""
