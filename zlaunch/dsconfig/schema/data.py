"""`data_efficiency`: curriculum learning, dynamic batching, token dropping."""

from typing import Literal

from pydantic import ConfigDict

from zlaunch.dsconfig.schema.section import Absent, Count, Positive, Section, Switched


class CurriculumMetric(Section):
    """One entry of `curriculum_metrics`; its schedules have settings of their own."""

    index_to_sample_path: str | None = None
    """Index from metric values to samples."""

    index_to_metric_path: str | None = None
    """Index from samples to metric values."""

    difficulty_type: Literal["value", "percentile"] | None = None
    """Meaning of the difficulty."""

    clustering_type: Literal["single_cluster", "schedule_based"] | None = None
    """How samples are grouped."""

    min_difficulty: float | None = None
    """First difficulty."""

    max_difficulty: float | None = None
    """Last difficulty."""

    schedule_type: Literal["fixed_discrete", "fixed_root", "fixed_linear", "custom"] | None = None
    """Shape of the schedule."""

    schedule_config: dict[str, object] = {}
    """Settings of the schedule."""


class CurriculumLearning(Switched):
    """Curriculum learning: easy samples first."""

    data_cluster_path: str | None = None
    """Directory of the clusters."""

    curriculum_metrics: dict[str, CurriculumMetric] | None = None
    """Difficulty metrics; required when enabled."""


class DynamicBatching(Switched):
    """Batches of equal tokens rather than equal samples."""

    metrics_path: str | None = None
    """File of the sequence lengths."""

    lr_scaling_method: Literal["linear", "sqrt", "none"] = "linear"
    """Scaling of the learning rate with the batch size."""

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


class DataSampling(Switched):
    """Which samples, in which order."""

    num_epochs: Positive = 1000
    """Epochs to prepare for."""

    num_workers: Count = 0
    """Workers of the data loader."""

    pin_memory: bool = False
    """Page-lock the batches."""

    curriculum_learning: Absent[CurriculumLearning] = None
    dynamic_batching: Absent[DynamicBatching] = None


class RandomLtd(Switched):
    """Drop random tokens in the middle layers."""

    model_config = ConfigDict(protected_namespaces=())

    total_layer_num: Positive | None = None
    """Layers of the model."""

    random_ltd_layer_num: Positive | None = None
    """Layers that drop tokens."""

    random_ltd_layer_id: list[int] = []
    """Indices of these layers."""

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

    random_ltd_schedule: dict[str, object] = {}
    """Schedule of the kept tokens."""

    layer_token_lr_schedule: dict[str, object] = {}
    """Not implemented by DeepSpeed when enabled."""


class DataRouting(Switched):
    """Which tokens reach which layers."""

    random_ltd: Absent[RandomLtd] = None


class DataEfficiency(Switched):
    """Curriculum learning, dynamic batching, token dropping."""

    seed: int = 1234
    """Seed of the sampler."""

    data_sampling: Absent[DataSampling] = None
    data_routing: Absent[DataRouting] = None
