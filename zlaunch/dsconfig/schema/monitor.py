"""Sections about monitoring: monitors, loggers, profilers, timers."""

from typing import Annotated

from pydantic import Field

from zlaunch.dsconfig.schema.section import Positive, Section, Switched


class _FileMonitor(Switched):
    output_path: str = ""
    """Directory of the files; relative to the working directory."""

    job_name: str = "DeepSpeedJobName"
    """Name of the run below `output_path`."""


class TensorBoard(_FileMonitor):
    """Metrics for TensorBoard; needs the package `tensorboard`."""


class Wandb(Switched):
    """Metrics for Weights & Biases; needs the package `wandb`."""

    group: str | None = None
    """Group of the run."""

    team: str | None = None
    """Team of the run."""

    project: str = "deepspeed"
    """Project of the run."""


class CsvMonitor(_FileMonitor):
    """Metrics as CSV files, one for each metric."""


class Comet(Switched):
    """Metrics for Comet; needs the package `comet_ml`."""

    samples_log_interval: int = 100
    """Samples between two reports."""

    project: str | None = None
    """Project of the experiment."""

    workspace: str | None = None
    """Workspace of the experiment."""

    api_key: str | None = None
    """API key; better set in the environment."""

    experiment_name: str | None = None
    """Name of the experiment."""

    experiment_key: str | None = None
    """Key of an experiment to continue."""

    online: bool | None = None
    """Report during the run."""

    mode: str | None = None
    """What to do with an existing experiment."""


class CommsLogger(Switched):
    """Counts and times of collectives."""

    prof_all: bool = True
    """Record all of them."""

    prof_ops: list[str] = []
    """Record only these, when `prof_all` is off."""

    verbose: bool = False
    """Print a line for each."""

    debug: bool = False
    """Log the caller of each."""


class FlopsProfiler(Switched):
    """One profiled step."""

    recompute_fwd_factor: float = 0.0
    """Share of the forward pass that is recomputed in backward."""

    profile_step: Positive = 1
    """Step to profile."""

    module_depth: Annotated[int, Field(ge=-1)] = -1
    """Depth of the table; -1 for all levels."""

    top_modules: Positive = 1
    """Number of modules per level."""

    detailed: bool = True
    """Print the annotated model as well."""

    output_file: str | None = None
    """File of the report; by default the console."""


class ThroughputTimer(Section):
    """Samples per second."""

    enabled: bool = True
    """Measure samples per second."""

    synchronized: bool = True
    """Synchronize the device before each measurement."""


class Timers(Section):
    """Timers."""

    throughput: ThroughputTimer = ThroughputTimer.model_construct()
