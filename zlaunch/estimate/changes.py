"""The one table of changes that save memory, and the options they consist of.

`estimate`, `plan`, `train --on-oom retry`, refusals and the advice after a failure all read this table. The
least intrusive changes come first, those that change the trained model last.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Final, Literal

from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.estimate.workload import Attention, Lora
from zlaunch.frozen import dataclass
from zlaunch.job.script import Setting
from zlaunch.job.spec import STAGES, Device, JobSpec, Offload, Precision, Stage, override_text
from zlaunch.units import largest_piece

BUCKET: Final = f"{ZERO}.reduce_bucket_size"
SMALL_BUCKET: Final = 50_000_000
"""Elements; a tenth of DeepSpeed's default, and enough to keep a network busy."""
LORA: Final = Lora(16)
SHORTEST_SPLIT: Final = 1024
"""Shorter sequences are not halved."""

CHECKPOINTING_FLAGS: Final = ("gradient_checkpointing", "activation_checkpointing")
"""The Trainer's names of activation checkpointing: the one before 6, and the one since 5.23."""


TRAINING: Final[Mapping[str, tuple[str, str | None, str | None]]] = {
    "activation_checkpointing": ("--activation-checkpointing", f"--{CHECKPOINTING_FLAGS[0]}", None),
    "attention": ("--attention", None, None),
    "micro_batch": ("--micro-batch", "--per_device_train_batch_size", "train_micro_batch_size_per_gpu"),
    "grad_accum": ("--grad-accum", "--gradient_accumulation_steps", "gradient_accumulation_steps"),
    "seq_len": ("--seq-len", None, None),
    "lora": ("--lora", None, None),
}
"""Options about the training: how `zlaunch estimate`, the Trainer, and the ds_config for scripts without the
Trainer spell them; None where they cannot be set."""


@dataclass(frozen=True, slots=True)
class Options:
    """Changes to the options of a job; None for unchanged ones. `str()` writes them for a command line."""

    stage: Stage | None = None
    offload: Offload | None = None
    precision: Precision | None = None
    overrides: tuple[tuple[str, object], ...] = ()
    """ds_config keys, as `--set` takes them."""
    activation_checkpointing: bool | None = None
    attention: Attention | None = None
    micro_batch: int | None = None
    grad_accum: int | None = None
    seq_len: int | None = None
    lora: Lora | None = None

    def __or__(self, other: "Options") -> "Options":
        values = {field.name: getattr(other, field.name) for field in fields(other)}
        return replace(self, **{name: value for name, value in values.items() if value not in (None, ())})

    def __str__(self) -> str:
        terms = [_spelled(TRAINING[name][0], value) for name, value in self._training()]
        return " ".join([*self._strategy(), *_sets(self.overrides), *terms])

    @property
    def moves_strategy(self) -> bool:
        """Whether they change the ZeRO stage or the offload."""
        return self.stage is not None or self.offload is not None

    def for_train(self, setting: Setting | None = "argument") -> str | None:
        """Write the options of `zlaunch train`; None if only the script can set one of them."""
        job = self.apply(JobSpec(Path()), setting)
        if job is None:
            return None
        words = [*self._strategy(), *_sets(job.overrides)]
        if job.args.words:
            words += ["--", *job.args.words]
        return " ".join(words)

    def apply(self, job: JobSpec, setting: Setting | None = "argument") -> JobSpec | None:
        """Change a job of `zlaunch train`; None if only its script can set one of the options."""
        job = self.apply_shared(job)
        for name, value in self._training():
            _, argument, key = TRAINING[name]
            spelling = {"argument": argument, "key": key}.get(setting or "")
            if spelling is None:
                return None
            if setting == "argument":
                words = [spelling]
                if value is not True:
                    words.append(str(value))
                job = replace(job, args=job.args.followed_by(words))
            if key is not None and (setting == "key" or job.ds_config is not None):
                job = replace(job, overrides=(*job.overrides, (key, value)))
        return job

    def apply_shared(self, job: JobSpec) -> JobSpec:
        """Change what `estimate` and `train` both have: stage, offload, precision and overrides."""
        job = replace(
            job,
            offload=self.offload or job.offload,
            precision=self.precision or job.precision,
            overrides=(*job.overrides, *self.overrides),
        )
        if self.stage is not None:
            job = replace(job, stage=self.stage)
        return job

    def _training(self) -> list[tuple[str, object]]:
        return [(name, value) for name in TRAINING if (value := getattr(self, name)) is not None]

    def _strategy(self) -> list[str]:
        words = []
        if self.stage is not None:
            words.append(f"--stage {self.stage}")
        if self.offload is not None:
            devices = offload_text(self.offload, self.stage)
            words.append(f"--offload {devices}")
            if "nvme" in devices:
                words.append("--nvme DIR")
        if self.precision is not None:
            words.append(f"--precision {self.precision}")
        return words


def _sets(overrides: Iterable[tuple[str, object]]) -> list[str]:
    return [f"--set {shlex.quote(override_text(key, value))}" for key, value in overrides]


