"""A job, its model and its hosts → the workload of one rank, whose memory can be looked into."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO
from zlaunch.config.resolve.resolve import ResolveContext, ResolvedConfig, resolve_config
from zlaunch.config.resolve.values import Sourced, Values
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.errors import Finding, Refused, Severity, Unavailable, WrongUsage, ZlaunchError
from zlaunch.estimate.fit import Cluster, Fit, FitResult, MemoryNeed, check_fit
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.memory.communication import Communication
from zlaunch.estimate.memory.roofline import Roofline
from zlaunch.estimate.workload import Lora, Workload
from zlaunch.job.model import ModelConfig
from zlaunch.job.model_checks import quantization, usable_positions
from zlaunch.job.script import ConfigInterface
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.spec import JobSpec, Precision
from zlaunch.job.trainer_args import Argument, flags, is_switched_on

Attention = Literal["sdpa", "eager", "flash_attention_2"]
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)

USUAL_SEQ_LEN = 2048
"""What an estimate takes if nobody says how long a sequence is, and the model allows it."""

SEQ_LEN_FLAGS = (
    *("max_seq_length", "max_seq_len", "seq_length", "seq_len", "sequence_length", "sequence_len"),
    *("block_size", "cutoff_len", "model_max_length", "max_length", "max_source_length"),
)
"""How scripts name the flag that takes the length of a sequence."""

CHECKPOINTING_FLAGS = ("activation_checkpointing", "gradient_checkpointing")
"""The Trainer's name for it, and the one it had before."""

_ANY_NUMBER = Source.computed("any number: a schedule takes no memory")
ANY_NUMBER_OF_STEPS = 1000
"""For a schedule whose length only the dataset decides, and which takes no memory."""

_LORA = re.compile(r"(?P<rank>[1-9]\d{0,4})(?::(?P<modules>[\w.]+(?:,[\w.]+)*))?")

_DTYPES: Mapping[Any, Precision] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
}


@dataclass(frozen=True)
class Training:
    """How a model is trained, as far as no ds_config says it."""

    seq_len: Sourced
    activation_checkpointing: bool = False
    attention: Attention = "sdpa"
    lora: Lora | None = None
    load_dtype: Precision = "fp32"
    remote_code: str | None = None
    resumes: bool = False
    """Whether it goes on from a checkpoint."""
    partitioned_at_birth: bool = True
    """Whether stage 3 partitions each layer as it is created, as transformers sees to."""


@dataclass(frozen=True)
class EstimateQuery:
    """One job whose memory is asked for."""

    job: JobSpec
    given: ResolveContext
    model: ModelConfig
    training: Training
    ranks_per_host: int
    findings: tuple[Finding, ...] = ()
    """Why it cannot work, besides its ds_config."""
    remarks: tuple[Finding, ...] = ()
    """What else is to be said about it."""

    def settled(self) -> ResolvedConfig:
        """Decide the ds_config; raise Refused if the job cannot work."""
        return resolve_config(self.job, self.given, self.findings)

    def with_argument(self, name: str, value: int | bool, source: str) -> "EstimateQuery":
        """Give the Trainer another argument."""
        args = self.given.args.over(name, Argument(value, Source(SourceKind.OPTION, source), given=True))
        return replace(self, given=replace(self.given, args=args))


@dataclass(frozen=True)
class TrainingOptions:
    """What was said of the training beside the script's own arguments; None for what was not."""

    seq_len: int | None = None
    activation_checkpointing: bool = False
    attention: Attention | None = None
    lora: Lora | None = None


def parse_lora(text: str) -> Lora:
    """Read `16`, or `16:q_proj,v_proj`; raise WrongUsage for anything else."""
    match = _LORA.fullmatch(text)
    if match is None:
        raise WrongUsage(
            f"`--lora {text}` is not RANK[:MODULES]", "write `--lora 16` or `--lora 16:q_proj,v_proj`"
        )
    return Lora(int(match["rank"]), tuple(filter(None, (match["modules"] or "").split(","))))


