"""The type of each record in a run directory. A member of a wrong type is left out when a record is read.

They are `TypedDict`s because ranks use them too: pydantic would take longer to import than all of a rank's
program.
"""

from typing import Annotated, NamedTuple, TypedDict

Finite = Annotated[float, "finite"]
"""A time or an amount; a loss may be NaN or infinite, and is a plain float."""


class Lineage(NamedTuple):
    """Which run a run continues or repeats."""

    attempt: int = 1
    continues: str | None = None
    """The failed run that this one continues."""
    repeats: str | None = None
    """The run that `zlaunch runs rerun` repeats."""
    why: str | None = None
    """What differs from that run."""


FIRST = Lineage()


class SlotRecord(TypedDict, total=False):
    """Where a rank runs."""

    rank: int
    host: str
    local_rank: int
    device: int


class DebugRecord(TypedDict, total=False):
    """Which rank waits for a debugger, and where it listens."""

    rank: int
    host: str
    port: int


class ProfileRecord(TypedDict, total=False):
    """Which steps of which ranks are profiled; None for all."""

    first: int | None
    last: int | None
    ranks: list[int] | None
    with_nsys: bool


class SecretsRecord(TypedDict, total=False):
    """`secrets.json`: by what secrets are recognized in the logs."""

    salt: str
    digests: dict[str, list[str]]
    """Number of characters → salted hashes of the secrets of that length."""


class StartRecord(TypedDict, total=False):
    """The part of `job.json` that sorts runs."""

    started: Finite


class NodePlanRecord(TypedDict, total=False):
    """How the launcher is started on one of several hosts."""

    host: str
    start: list[str]
    """What starts zlaunch there; empty where its own zlaunch connects."""
    argv: list[str]
    """The launcher."""
    environment: dict[str, str]
    """Variables of this host alone."""
    python: str
    """The interpreter of its ranks."""
    ranks: list[int]


class OrderRecord(TypedDict, total=False):
    """What a host is told to do."""

    node: int
    run_directory: str
    working_directory: str
    files: dict[str, str]
    """Name → text of the files in the run directory that ranks read."""
    argv: list[str]
    environment: dict[str, str]
    ranks: list[int]
    shielded: bool
    shared: bool
    """Both as in `JobRecord`."""
    rendezvous: list[str]
    """Address and port at which the first host listens; empty for itself."""
    report_seconds: Finite
    """How much longer than other jobs it may take to end, because of nsys."""


class NodeRecord(TypedDict, total=False):
    """How the part of a job on one host ended."""

    node: int
    host: str
    started: Finite
    ended: Finite
    returncode: int
    """That of the launcher."""
    stopped_by: int | None
    error: str
    """Why the launcher could not be started there."""
    lost: str
    """Why nothing more was heard from the host."""
    said: str
    """The last words of ssh or srun about it."""


class PlanRecord(TypedDict, total=False):
    """What a plan decides."""

    run_directory: str
    launcher: str
    accelerator: str
    python: str
    """The interpreter of the ranks."""
    module: str | None
    script: list[str]
    argv: list[str]
    precision: str | None
    interface: str
    """What reads the ds_config in the script, a value of `ConfigInterface`."""
    handover: str
    """How the ds_config reaches the script, a value of `Handover`."""
    debug: DebugRecord | None
    profile: ProfileRecord | None
    passes_local_rank: bool
    """Whether each script gets its local rank as an argument."""
    local_rank_flag: str
    """The argument; absent from older records, which mean `--local_rank`."""
    shielded: bool
    """Whether SIGTERM is blocked in all programs below zlaunch, which saves then."""
    ranks: list[SlotRecord]
    over_ssh: bool
    """Whether ranks may run on other hosts, however zlaunch reaches them."""
    reach: str
    """How zlaunch reached the hosts, a value of `Reach`."""
    rendezvous: list[str]
    """Address and port of the first host, for ranks that their launcher does not tell."""
    stage: int | None
    offload: dict[str, str | None]
    micro_batch: int | None
    grad_accum: int | None
    train_batch_size: int | None
    environment: dict[str, str]
    swap_dirs: list[str]
    native_ops: list[str]
    resumed_step: int | None
    """The step of the checkpoint that the run was to resume from."""


