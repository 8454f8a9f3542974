"""`autotuning`: DeepSpeed's own search for a configuration."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from zlaunch.dsconfig.schema.section import Positive, Section, Switched


class ModelInfo(Section):
    """Facts about the model."""

    profile: bool = False
    """Measure instead of using the numbers below."""

    num_params: int | None = None
    """Parameters of the model."""

    hidden_size: int | None = None
    """Hidden size."""

    num_layers: int | None = None
    """Number of layers."""


class Autotuning(Switched):
    """DeepSpeed's own search for a configuration; it ends a normal job after a few steps with status 0."""

    model_config = ConfigDict(protected_namespaces=())

    fast: bool = True
    """Tune only micro-batch sizes."""

    results_dir: Annotated[str, Field(min_length=1)] = "autotuning_results"
    """Directory of the results."""

    exps_dir: Annotated[str, Field(min_length=1)] = "autotuning_exps"
    """Directory of the configurations tried."""

    overwrite: bool = True
    """Delete earlier results first."""

    start_profile_step: Positive = 3
    """First measured step."""

    end_profile_step: Positive = 5
    """Last measured step; the run ends after it."""

    metric: Literal["latency", "throughput", "flops", "forward", "backward", "step"] = "throughput"
    """Metric to optimize."""

    metric_path: str | None = None
    """File of the metric."""

    tuner_type: Literal["gridsearch", "random", "model_based"] = "gridsearch"
    """Search method."""

    tuner_early_stopping: int = 5
    """Trials without a gain after which the search stops."""

    tuner_num_trials: int = 50
    """Maximum number of trials."""

    arg_mappings: dict[str, str] | None = None
    """Script argument for each key."""

    model_info: ModelInfo | None = None

    model_info_path: str | None = None
    """File of the measured model facts."""

    mp_size: Positive = 1
    """Model-parallel ranks."""

    max_train_batch_size: int | None = None
    """Largest global batch."""

    min_train_batch_size: int = 1
    """Smallest global batch."""

    max_train_micro_batch_size_per_gpu: int = 1024
    """Largest micro-batch."""

    min_train_micro_batch_size_per_gpu: int = 1
    """Smallest micro-batch."""

    num_tuning_micro_batch_sizes: int = 3
    """Micro-batch sizes to try."""
