"""A job to estimate, the workload of one of its ranks, and the resulting estimate or refusal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, Final, Literal, get_args

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO
from zlaunch.config.resolve.compose import compose
from zlaunch.config.resolve.job import ResolveContext, ResolvedConfig, resolve_config
from zlaunch.config.resolve.values import Sourced, Values
from zlaunch.dsconfig.batch import RankGroups, rank_groups
from zlaunch.errors import Finding, Refused, Severity, Unavailable
from zlaunch.estimate.asked_adapters import adapters_of, four_bits_of, frozen_by
from zlaunch.estimate.changes import CHECKPOINTING_FLAGS, Options
from zlaunch.estimate.fit import Cluster, Fit, FitResult, MemoryNeed, check_fit, left_out, memory_need
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.speed.step_time import Speed
from zlaunch.estimate.splits import Split, split_by_arguments, split_by_config
from zlaunch.estimate.uncounted import ADAPTED, FROZEN, LIGER_FLAGS, QUANTIZED, Uncounted, in_arguments
from zlaunch.estimate.workload import ONE_IMAGE, Attention, FourBits, Images, Lora, Workload
from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs
from zlaunch.job.model import SEQ_LEN_FLAGS, ModelConfig, read_processor
from zlaunch.job.model_checks import quantization, usable_positions
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.spec import JobSpec, Precision
from zlaunch.job.trainer_args import Argument

USUAL_SEQ_LEN: Final = 2048
"""Default sequence length, if the model takes that many tokens."""


_DTYPES: Final[Mapping[str, Precision]] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "bf16": "bf16",
    "fp16": "fp16",
}


@dataclass(frozen=True)
class Training:
    """How a model is trained, apart from its ds_config."""

    seq_len: Sourced
    activation_checkpointing: bool = False
    attention: Attention = "sdpa"
    lora: Lora | None = None
    frozen: str | None = None
    """Pattern of the names of parameters that are not trained."""
    images: Images = ONE_IMAGE
    processor: Mapping[str, Any] = field(default_factory=dict)
    """How the model's processor prepares images, if that is here."""
    liger: bool = False
    four_bits: FourBits | None = None
    load_dtype: Precision = "fp32"
    remote_code: str | None = None
    resumes: bool = False
    """Whether it resumes from a checkpoint."""
    split: Split | None = None
    """What splits the model or its sequences, apart from the ds_config."""
    uncounted: tuple[Uncounted, ...] = ()
    """What of it an estimate leaves out."""
    assumes_length: bool = False
    """Whether nothing says how long its sequences are."""
    partitioned_at_birth: bool = True
    """Whether stage 3 shards each layer as it is created, as transformers does."""
    batch: str | None = None
    """The shapes of a batch, where a program was rehearsed that made it."""

    @property
    def assumed_length(self) -> str:
        """The sequences for which a verdict holds; empty if it is known how long they are."""
        if not self.assumes_length:
            return ""
        return f"sequences of {self.seq_len.value} tokens (`--seq-len N` if they are longer)"


@dataclass(frozen=True)
class EstimateQuery:
    """One job to estimate, and where it would run."""

    job: JobSpec
    given: ResolveContext
    model: ModelConfig
    training: Training
    cluster: Cluster
    findings: tuple[Finding, ...] = ()
    """Why it cannot work, apart from its ds_config."""
    remarks: tuple[Finding, ...] = ()
    """Findings that do not stop the estimate."""

    @property
    def groups(self) -> RankGroups:
        """Its ranks by what they share."""
        return rank_groups(compose(self.job, self.given.base).config(), self.given.world_size)

    def resolve(self) -> ResolvedConfig:
        """Resolve its ds_config; raise Refused if the job cannot work.

        Ranks that share sequences are taken to be grouped by Ulysses, as accelerate does.
        """
        given = self.given
        if self.groups.sequences > 1:
            given = replace(given, has_own_groups=True)
        return resolve_config(self.job, given, self.findings)

    def with_options(self, options: Options, source: Source | None = None) -> "EstimateQuery":
        """Apply options; `source` is the source of the batch sizes, by default the options."""
        training = replace(
            self.training,
            attention=options.attention or self.training.attention,
            lora=options.lora or self.training.lora,
        )
        if options.activation_checkpointing is not None:
            training = replace(training, activation_checkpointing=options.activation_checkpointing)
        if options.seq_len is not None:
            length = Sourced(options.seq_len, Source.option("--seq-len"))
            training = replace(training, seq_len=length, assumes_length=False)
        args = self.given.args
        sizes = {
            "per_device_train_batch_size": (options.micro_batch, "--micro-batch"),
            "gradient_accumulation_steps": (options.grad_accum, "--grad-accum"),
        }
        for name, (value, flag) in sizes.items():
            if value is not None:
                args = args.over(name, Argument(value, source or Source.option(flag), given=True))
        given = replace(self.given, args=args)
        return replace(self, job=options.apply_shared(self.job), training=training, given=given)