class JobRecord(PlanRecord, total=False):
    """`job.json`: the plan of a run, and which zlaunch started it."""

    asked: list[str]
    started: Finite
    working_directory: str
    saves_to: str | None
    """Where its checkpoints or its model go; None if only its script knows."""
    nodes: list[NodePlanRecord]
    """The hosts on which zlaunch itself starts a launcher each."""
    control_port: int
    """The port to which the zlaunch of each host connects; 0 if none does."""
    spec: dict[str, object]
    """Options of the job that the plan does not show, so that it can be planned again."""
    host: str
    boot: str
    pid_namespace: str
    """These three say where `zlaunch_pid` is valid: a field of `Whereabouts` each."""
    zlaunch_pid: int
    zlaunch_started: Finite
    script_sha256: str | None
    inherited: dict[str, str]
    attempt: int
    continues: str | None
    repeats: str | None
    why: str | None
    forced: list[str]
    """Why it would have been refused without `--force`."""
    shared: bool
    """Whether the umask decides who may read the run directory, instead of its owner alone."""


class GitRecord(TypedDict, total=False):
    """State of the repository the run was started from."""

    commit: str
    branch: str
    changed: list[str]
    diff_sha256: str | None


class GpuRecord(TypedDict, total=False):
    """One GPU of the machine."""

    name: str


class MachineRecord(TypedDict, total=False):
    """The machine that zlaunch ran on."""

    num_cores: int
    gpus: list[GpuRecord]


class EnvironmentRecord(TypedDict, total=False):
    """`environment.json`: software and hardware the run depended on."""

    zlaunch: str
    packages: dict[str, str | None]
    python: str
    machine: MachineRecord
    git: GitRecord | None


class ProvenanceRecord(TypedDict, total=False):
    """`provenance.json`: key of the ds_config → where its value comes from, or what fills it in."""

    set: dict[str, str]
    left: dict[str, str]
    expected: dict[str, object]
    """The ds_config with the numbers that the program told, if the file leaves them to the Trainer."""


class PhaseRecord(TypedDict, total=False):
    """Predicted memory of one rank in one phase: pool → bytes."""

    name: str
    peak: dict[str, int]


class StepForecast(TypedDict, total=False):
    """The predicted time of a step; each range is its best and worst value in seconds."""

    likely: list[Finite]
    bound_by: str
    """The term that probably takes longest."""
    terms: dict[str, list[Finite]]


class ForecastRecord(TypedDict, total=False):
    """`forecast.json`: the forecast of memory, and of the time of a step where the GPU is known."""

    phases: list[PhaseRecord]
    step: StepForecast | None


class RankRecord(TypedDict, total=False):
    """`rank-N.json`: how a rank started and ended."""

    rank: int
    local_rank: int
    host: str
    started: Finite
    pid: int
    buffer: str
    """File in shared memory that DeepSpeed leaves behind."""
    ended: Finite
    returncode: int
    stopped_by: int | None
    stopped_at: Finite | None
    peak_rss_bytes: int | None
    """None if only the samples tell, because a compiler ran below the script."""
    signalled: bool
    """Whether somebody, or its launcher, sent it the signal; not if zlaunch had ordered all ranks to stop."""
    group_oom_kills: int | None
    """Processes of its control group that the kernel killed for lack of memory meanwhile."""
    machine_oom_kills: int | None
    """The same of the whole host, whoever they belonged to."""


class PrintedRecord(TypedDict, total=False):
    """The end of a rank that could not write its record."""

    record: RankRecord
    log: str
    """The end of what its script printed, if it failed."""