def training_of(model: ModelConfig, argv: Sequence[str], options: TrainingOptions) -> Training:
    """Gather what options, the script's arguments and the model say about the training, in this order."""
    said = {name: value or "true" for name, value in flags(argv)}
    written = said.get("dtype") or said.get("torch_dtype") or model.first("dtype", "torch_dtype")
    named = said.get("attn_implementation")
    chosen: Attention = next((one for one in ATTENTIONS if one == named), "sdpa")
    switches = [said[name] for name in CHECKPOINTING_FLAGS if name in said]
    resumed = said.get("resume_from_checkpoint", "false")
    return Training(
        seq_len=_seq_len(model, said, options.seq_len),
        activation_checkpointing=options.activation_checkpointing
        or (bool(switches) and is_switched_on(switches[0])),
        attention=options.attention or chosen,
        lora=options.lora,
        load_dtype=_DTYPES.get(str(written).removeprefix("torch."), "fp32"),
        resumes=resumed.lower() not in ("false", "none", ""),
    )


def _seq_len(model: ModelConfig, said: Mapping[str, str], asked: int | None) -> Sourced:
    if asked is not None:
        return Sourced(asked, Source.option("--seq-len"))
    for name in SEQ_LEN_FLAGS:
        if (text := said.get(name, "")).isdecimal() and len(text) < 10 and int(text) > 0:
            return Sourced(int(text), Source.argument(name))
    most = usable_positions(model)
    if most is not None and most < USUAL_SEQ_LEN:
        return Sourced(most, Source.computed("the most this model takes; nobody said, `--seq-len` does"))
    return Sourced(USUAL_SEQ_LEN, Source(SourceKind.ZLAUNCH_DEFAULT, "nobody said; `--seq-len` does"))


def workload_of(question: EstimateQuery, settled: ResolvedConfig) -> Workload:
    """Describe one rank of a job, in all that decides its memory."""
    training, given = question.training, question.given
    stage = settled.config.zero_optimization.stage
    return Workload(
        model=question.model.value,
        ds_config=_closed(settled).config(),
        world_size=given.world_size,
        ranks_per_host=question.ranks_per_host,
        seq_len=training.seq_len.value,
        optimizer=str(settled.agreement.args["optim"].value),
        load_dtype=training.load_dtype,
        zero_init=stage == 3 and training.partitioned_at_birth,
        activation_checkpointing=training.activation_checkpointing,
        lora=training.lora,
        attention=training.attention,
        accelerator="cuda" if given.machine.gpus else "cpu",
        remote_code=training.remote_code,
    )


def check_countable(question: EstimateQuery, settled: ResolvedConfig) -> None:
    """Raise Unavailable for a job of which neither a rehearsal nor a formula can tell the memory."""
    if (method := quantization(question.model)) is not None:
        raise Unavailable(
            f"cannot tell how much memory {question.model.source} takes: its `quantization_config` asks for "
            f"weights quantized by `{method}`, which are not counted",
            "name the model that it was quantized from, or delete `quantization_config` to estimate it whole",
        )
    for key in _splitting(question, settled.config):
        raise Unavailable(
            f"cannot tell how much memory this job takes: `{key}` splits it in a way that is not rehearsed",
            f"estimate it without `{key}`: every rank then has the whole model, or its share by ZeRO",
        )


def _splitting(question: EstimateQuery, config: DsConfig) -> Iterator[str]:
    """Name what splits a model, its sequences or its experts over ranks."""
    if any(name == "parallelism_config" for name, _ in flags(question.job.script_args)):
        yield "--parallelism_config"
    if config.tensor_parallel.autotp_size > 1:
        yield "tensor_parallel.autotp_size"
    if (config.sequence_parallel_size or 1) > 1:
        yield "sequence_parallel_size"
    if config.expert_parallel is not None and config.expert_parallel.enabled:
        yield "expert_parallel"
    if config.pipeline is not None and question.given.interface is ConfigInterface.DEEPSPEED:
        yield "pipeline"
    if config.hybrid_engine.enabled:
        yield "hybrid_engine"


