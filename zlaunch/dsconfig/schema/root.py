"""The whole ds_config: its top-level keys and sections."""

from typing import Annotated, Literal

from zlaunch.dsconfig.schema.autotuning import Autotuning
from zlaunch.dsconfig.schema.compute import (
    ActivationCheckpointing,
    Compile,
    HybridEngine,
    Pipeline,
    WeightQuantization,
)
from zlaunch.dsconfig.schema.data import DataEfficiency
from zlaunch.dsconfig.schema.monitor import (
    Comet,
    CommsLogger,
    CsvMonitor,
    FlopsProfiler,
    TensorBoard,
    Timers,
    Wandb,
)
from zlaunch.dsconfig.schema.optimizer import Optimizer
from zlaunch.dsconfig.schema.parallel import ExpertParallel, TensorParallel
from zlaunch.dsconfig.schema.precision import Bf16, DataTypes, Fp16, OldBf16, TorchAutocast
from zlaunch.dsconfig.schema.scheduler import Scheduler
from zlaunch.dsconfig.schema.section import OUTDATED, Absent, AnyCase, MaybeAuto, OnDemand, Positive, Section
from zlaunch.dsconfig.schema.storage import Aio, Checkpoint
from zlaunch.dsconfig.schema.zero import Zero

CommunicationDtype = AnyCase[Literal["fp16", "bf16", "fp32"]]


class DsConfig(Section):
    """Every key DeepSpeed 0.19 reads."""

    train_batch_size: MaybeAuto[Positive] | None = None
    """Samples per optimizer step over all ranks: micro-batch x accumulation x data-parallel ranks."""

    train_micro_batch_size_per_gpu: MaybeAuto[Positive] | None = None
    """Samples per forward pass on one rank."""

    gradient_accumulation_steps: MaybeAuto[Positive] | None = None
    """Forward passes per optimizer step."""

    managed_gradient_accumulation: bool = True
    """DeepSpeed finds the accumulation boundary itself."""

    optimizer: Absent[Optimizer] = None
    """The optimizer that DeepSpeed creates; leave it out if the script creates its own."""

    scheduler: Absent[Scheduler] = None
    """The learning-rate schedule that DeepSpeed creates."""

    gradient_clipping: MaybeAuto[float] = 1.0
    """Largest gradient norm; 0 turns clipping off. The default was 0 before 0.19."""

    zero_optimization: OnDemand[Zero] = Zero.model_construct()
    fp16: OnDemand[Fp16] = Fp16.model_construct()
    bf16: OnDemand[Bf16] | None = None
    bfloat16: Annotated[Absent[OnDemand[OldBf16]], OUTDATED] = None
    torch_autocast: Absent[OnDemand[TorchAutocast]] = None
    data_types: OnDemand[DataTypes] = DataTypes.model_construct()

    steps_per_print: Positive | None = None
    """Steps between progress lines; the Trainer always turns them off."""

    wall_clock_breakdown: bool = False
    """Time forward, backward and step separately."""

    memory_breakdown: bool = False
    """Print memory use in each phase of the engine."""

    dump_state: bool = False
    """Print the engine's state at start."""

    log_level: Literal["debug", "info", "warning", "error", "critical"] | None = None
    """Log level of DeepSpeed."""

    disable_python_gc: bool = False
    """Collect Python's garbage only between steps."""

    disable_allgather: Annotated[bool, OUTDATED] = False
    """No longer used by DeepSpeed."""

    communication_data_type: CommunicationDtype | None = None
    """Data type for gradient communication; by default the model's."""

    seq_parallel_communication_data_type: CommunicationDtype = "fp32"
    """Data type for gradients between sequence-parallel ranks."""

    prescale_gradients: bool = False
    """Divide gradients before they are summed (stages 0 and 1)."""

    gradient_predivide_factor: float = 1.0
    """Divide gradients by this before the sum, and by the remaining factor after it."""

    gradient_allreduce_op: AnyCase[Literal["mean", "sum"]] = "mean"
    """Whether gradients are averaged or summed."""

    zero_allow_untested_optimizer: bool = False
    """Allow any optimizer with ZeRO; the Trainer turns this on."""

    zero_force_ds_cpu_optimizer: bool = True
    """With offload, refuse optimizers other than DeepSpeed's own."""

    dataloader_drop_last: bool = False
    """For the data loader that `deepspeed.initialize` creates."""

    use_data_before_expert_parallelism: bool = False
    """Order of ranks in MoE groups."""

    vocabulary_size: int | None = None
    """Only used to warn if it is not a multiple of 8."""

    sequence_parallel_size: Absent[Positive] = None
    """Ranks that share a sequence; read only together with `data_parallel_size`."""

    data_parallel_size: Absent[Positive] = None
    """Data-parallel ranks; read only together with `sequence_parallel_size`."""

    allgather_size: Positive | None = None
    """Only for the old `"zero_optimization": true`."""

    activation_checkpointing: Absent[OnDemand[ActivationCheckpointing]] = None
    aio: OnDemand[Aio] | None = None
    checkpoint: OnDemand[Checkpoint] = Checkpoint.model_construct()

    datastates_ckpt: dict[str, object] | bool | None = None
    """The DataStates checkpoint engine's settings; any value but false turns it on."""

    tensorboard: OnDemand[TensorBoard] = TensorBoard.model_construct()
    wandb: OnDemand[Wandb] = Wandb.model_construct()
    csv_monitor: OnDemand[CsvMonitor] = CsvMonitor.model_construct()
    comet: OnDemand[Comet] = Comet.model_construct()
    comms_logger: OnDemand[CommsLogger] = CommsLogger.model_construct()
    flops_profiler: OnDemand[FlopsProfiler] = FlopsProfiler.model_construct()
    timers: OnDemand[Timers] = Timers.model_construct()
    compile: OnDemand[Compile] = Compile.model_construct()
    tensor_parallel: OnDemand[TensorParallel] = TensorParallel.model_construct()
    expert_parallel: OnDemand[ExpertParallel] | None = None
    pipeline: Absent[OnDemand[Pipeline]] = None
    hybrid_engine: OnDemand[HybridEngine] = HybridEngine.model_construct()
    weight_quantization: Absent[OnDemand[WeightQuantization]] = None
    data_efficiency: Absent[OnDemand[DataEfficiency]] = None
    autotuning: Absent[OnDemand[Autotuning]] = None

    @property
    def brain_float(self) -> Bf16:
        """The section `bf16`, or `bfloat16` if only that is present."""
        return self.bf16 or self.bfloat16 or Bf16.model_construct()