class HeartbeatRecord(TypedDict, total=False):
    """`rank-N.pulse.json`: what the script is doing, written from inside its process."""

    phase: str
    since: Finite
    time: Finite
    step: int
    steps: int | None
    first_step: int
    trained: bool
    saves_step: int
    """The step after which it saves and ends, because it was asked to."""
    loss: float | None
    first_loss: float | None
    loss_step: int
    end_loss: float
    """The median of the last losses."""
    end_losses: int
    """How many of them."""
    step_loss: float
    """The loss of the last step, from the losses of its micro-batches that the engine was given."""
    discarded_backwards: int
    """Backward passes whose gradients the engine replaced before a step."""
    backwards_of_step: int
    """Backward passes of the last step that was concerned."""
    eval_loss: float | None
    seen_loss_step: int
    """The step of the loss that was last looked at: on a GPU, not every one is."""
    loss_lost: int
    """The first step at which the loss was not a finite number; absent if it is again."""
    finite_loss_step: int
    """The last step at which it was."""
    grad_norm: float | None
    grad_norm_lost: int
    finite_grad_norm_step: int
    learning_rate: float | None
    loss_scale: float | None
    first_loss_scale: float | None
    """After the first step."""
    taken_steps: int
    """Steps of this run's engines, with those that were skipped."""
    skipped_steps: int
    """Those of them that changed no weight, because the gradients were not finite."""
    idle_steps: int
    """The last ones, at which the learning rate was 0 after it had not been."""
    tokens: int
    timed_steps: int
    """Steps whose time is known: all but the first ones."""
    parts: dict[str, Finite]
    """Their seconds: phase or part of a phase → time on the clock of the host."""
    busy: Finite
    """Share of the time of forward and backward passes in which the main thread had a CPU."""
    gpu_steps: int
    """Steps that were measured with events on the GPU."""
    gpu_parts: dict[str, Finite]
    """Their seconds there, as `parts`."""
    device: str
    """The model of its GPU."""
    allocator_retries: int
    """How often torch had to free its cache of GPU memory since the warm-up."""
    gpu_allocated_bytes: int
    gpu_reserved_bytes: int


def loss_of(heartbeat: HeartbeatRecord) -> float | None:
    """Return the loss of the last step, or what was logged later, which may be a mean of several steps."""
    if heartbeat.get("loss_step", 0) > heartbeat.get("seen_loss_step", 0):
        return heartbeat.get("loss")
    return loss_of_step(heartbeat)


class GpuSample(TypedDict, total=False):
    """Memory of a rank's GPU."""

    used_bytes: int
    total_bytes: int
    uncorrected_errors: int


class MachineSample(TypedDict, total=False):
    """Memory and disk of a host."""

    memory_bytes: int
    memory_available_bytes: int
    cgroup_bytes: int | None
    cgroup_limit_bytes: int | None
    shm_bytes: int | None
    shm_free_bytes: int | None
    disk_free_bytes: int | None


class SampleRecord(TypedDict, total=False):
    """`rank-N.sample.json`: resources that a rank and its host use."""

    time: Finite
    host: str
    rss_bytes: int
    peak_rss_bytes: int | None
    status: str
    cpu_seconds: Finite
    compiling: bool
    """Whether a compiler worked below the script; looked at only if it sent no heartbeat for a while."""
    gpu: GpuSample | None
    machine: MachineSample | None


class FrameRecord(TypedDict, total=False):
    """One call in a traceback."""

    file: str
    line: int | None
    function: str


class ErrorRecord(TypedDict, total=False):
    """`rank-N.error.json`: the exception that ended a script."""

    type: str
    module: str
    message: str
    traceback: str
    frame: FrameRecord | None
    """The deepest frame in the user's own code."""
    phase: str
    step: int
    rank: int
    host: str
    time: Finite


class EngineRecord(TypedDict, total=False):
    """The DeepSpeed engine that a script created."""

    kind: str
    """Its class, such as `DeepSpeedEngine`."""
    stage: int
    ds_config: dict[str, object]
    """As DeepSpeed read it, with every "auto" filled in."""
    optimizer: str
    micro_batch: int
    grad_accum: int
    train_batch_size: int
    trainable: int
    """Elements of its trained parameters."""
    model_config: dict[str, object]
    """That of transformers; absent for another model."""
    gradient_checkpointing: bool
    """Whether the model recomputes activations, as one of transformers says."""