def _closed(settled: ResolvedConfig) -> Values:
    """Leave out what stays open for the script, or close it where DeepSpeed demands a number."""
    values = settled.values
    for path in values.autos():
        if path in (MICRO, ACCUMULATION):
            values = values.put(path, 1, Source.computed("the least that it can be"))
        elif path[0] == "scheduler":
            values = values.put(path, ANY_NUMBER_OF_STEPS, _ANY_NUMBER)
        else:
            values = values.without(path)
    return values


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a job is, by data sheets and by what published runs reach of them."""

    traffic: Communication
    roofline: Roofline


@dataclass(frozen=True)
class Estimate:
    """What was found out about one job that DeepSpeed accepts."""

    question: EstimateQuery
    settled: ResolvedConfig
    workload: Workload
    forecast: Forecast
    need: MemoryNeed
    verdict: FitResult
    speed: Speed | None = None
    """None if nobody knows the speed of the GPU."""
    remarks: tuple[Finding, ...] = ()
    """What the numbers leave out, and what they say of a run that resumes this one."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Gather what is to be said besides the numbers."""
        return (*self.question.remarks, *self.settled.warnings, *self.remarks)

    @property
    def seconds(self) -> float | None:
        """Say how long a step takes, in the middle of what is likely."""
        return None if self.speed is None else self.speed.roofline.middle

    @property
    def seconds_per_token(self) -> float | None:
        """Say the same for one token, so that steps of different lengths can be compared."""
        if self.speed is None or self.seconds is None:
            return None
        roofline = self.speed.roofline
        return self.seconds / (roofline.tokens_per_second * roofline.seconds)


@dataclass(frozen=True)
class Rejected:
    """Why a job cannot work at all, or why nobody can tell."""

    question: EstimateQuery
    findings: tuple[Finding, ...]
    unknown: Unavailable | None = None
    """What keeps us from knowing."""

    @property
    def error(self) -> ZlaunchError:
        """Say what the program ends with if this is all that it was asked for."""
        return self.unknown or Refused(self.findings)


def rejected(question: EstimateQuery, error: ZlaunchError) -> Rejected:
    """Make an answer of an error."""
    if isinstance(error, Refused):
        return Rejected(question, error.findings)
    unknown = error if isinstance(error, Unavailable) else Unavailable(error.message, error.hint)
    return Rejected(
        question, (Finding("cannot-tell", error.message, error.hint, severity=Severity.ADVICE),), unknown
    )


def remarks_on(forecast: Forecast, site: Cluster) -> Iterator[Finding]:
    """Say what a forecast does not count, and whether the run could be resumed from its checkpoint."""
    for note in forecast.notes:
        yield Finding("counted-otherwise", note, severity=Severity.ADVICE)
    resume = forecast.resume
    if resume is None:
        return
    if resume.error is not None:
        message = f"its checkpoint could not be resumed: DeepSpeed gives up: {resume.error}"
        yield Finding("cannot-resume", message, "train to the end in one run", severity=Severity.ADVICE)
    elif resume.why_not_rehearsed is not None:
        message = f"resuming its checkpoint could not be rehearsed: {resume.why_not_rehearsed}"
        yield Finding("counted-otherwise", message, severity=Severity.ADVICE)
    elif check_fit(forecast, site).fit is not (resumed := check_fit(forecast.resumed(), site)).fit:
        message = f"resuming its checkpoint takes more: {resumed.fit.value}: {'; '.join(resumed.reasons)}"
        yield Finding("cannot-resume", message, severity=Severity.ADVICE)


def is_fit(answer: Estimate | Rejected) -> bool:
    """Whether a job fits for sure."""
    return isinstance(answer, Estimate) and answer.verdict.fit is Fit.YES


def refuse_if_none_works(answers: Sequence[Estimate | Rejected]) -> None:
    """Raise Refused, with the fewest reasons, or Unavailable, if none of several jobs can work."""
    refusals = [one for one in answers if isinstance(one, Rejected)]
    if refusals and len(refusals) == len(answers):
        raise min(refusals, key=lambda one: len(one.findings)).error