def _spelled(flag: str, value: object) -> str:
    if value is True:
        return flag
    if value is False:
        return f"no {flag.lstrip('-').replace('-', ' ')}"
    return f"{flag} {value}"


def offload_text(offload: Offload, stage: Stage | None) -> str:
    """Write an offload as `--offload` takes it."""
    if offload.param in (None, offload.optimizer) or (stage is not None and stage < 3):
        return str(offload.optimizer)
    parts = {"optimizer": offload.optimizer, "param": offload.param}
    return ",".join(f"{part}:{device}" for part, device in parts.items() if device not in (None, "none"))


@dataclass(frozen=True, slots=True)
class JobState:
    """The settings of a job that decide which changes it can make; unknown ones have their defaults."""

    stage: int
    world_size: int
    micro_batch: int
    grad_accum: int
    offload: Mapping[str, Device]
    """`optimizer` or `param` → where it is, if not on the GPU."""
    activation_checkpointing: bool | None = None
    bucket: int = 0
    attention: Attention = "sdpa"
    precision: Precision | None = None
    seq_len: int = 0
    has_adapters: bool = False


PARTITIONED: Final[Mapping[Stage, str]] = {
    0: "nothing",
    1: "optimizer states",
    2: "optimizer states and gradients",
    3: "optimizer states, gradients and parameters",
}

Saved = Literal[
    "activations",
    "communication buffers",
    "model states",
    "optimizer states",
    "parameters",
    "host memory",
]


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """One row of the table: a way to save memory."""

    name: str
    saves: Saved
    downside: str
    when: Callable[[JobState], bool]
    """Whether a job can still make the change."""
    options: Callable[[JobState], Sequence[Options]]
    """How the job can make it, the least intrusive way first."""
    keeps_training: bool = True
    """Whether the trained model stays the same."""
    uses_host: bool = False
    """Whether it moves memory from the GPU to the host."""

    def advice(self, options: Options, job: JobState, setting: Setting | None) -> str | None:
        """Write the options of `zlaunch train` and their effect; None if only the script can do it."""
        typed = options.for_train(setting)
        effect = f"saves {self.saves}"
        if options.stage and options.offload is None:
            effect = f"partitions {PARTITIONED[options.stage]} across {job.world_size} ranks"
        return typed and f"`{typed}`: {effect}; {self.downside}"