class ProgramRecord(TypedDict, total=False):
    """`rank-N.program.json`: what the script trained with, as it was created."""

    engine: EngineRecord
    """The first engine that trains."""
    num_engines: int
    """Engines that train: without reference models."""
    trainer_args: dict[str, object]
    """The Trainer's final arguments."""
    saved_checkpoint: str
    """The directory that the engine saved to last: that of a Trainer's checkpoint, or of all its tags."""
    saved_model: str
    """The directory that the Trainer saved its model to, apart from checkpoints."""
    parallel: list[str]
    """Wrappers of torch that it used, such as `DistributedDataParallel`."""
    trackers: dict[str, dict[str, str]]
    """`wandb`, `trackio` or `tensorboard` → where it reports to: `url`, `directory` or `project`."""


class MetricsRecord(TypedDict, total=False):
    """One line of `metrics.jsonl`: the state of the job at one moment."""

    time: Finite
    step: int | None
    steps: int | None
    phase: str | None
    loss: float | None
    learning_rate: float | None
    tokens_per_second: Finite | None
    mfu: Finite | None
    seconds_left: Finite | None
    seconds_per_step: Finite | None
    ranks: list[dict[str, int | str | None]]
    machines: dict[str, MachineSample]


class OperationRecord(TypedDict, total=False):
    """One operation of torch in a profiled step."""

    name: str
    calls: Finite
    seconds: Finite
    """Its own, without those that it calls."""


class OperationsRecord(TypedDict, total=False):
    """`rank-N.operations.json`: a profile of some steps; all numbers are those of one step."""

    first: int
    last: int
    """The last whole step, or the first one if the script ended within it."""
    whole_steps: int
    seconds: Finite
    usual_seconds: Finite
    """The time of the step before the profile began."""
    export_seconds: Finite
    """How long it took to write the trace."""
    on_gpu: bool
    """Whether the times are those of the GPU."""
    operations: list[OperationRecord]


class StepRecord(TypedDict, total=False):
    """One line of `steps.jsonl`: the first rank after a step."""

    step: int
    time: Finite
    count: int
    """How many steps the line stands for, if not one. With 0, it only has the times of phases."""
    loss: float | None
    """The last value, as are the other numbers."""
    step_loss: float | None
    eval_loss: float | None
    learning_rate: float | None
    grad_norm: float | None
    loss_scale: float | None
    step_seconds: Finite
    """The time of the step alone, without checkpoints and evaluations."""
    range: dict[str, list[float]]
    """Of several steps: number → its lowest and highest finite value, if they differ."""
    not_finite: dict[str, int]
    """Of several steps: number → how many values were NaN or infinite."""
    tokens: int
    """Tokens of this rank since the start."""
    phases: dict[str, Finite]
    """Seconds in each phase since the last line that has them."""


def loss_of_step(line: StepRecord | HeartbeatRecord) -> float | None:
    """Return the loss that the engine was given, or else the one that was logged: a Trainer logs no NaN."""
    return line.get("step_loss", line.get("loss"))


class VerdictRecord(TypedDict, total=False):
    """Why a run ended."""

    code: str
    cause: str
    rank: int | None
    host: str | None
    phase: str | None
    facts: list[str]
    advice: list[str]
    when: str | None


class StallRecord(TypedDict, total=False):
    """Where the ranks of a stalled run were."""

    seconds: Finite
    step: int
    where: dict[str, str]
    odd: list[int]
    ended_job: bool


class EndingRecord(TypedDict, total=False):
    """`how-it-ended.json`: how a run ended, and why."""

    how: str
    exit_status: int
    returncode: int
    verdict: VerdictRecord | None
    started: Finite
    seconds: Finite
    stall: StallRecord | None
    ranks: list[RankRecord]