def training_of(
    model: ModelConfig, typed: ScriptArgs, options: Options, usual_seq_len: int = USUAL_SEQ_LEN
) -> Training:
    """Combine options, script arguments and the model's config, in this order of precedence.

    `usual_seq_len` is the sequence length where neither options nor arguments give one.
    """
    arguments = {flag.name: flag.value or "true" for flag in typed.flags}
    dtype = arguments.get("dtype") or arguments.get("torch_dtype") or model.first("dtype", "torch_dtype")
    named = arguments.get("attn_implementation")
    attention: Attention = next((known for known in get_args(Attention) if known == named), "sdpa")
    resumed = arguments.get("resume_from_checkpoint", "false")
    checkpointing = options.activation_checkpointing or typed.is_on(*CHECKPOINTING_FLAGS)
    lora, frozen, four_bits = options.lora or adapters_of(typed), frozen_by(typed), None
    if lora is not None:
        four_bits = four_bits_of(typed)
    given = _given_seq_len(arguments, options.seq_len)
    return Training(
        seq_len=given or _usual_seq_len(model, usual_seq_len),
        activation_checkpointing=bool(checkpointing),
        attention=options.attention or attention,
        lora=lora,
        frozen=frozen,
        processor=read_processor(model),
        liger=bool(typed.is_on(*LIGER_FLAGS)),
        four_bits=four_bits,
        load_dtype=_DTYPES.get(str(dtype).removeprefix("torch."), "fp32"),
        resumes=resumed.lower() not in ("false", "none", ""),
        split=split_by_arguments(typed),
        assumes_length=given is None and model.first("vocab_size") is not None,
        uncounted=tuple(in_arguments(typed, _counted(lora, frozen, four_bits))),
    )


def _counted(lora: Lora | None, frozen: str | None, four_bits: FourBits | None) -> set[str]:
    """Name what is counted of the arguments that an estimate may leave out."""
    given = {ADAPTED: lora, FROZEN: frozen, QUANTIZED: four_bits}
    return {does for does, value in given.items() if value is not None}


def _given_seq_len(arguments: Mapping[str, str], option: int | None) -> Sourced | None:
    if option is not None:
        return Sourced(option, Source.option("--seq-len"))
    for name in SEQ_LEN_FLAGS:
        if (text := arguments.get(name, "")).isdecimal() and len(text) < 10 and int(text) > 0:
            return Sourced(int(text), Source.argument(name))
    return None


def _usual_seq_len(model: ModelConfig, usual: int) -> Sourced:
    most = usable_positions(model)
    if most is not None and most < usual:
        return Sourced(most, Source.computed("the maximum of this model; set it with `--seq-len`"))
    return Sourced(usual, Source(SourceKind.ZLAUNCH_DEFAULT, "default; set it with `--seq-len`"))


def workload_of(query: EstimateQuery, resolved: ResolvedConfig) -> Workload:
    """Describe the first rank of a job."""
    training, given = query.training, query.given
    stage = resolved.config.zero_optimization.stage
    accelerator: Literal["cuda", "cpu"] = "cpu"
    if given.machine.gpus:
        accelerator = "cuda"
    return Workload(
        model=query.model.value,
        ds_config=_ds_config(resolved),
        world_size=given.world_size,
        ranks_per_host=query.cluster.ranks_per_host,
        seq_len=training.seq_len.value,
        optimizer=str(resolved.agreement.args["optim"].value),
        load_dtype=training.load_dtype,
        zero_init=stage == 3 and training.partitioned_at_birth,
        activation_checkpointing=training.activation_checkpointing,
        lora=training.lora,
        frozen=training.frozen,
        images=training.images,
        processor=training.processor,
        liger=training.liger,
        four_bits=training.four_bits,
        attention=training.attention,
        accelerator=accelerator,
        cublas_bytes=query.cluster.cublas_bytes,
        remote_code=training.remote_code,
    )


def _ds_config(resolved: ResolvedConfig) -> dict[str, Any]:
    """Write the ds_config of a rehearsal; sequences are shared without a device mesh, as accelerate does."""
    ds_config = _without_autos(resolved).config()
    if rank_groups(ds_config, 1).sequences > 1:
        ds_config.pop("data_parallel_size", None)
        ds_config.pop("train_batch_size", None)  # of fewer ranks than the Trainer multiplies by
    return ds_config


