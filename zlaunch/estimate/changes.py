"""The one table of changes that save memory, and the options they consist of.

`estimate`, `plan`, `train --on-oom retry`, refusals and the advice after a failure all read this table. It is
ordered: what changes a job least comes first, what changes the trained model comes last.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Final, NamedTuple

from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.estimate.workload import Attention
from zlaunch.job.spec import STAGES, Device, JobSpec, Offload, Precision, Stage
from zlaunch.units import largest_piece

BUCKET: Final = f"{ZERO}.reduce_bucket_size"
SMALL_BUCKET: Final = 50_000_000
"""Elements; a tenth of DeepSpeed's default, and enough to keep a network busy."""
LORA_RANK: Final = 16
SHORTEST_SPLIT: Final = 1024
"""Shorter sequences are not halved."""

CHECKPOINTING_FLAGS: Final = ("activation_checkpointing", "gradient_checkpointing")
"""The Trainer's name for activation checkpointing, and its deprecated alias."""


class _TrainingOption(NamedTuple):
    """How an option about the training is spelled; None where it cannot be set that way."""

    field: str
    flag: str
    """In `zlaunch estimate`."""
    argument: str | None = None
    """Of the Trainer."""
    key: str | None = None
    """In the ds_config, for scripts without the Trainer."""