def _smaller_micro_batches(job: JobState) -> list[Options]:
    sizes = dict.fromkeys((largest_piece(job.micro_batch) or 1, 1))
    return [
        Options(micro_batch=size, grad_accum=job.grad_accum * (job.micro_batch // size)) for size in sizes
    ]


def _optimizer_offload(job: JobState) -> list[Options]:
    if job.stage == 0:
        return [Options(stage=2, offload=Offload("cpu"))]
    if job.stage < 3:
        return [Options(offload=Offload("cpu"))]
    return [Options(offload=Offload("cpu", job.offload.get("param", "none")))]


def _at_stage_3(job: JobState, offload: Offload) -> Options:
    if job.stage == 3:
        return Options(offload=offload)
    return Options(stage=3, offload=offload)


GPU_MEMORY: Final = (
    MemoryChange(
        "smaller micro-batch",
        "activations",
        "more micro-steps for the same global batch",
        when=lambda job: job.micro_batch > 1,
        options=_smaller_micro_batches,
    ),
    MemoryChange(
        "activation checkpointing",
        "activations",
        "recomputed in the backward pass",
        when=lambda job: job.activation_checkpointing is False,
        options=lambda _: [Options(activation_checkpointing=True)],
    ),
    MemoryChange(
        "SDPA attention",
        "activations",
        "attention weights cannot be returned",
        when=lambda job: job.attention == "eager",
        options=lambda _: [Options(attention="sdpa")],
    ),
    MemoryChange(
        "smaller buckets",
        "communication buffers",
        "more and smaller messages",
        when=lambda job: job.stage > 0 and job.bucket > SMALL_BUCKET,
        options=lambda _: [Options(overrides=((BUCKET, SMALL_BUCKET),))],
    ),
    MemoryChange(
        "higher ZeRO stage",
        "model states",
        "more communication",
        when=lambda job: job.world_size > 1,
        options=lambda job: [Options(stage=stage) for stage in STAGES.values() if stage > job.stage],
    ),
    MemoryChange(
        "optimizer offload",
        "optimizer states",
        "slower steps, more host memory",
        when=lambda job: "optimizer" not in job.offload and "nvme" not in job.offload.values(),
        options=_optimizer_offload,
        uses_host=True,
    ),
    MemoryChange(
        "parameter offload",
        "parameters",
        "slower steps, more host memory",
        when=lambda job: "param" not in job.offload and (job.stage == 3 or "optimizer" in job.offload),
        options=lambda job: [_at_stage_3(job, Offload(job.offload.get("optimizer", "cpu"), "cpu"))],
        uses_host=True,
    ),
    MemoryChange(
        "bf16",
        "model states",
        "less precise arithmetic",
        when=lambda job: job.precision == "fp32",
        options=lambda _: [Options(precision="bf16")],
        keeps_training=False,
    ),
    MemoryChange(
        "shorter sequences",
        "activations",
        "less context",
        when=lambda job: job.seq_len >= SHORTEST_SPLIT,
        options=lambda job: [Options(seq_len=job.seq_len // 2)],
        keeps_training=False,
    ),
    MemoryChange(
        "LoRA",
        "model states",
        "only adapters are trained",
        when=lambda job: not job.has_adapters,
        options=lambda _: [Options(lora=LORA)],
        keeps_training=False,
    ),
)
"""Changes that save GPU memory."""

HOST_MEMORY: Final = (
    MemoryChange(
        "parameters on the GPU",
        "host memory",
        "parameters stay in GPU memory",
        when=lambda job: job.offload == {"optimizer": "cpu", "param": "cpu"},
        options=lambda _: [Options(offload=Offload("cpu", "none"))],
    ),
    MemoryChange(
        "NVMe offload",
        "host memory",
        "slower steps; needs a fast drive",
        when=lambda job: "cpu" in job.offload.values(),
        options=lambda job: [_at_stage_3(job, Offload("nvme"))],
    ),
)
"""Changes that save host memory of a job that offloads to it."""


def memory_changes(
    state: JobState, rows: Sequence[MemoryChange] = GPU_MEMORY, *, only_first: bool = False
) -> Iterator[tuple[MemoryChange, Options]]:
    """List the changes a job can still make, and the options for each, in the order of the table.

    With `only_first`, list only the least intrusive form of each: the next stage, the largest smaller batch.
    """
    for row in rows:
        if not row.when(state):
            continue
        forms = row.options(state)
        if only_first:
            forms = forms[:1]
        for options in forms:
            yield row, options


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """One row of the table of ways to save time: each uses more memory."""

    saves: tuple[str, ...]
    """`swapping`, `offload`, `communication`, `recomputation` or `passes`."""
    effect: str
    when: Callable[[JobState], bool]
    """Whether a job can still make the change."""
    options: Callable[[JobState], Options]


def _larger_micro_batches(job: JobState) -> Options:
    if job.grad_accum == 1:
        return Options(micro_batch=2 * job.micro_batch)
    return Options(micro_batch=2 * job.micro_batch, grad_accum=job.grad_accum // 2)


def _can_go_down(job: JobState) -> bool:
    return job.stage > _lowest_stage(job)


def _lower_stage_sends_less(job: JobState) -> bool:
    """Stage 3 gathers weights; stage 2 reduces gradients after each pass, and stage 1 once a step."""
    return job.stage == 3 or (job.stage == 2 and job.grad_accum > 1)


def _one_stage_down(job: JobState) -> Options:
    return Options(stage=STAGES[str(job.stage - 1)])


SPEED: Final = (
    SpeedChange(
        ("swapping",),
        "keeps in host memory what is on NVMe, if it fits there",
        when=lambda job: "nvme" in job.offload.values(),
        options=lambda _: Options(offload=Offload("cpu")),
    ),
    SpeedChange(
        ("offload",),
        "keeps the parameters on the GPU, if they fit there",
        when=lambda job: len(job.offload) > 1,
        options=lambda _: Options(offload=Offload("cpu", "none")),
    ),
    SpeedChange(
        ("offload",),
        "keeps everything on the GPU, if it fits there",
        when=lambda job: bool(job.offload),
        options=lambda _: Options(offload=Offload("none", "none")),
    ),
    SpeedChange(
        ("communication",),
        "communicates less, if that fits",
        when=lambda job: _can_go_down(job) and _lower_stage_sends_less(job),
        options=_one_stage_down,
    ),
    SpeedChange(
        (),
        "partitions less, if that fits",
        when=lambda job: _can_go_down(job) and not _lower_stage_sends_less(job),
        options=_one_stage_down,
    ),
    SpeedChange(
        ("recomputation",),
        "saves activations instead",
        when=lambda job: bool(job.activation_checkpointing),
        options=lambda _: Options(activation_checkpointing=False),
    ),
    SpeedChange(
        ("passes", "communication"),
        "the same global batch in half as many passes",
        when=lambda job: job.grad_accum % 2 == 0,
        options=_larger_micro_batches,
    ),
    SpeedChange(
        ("passes",),
        "doubles the global batch",
        when=lambda job: job.grad_accum == 1,
        options=_larger_micro_batches,
    ),
)
"""Each saving of memory, undone."""


def speed_changes(state: JobState, saves: str | None = None) -> Iterator[tuple[SpeedChange, Options]]:
    """List changes that may be faster, and the options for each; only those that save time of one kind."""
    for row in SPEED:
        if row.when(state) and (saves is None or saves in row.saves):
            yield row, row.options(state)


def _lowest_stage(state: JobState) -> int:
    if "param" in state.offload:
        return 3
    if state.offload:
        return 1
    return 0
