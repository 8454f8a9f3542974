"""`autotuning`: DeepSpeed's own search for a configuration."""

from typing import Literal

from pydantic import ConfigDict

from zlaunch.dsconfig.schema.section import Positive, Section


class ModelInfo(Section):
    """`autotuning.model_info`."""

    profile: bool = False
    """Measure rather than read the numbers below."""

    num_params: int | None = None
    """Parameters of the model."""

    hidden_size: int | None = None
    """Its width."""

    num_layers: int | None = None
    """Its depth."""


class Autotuning(Section):
    """`autotuning`; left on in a normal run it ends the job after a few steps, with status 0."""

    model_config = ConfigDict(protected_namespaces=())

    enabled: bool = False
    """Tune."""

    fast: bool = True
    """Only micro-batch sizes."""

    results_dir: str = "autotuning_results"
    """Where results go."""

    exps_dir: str = "autotuning_exps"
    """Where the tried configurations go."""

    overwrite: bool = True
    """Delete earlier results first."""

    start_profile_step: Positive = 3
    """First measured step."""

    end_profile_step: Positive = 5
    """Last measured step; the run ends after it."""

    metric: Literal["latency", "throughput", "flops", "forward", "backward", "step"] = "throughput"
    """What is best."""

    metric_path: str | None = None
    """Where the metric is written."""

    tuner_type: Literal["gridsearch", "random", "model_based"] = "gridsearch"
    """How the space is searched."""

    tuner_early_stopping: int = 5
    """Trials without a gain after which the search stops."""

    tuner_num_trials: int = 50
    """Most trials."""

    arg_mappings: dict[str, str] | None = None
    """Which script arguments carry which keys."""

    model_info: ModelInfo | None = None
    """What is known of the model."""

    model_info_path: str | None = None
    """Where what was measured of the model is written."""

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