def check_countable(query: EstimateQuery, resolved: ResolvedConfig) -> None:
    """Raise Unavailable for a job that neither a rehearsal nor the closed form can estimate."""
    if (method := quantization(query.model)) is not None:
        raise Unavailable(
            f"cannot tell how much memory {query.model.source} takes: its `quantization_config` "
            f"uses `{method}`, and quantized weights are not supported",
            "use the model that it was quantized from, or delete `quantization_config`",
        )
    split = split_by_config(resolved.values, query.given.interface) or query.training.split
    if split is not None:
        raise split.unavailable()


def _without_autos(resolved: ResolvedConfig) -> Values:
    """Drop each "auto" that the script fills in; use a number where DeepSpeed requires one."""
    values = resolved.values
    for path in values.autos():
        if path in (MICRO, ACCUMULATION):
            values = values.put(path, 1, Source.computed("the smallest possible"))
        elif path[0] == "scheduler":
            values = values.put(path, 1000, Source.computed("any number, since a schedule takes no memory"))
        else:
            values = values.without(path)
    return values


@dataclass(frozen=True)
class Estimate:
    """Memory and speed of a job that DeepSpeed accepts."""

    query: EstimateQuery
    resolved: ResolvedConfig
    workload: Workload
    forecast: Forecast
    speed: Speed | None = None
    """None if the speed of the GPU is unknown."""
    remarks: tuple[Finding, ...] = ()
    """What the numbers leave out, and whether a run could be resumed."""

    @cached_property
    def need(self) -> MemoryNeed:
        """What its ranks need."""
        return memory_need(self.forecast, self.query.cluster)

    @cached_property
    def verdict(self) -> FitResult:
        """Whether it fits, and why."""
        return check_fit(self.forecast, self.query.cluster, self.query.training.uncounted)

    @property
    def fit(self) -> Fit:
        """Whether it fits."""
        return self.verdict.fit

    @property
    def doubts(self) -> bool:
        """Whether what is not counted leaves open whether it fits, and not only the lack of a GPU."""
        return self.fit is Fit.UNKNOWN and self.query.cluster.gpu is not None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings to show with the numbers."""
        return (*self.query.remarks, *self.resolved.warnings, *self.remarks)

    @property
    def seconds(self) -> float | None:
        """Seconds of a step: the middle of the likely range."""
        if self.speed is None:
            return None
        return self.speed.roofline.middle

    @property
    def seconds_per_token(self) -> float | None:
        """Seconds per token, to compare steps of different lengths."""
        if self.speed is None or self.seconds is None:
            return None
        roofline = self.speed.roofline
        return self.seconds / (roofline.tokens_per_second * roofline.seconds)


@dataclass(frozen=True)
class Rejected:
    """Why a job cannot work, or cannot be estimated."""

    error: Refused | Unavailable

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The reasons."""
        if isinstance(self.error, Refused):
            return self.error.findings
        return (Finding("cannot-tell", self.error.message, self.error.hint, severity=Severity.ADVICE),)


def remarks_on(forecast: Forecast, query: EstimateQuery) -> Iterator[Finding]:
    """Report what a forecast does not count, and whether the run could resume from its checkpoint."""
    cluster = query.cluster
    for note in forecast.notes:
        yield Finding("counted-otherwise", note, severity=Severity.ADVICE)
    yield from not_counted(left_out(forecast, query.training.uncounted))
    resume = forecast.resume
    if resume is None:
        return
    if resume.error is not None:
        message = f"its checkpoint could not be resumed: DeepSpeed fails: {resume.error}"
        yield Finding("cannot-resume", message, "train to the end in one run", severity=Severity.ADVICE)
    elif resume.why_not_rehearsed is not None:
        message = f"resuming from its checkpoint could not be rehearsed: {resume.why_not_rehearsed}"
        yield Finding("counted-otherwise", message, severity=Severity.ADVICE)
    else:
        resumed = check_fit(forecast.resumed(), cluster)
        if resumed.fit is not check_fit(forecast, cluster).fit:
            message = f"resuming takes more memory: {resumed.fit.value}: {'; '.join(resumed.reasons)}"
            yield Finding("cannot-resume", message, severity=Severity.ADVICE)


def not_counted(uncounted: Iterable[Uncounted]) -> Iterator[Finding]:
    """Report what an estimate leaves out."""
    for one in uncounted:
        yield Finding("not-counted", str(one), severity=Severity.ADVICE)


def is_fit(result: Estimate | Rejected) -> bool:
    """Whether a job fits for sure."""
    return isinstance(result, Estimate) and result.fit is Fit.YES


def refuse_if_none_works(results: Sequence[Estimate | Rejected]) -> None:
    """Raise the error with the fewest findings if none of several jobs can work or be estimated."""
    rejections = [result for result in results if isinstance(result, Rejected)]
    if rejections and len(rejections) == len(results):
        raise min(rejections, key=lambda rejected: len(rejected.findings)).error