TRAINING_OPTIONS: Final = (
    _TrainingOption("activation_checkpointing", "--activation-checkpointing", f"--{CHECKPOINTING_FLAGS[0]}"),
    _TrainingOption("attention", "--attention"),
    _TrainingOption(
        "micro_batch",
        "--micro-batch",
        "--per_device_train_batch_size",
        "train_micro_batch_size_per_gpu",
    ),
    _TrainingOption(
        "grad_accum", "--grad-accum", "--gradient_accumulation_steps", "gradient_accumulation_steps"
    ),
    _TrainingOption("seq_len", "--seq-len"),
    _TrainingOption("lora", "--lora"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a job, by value; None for what they leave as it is. `str()` is what to type."""

    stage: Stage | None = None
    offload: Offload | None = None
    precision: Precision | None = None
    overrides: tuple[tuple[str, int], ...] = ()
    """ds_config keys, as `--set` takes them."""
    activation_checkpointing: bool | None = None
    attention: Attention | None = None
    micro_batch: int | None = None
    grad_accum: int | None = None
    seq_len: int | None = None
    lora: int | None = None
    """Rank of the adapters."""

    def __or__(self, other: "Options") -> "Options":
        """Add options; those of `other` win."""
        given = {field.name: getattr(other, field.name) for field in fields(other)}
        return replace(self, **{name: value for name, value in given.items() if value not in (None, ())})

    def __str__(self) -> str:
        """Write the options as `zlaunch estimate` takes them."""
        switched_off = (option.flag for option, value in self.training if value is False)
        terms = (_spelled(option.flag, value) for option, value in self.training if value is not False)
        without = (f"no {flag.lstrip('-').replace('-', ' ')}" for flag in switched_off)
        return " ".join([*self._shared(), *terms, *without])

    @property
    def moves_strategy(self) -> bool:
        """Whether they change the ZeRO stage or the offload."""
        return self.stage is not None or self.offload is not None

    @property
    def training(self) -> list[tuple[_TrainingOption, object]]:
        """Options that are about the training rather than the ds_config."""
        values = ((option, getattr(self, option.field)) for option in TRAINING_OPTIONS)
        return [(option, value) for option, value in values if value is not None]

    def for_train(self, *, uses_trainer: bool = True) -> str | None:
        """Write the options as `zlaunch train` takes them; None if only the script can set one of them."""
        shared, arguments = self._shared(), []
        for option, value in self.training:
            if uses_trainer and option.argument is not None:
                arguments.append(_spelled(option.argument, value))
            elif not uses_trainer and option.key is not None:
                shared.append(f"--set {option.key}={value}")
            else:
                return None
        return " ".join([*shared, *(["--", *arguments] if arguments else [])])

    def apply(self, job: JobSpec, *, uses_trainer: bool = True) -> JobSpec | None:
        """Change a job of `zlaunch train`; None if only its script can set one of the options."""
        if self.for_train(uses_trainer=uses_trainer) is None:
            return None
        job = self.apply_shared(job)
        for option, value in self.training:
            if uses_trainer and option.argument is not None:
                words = _spelled(option.argument, value).split()
                job = replace(job, script_args=(*job.script_args, *words))
            if option.key is not None and (not uses_trainer or job.ds_config is not None):
                job = replace(job, overrides=(*job.overrides, (option.key, value)))
        return job

    def apply_shared(self, job: JobSpec) -> JobSpec:
        """Change what `estimate` and `train` both have: stage, offload, precision and overrides."""
        return replace(
            job,
            stage=job.stage if self.stage is None else self.stage,
            offload=job.offload if self.offload is None else self.offload,
            precision=self.precision or job.precision,
            overrides=(*job.overrides, *self.overrides),
        )

    def _shared(self) -> list[str]:
        offload = None if self.offload is None else _offload_text(self.offload, self.stage)
        named = {"--stage": self.stage, "--offload": offload, "--precision": self.precision}
        terms = [f"{flag} {value}" for flag, value in named.items() if value is not None]
        if offload is not None and "nvme" in offload:
            terms.append("--nvme DIR")
        return [*terms, *(f"--set {key}={value}" for key, value in self.overrides)]


def _spelled(flag: str, value: object) -> str:
    return flag if value is True else f"{flag} {value}"


def _offload_text(offload: Offload, stage: Stage | None) -> str:
    if offload.param in (None, offload.optimizer) or (stage is not None and stage < 3):
        return str(offload.optimizer)
    parts = {"optimizer": offload.optimizer, "param": offload.param}
    return ",".join(f"{part}:{device}" for part, device in parts.items() if device not in (None, "none"))


@dataclass(frozen=True, slots=True)
class JobState:
    """The settings of a job that decide which changes are left; None for what is not known."""

    stage: int
    world_size: int
    micro_batch: int
    grad_accum: int
    offload: Mapping[str, Device]
    """`optimizer` or `param` → where it is, if not on the GPU."""
    activation_checkpointing: bool | None = None
    bucket: int | None = None
    attention: Attention = "sdpa"
    precision: Precision | None = None
    seq_len: int | None = None
    has_adapters: bool | None = None


class Saves(Enum):
    """What a change saves."""

    ACTIVATIONS = "activations"
    BUCKETS = "communication buffers"
    STATES = "model states"
    OPTIMIZER = "optimizer states"
    PARAMETERS = "parameters"
    HOST = "host memory"


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """One row of the table: a way to save memory."""

    name: str
    saves: Saves
    downside: str
    options: Callable[[JobState], Iterator[Options]]
    """The options to try on a job, the least intrusive first; none where it is done already."""
    keeps_training: bool = True
    """Whether the trained model stays the same."""
    uses_host: bool = False
    """Whether it moves memory from the GPU to the host."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A row of the table, applied to one job."""

    row: MemoryChange
    options: Options

    def advice(self, *, uses_trainer: bool) -> str | None:
        """Say what to type in `zlaunch train` and what it does; None if only the script can do it."""
        typed = self.options.for_train(uses_trainer=uses_trainer)
        return typed and f"`{typed}`: saves {self.row.saves.value}; {self.row.downside}"


def _smaller_micro_batches(state: JobState) -> Iterator[Options]:
    for size in dict.fromkeys((largest_piece(state.micro_batch), 1)):
        if size is not None and size < state.micro_batch:
            yield Options(micro_batch=size, grad_accum=state.grad_accum * (state.micro_batch // size))


def _checkpointing(state: JobState) -> Iterator[Options]:
    if state.activation_checkpointing is False:
        yield Options(activation_checkpointing=True)


def _attention(state: JobState) -> Iterator[Options]:
    if state.attention == "eager":
        yield Options(attention="sdpa")


def _smaller_bucket(state: JobState) -> Iterator[Options]:
    if state.stage > 0 and state.bucket is not None and state.bucket > SMALL_BUCKET:
        yield Options(overrides=((BUCKET, SMALL_BUCKET),))


def _higher_stages(state: JobState) -> Iterator[Options]:
    if state.world_size > 1:
        yield from (Options(stage=stage) for stage in STAGES.values() if stage > state.stage)


def _optimizer_offload(state: JobState) -> Iterator[Options]:
    if "optimizer" not in state.offload and "nvme" not in state.offload.values():
        param = state.offload.get("param", "none") if state.stage == 3 else None
        yield Options(stage=None if state.stage else 2, offload=Offload("cpu", param))


def _parameter_offload(state: JobState) -> Iterator[Options]:
    """Parameters can be offloaded at stage 3 only; raise the stage once the optimizer is offloaded."""
    if "param" not in state.offload and (state.stage == 3 or "optimizer" in state.offload):
        offload = Offload(state.offload.get("optimizer", "cpu"), "cpu")
        yield Options(stage=None if state.stage == 3 else 3, offload=offload)


def _half_precision(state: JobState) -> Iterator[Options]:
    if state.precision == "fp32":
        yield Options(precision="bf16")


def _shorter_sequences(state: JobState) -> Iterator[Options]:
    if state.seq_len is not None and state.seq_len >= SHORTEST_SPLIT:
        yield Options(seq_len=state.seq_len // 2)


def _adapters(state: JobState) -> Iterator[Options]:
    if state.has_adapters is False:
        yield Options(lora=LORA_RANK)


def _parameters_on_gpu(state: JobState) -> Iterator[Options]:
    if state.offload == {"optimizer": "cpu", "param": "cpu"}:
        yield Options(offload=Offload("cpu", "none"))


def _nvme(state: JobState) -> Iterator[Options]:
    if "cpu" in state.offload.values():
        yield Options(stage=None if state.stage == 3 else 3, offload=Offload("nvme"))


GPU_MEMORY: Final = (
    MemoryChange(
        "smaller micro-batch",
        Saves.ACTIVATIONS,
        "more micro-steps for the same global batch",
        _smaller_micro_batches,
    ),
    MemoryChange(
        "activation checkpointing",
        Saves.ACTIVATIONS,
        "they are computed again in the backward pass",
        _checkpointing,
    ),
    MemoryChange("SDPA attention", Saves.ACTIVATIONS, "attention weights cannot be returned", _attention),
    MemoryChange("smaller buckets", Saves.BUCKETS, "more and smaller messages", _smaller_bucket),
    MemoryChange(
        "higher ZeRO stage",
        Saves.STATES,
        "they are sharded across ranks, with more communication",
        _higher_stages,
    ),
    MemoryChange(
        "optimizer offload",
        Saves.OPTIMIZER,
        "slower steps, more host memory",
        _optimizer_offload,
        uses_host=True,
    ),
    MemoryChange(
        "parameter offload",
        Saves.PARAMETERS,
        "slower steps, more host memory",
        _parameter_offload,
        uses_host=True,
    ),
    MemoryChange("bf16", Saves.STATES, "less precise arithmetic", _half_precision, keeps_training=False),
    MemoryChange(
        "shorter sequences", Saves.ACTIVATIONS, "less context", _shorter_sequences, keeps_training=False
    ),
    MemoryChange("LoRA", Saves.STATES, "only adapters are trained", _adapters, keeps_training=False),
)
"""Changes that save GPU memory."""

HOST_MEMORY: Final = (
    MemoryChange("parameters on the GPU", Saves.HOST, "parameters stay in GPU memory", _parameters_on_gpu),
    MemoryChange("NVMe offload", Saves.HOST, "slower steps; needs a fast drive", _nvme),
)
"""Changes that save host memory of a job that offloads to it."""


def memory_changes(
    state: JobState, rows: Sequence[MemoryChange] = GPU_MEMORY, *, only_first: bool = False
) -> Iterator[ConfigChange]:
    """List the changes a job can still make, in the order of the table.

    With `only_first`, list only the least intrusive form of each: the next stage, the largest smaller batch.
    """
    for row in rows:
        for options in row.options(state):
            yield ConfigChange(row, options)
            if only_first:
                break


def speed_changes(state: JobState) -> Iterator[Options]:
    """List changes that use more memory and may be faster: each saving, undone."""
    devices = state.offload.values()
    if "nvme" in devices:
        yield Options(offload=Offload("cpu"))
    if len(state.offload) > 1:
        yield Options(offload=Offload("cpu", "none"))
    if devices:
        yield Options(offload=Offload("none", "none"))
    lowest = 3 if "param" in state.offload else int(bool(devices))
    if state.stage > lowest:
        yield Options(stage=STAGES[str(state.stage - 1)])
    if state.activation_checkpointing:
        yield Options(activation_checkpointing=False)
    if state.grad_accum % 2 == 0:
        yield Options(micro_batch=2 * state.micro_batch, grad_accum=state.grad_accum // 2)
    elif state.grad_accum == 1:
        yield Options(micro_batch=2 * state.micro_batch)
