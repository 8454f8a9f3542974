"""A rule: one pure function, and one config that breaks it with its smallest repair."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, NamedTuple

from zlaunch.dsconfig.batch import BatchSizes, data_ranks
from zlaunch.dsconfig.keys.auto_keys import FILLED
from zlaunch.dsconfig.releases import Release
from zlaunch.dsconfig.schema.precision import Bf16, Fp16
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import ZERO, Section
from zlaunch.dsconfig.schema.zero import OffloadOptimizer, OffloadParam, Zero
from zlaunch.errors import Finding, Fix, Severity
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.torch_optim import Constructors
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import ConfigInterface, Handover
from zlaunch.job.trainer_args import TrainerArgs
from zlaunch.job.trainer_releases import TrainerRelease
from zlaunch.units import whole

Keys = tuple[str, ...]
CONSTRUCTORS = (("optimizer", "params"), ("scheduler", "params"))
"""Sections whose keys are arguments of a constructor."""

CPU = {"device": "cpu"}
"""A minimal offload section."""

FORMATS: Mapping[str, str] = {
    "fp16": "fp16",
    "half": "fp16",
    "float16": "fp16",
    "bf16": "bf16",
    "bfloat16": "bf16",
}


@dataclass(frozen=True)
class Context:
    """The known properties of the job."""

    world_size: int | None = None
    """All ranks, or those of one stage of a pipeline; None if unknown."""
    args: TrainerArgs | None = None
    model: ModelConfig | None = None
    interface: ConfigInterface = ConfigInterface.TRAINER
    handover: Handover = Handover.ARGUMENTS
    """How the config reaches the program."""
    is_sure: bool = True
    """Whether it is certain what reads the config; otherwise it is accelerate or the Trainer."""
    accelerator: str | None = None
    """The accelerator by its DeepSpeed name: `cuda` or `cpu`; None if unknown."""
    device_fp16: bool | None = None
    """Whether the device supports fp16 training; None if unknown."""
    release: Release | None = None
    """The DeepSpeed release that reads the config; None means the newest."""
    is_upgrade: bool = False
    """Whether the user asks about a release, as before an upgrade."""
    trainer: TrainerRelease = field(default_factory=TrainerRelease)
    """The release of the Trainer, if there are no `args`."""
    packages: Mapping[str, str | None] = field(default_factory=dict)
    """Package → the release that runs the job; known defects are looked up by it."""
    torch: Constructors | None = None
    """The constructors of torch; None if unknown."""
    is_named: bool = False
    """Whether the user named the interface."""
    strict_json: bool = False
    """Whether a reader of strict JSON is known to read the text as it is."""
    has_own_groups: bool = False
    """Whether the script may divide the ranks itself, so that it is unknown which of them share a batch."""


UNKNOWN = Context()


@dataclass(frozen=True)
class Subject:
    """The input of a rule: a ds_config and its job."""

    config: DsConfig
    context: Context = UNKNOWN
    says_auto: bool = True
    """Whether an "auto" is written; otherwise each stands for a value that is in doubt."""

    @property
    def data_ranks(self) -> Fraction | None:
        """The ranks that divide a batch; None if unknown.

        With sequence parallelism it depends on accelerate's settings what the Trainer does.
        """
        context, shared = self.context, self.config.sequence_parallel_size
        is_raw = context.interface is ConfigInterface.DEEPSPEED
        if context.has_own_groups or ((shared or 1) > 1 and not is_raw):
            return None
        return data_ranks(context.world_size, shared, self.config.data_parallel_size)

    @property
    def accumulation(self) -> int | None:
        """The micro-batches of a step; None if unknown."""
        config = self.config
        typed = whole(self.argument("gradient_accumulation_steps"))
        written = whole(config.gradient_accumulation_steps) or typed
        if written is not None or "auto" in (config.gradient_accumulation_steps, config.train_batch_size):
            return written
        total, micro = whole(config.train_batch_size), whole(config.train_micro_batch_size_per_gpu)
        if total is None or micro is None:
            return 1
        if self.data_ranks is None:
            return None
        return whole(BatchSizes(total, micro, None).completed(self.data_ranks).accumulation)

    @property
    def zero(self) -> Zero:
        """The section `zero_optimization`."""
        return self.config.zero_optimization

    @property
    def stage(self) -> int | None:
        """The ZeRO stage; None while it is "auto", which is no stage for DeepSpeed itself."""
        if isinstance(self.zero.stage, int):
            return self.zero.stage
        if self.context.interface is ConfigInterface.DEEPSPEED:
            return 0
        return None

    @cached_property
    def offloads(self) -> Mapping[str, OffloadOptimizer | OffloadParam]:
        """The offload sections that are in use."""
        return self.zero.offloads

    @cached_property
    def written(self) -> Mapping[Keys, object]:
        """Every value in the config."""
        return {keys: value for keys, value, _ in _leaves(self.config, ())}

    @cached_property
    def changed(self) -> Mapping[Keys, object]:
        """Every value in the config that is neither the default nor "auto"."""
        return {
            keys: value for keys, value, default in _leaves(self.config, ()) if value not in (default, "auto")
        }

    @cached_property
    def autos(self) -> tuple[Keys, ...]:
        """The keys whose "auto" must be filled in."""
        return tuple(
            keys
            for keys, value in self.written.items()
            if value == "auto" and (keys in FILLED or keys[:2] in CONSTRUCTORS)
        )

    @property
    def for_trainer(self) -> bool:
        """Whether the config is known to be for the Trainer."""
        context = self.context
        is_said = context.is_named or context.args is not None or (self.says_auto and bool(self.autos))
        return context.interface is ConfigInterface.TRAINER and is_said

    @property
    def optimizer(self) -> str | None:
        """The optimizer that DeepSpeed creates, in lower case."""
        if self.config.optimizer is None:
            return None
        return self.config.optimizer.type.lower()

    def param(self, name: str) -> object:
        """An argument of the optimizer, if it is in the config."""
        return self.written.get(("optimizer", "params", name))

    @property
    def has_torch_adam(self) -> bool:
        """Whether torch's Adam replaces DeepSpeed's."""
        return self.param("torch_adam") is True

    def argument(self, name: str) -> Any:
        """An argument of the Trainer; None if unknown."""
        args = self.context.args
        if args is None or not self.for_trainer:
            return None
        return args[name].value

    @property
    def has_both_formats(self) -> bool:
        """Whether the config enables fp16 and bf16."""
        return self.config.fp16.enabled is True and self.config.brain_float.enabled is True

    def is_on(self, name: str) -> bool | None:
        """Whether a precision is on; None while an argument can still turn it on."""
        section: Fp16 | Bf16 = self.config.brain_float
        if name == "fp16":
            section = self.config.fp16
        if section.enabled != "auto" and section.model_fields_set:
            return section.enabled
        if self.context.interface is ConfigInterface.DEEPSPEED:
            return False
        if self.context.args is not None and section.enabled == "auto":
            return self.context.args.is_on(name, f"{name}_full_eval")
        if self.context.args is not None:
            return self.context.args.is_on(name)
        if self.autos:
            return None
        return False

    @property
    def format(self) -> str | None:
        """The precision of the model; None while it is unknown."""
        switches = {name: self.is_on(name) for name in ("bf16", "fp16")}
        for name, is_on in switches.items():
            if is_on:
                return name
        if None in switches.values():
            return None
        return "fp32"

    def has(self, where: str) -> bool:
        """Whether the config has a key, whatever its value."""
        node: object = self.config
        for part in where.split("."):
            if not isinstance(node, Section) or part not in node.model_fields_set:
                return False
            node = getattr(node, part)
        return True

    def nearest(self, where: str) -> str:
        """The key if the config has it, or else its section."""
        if self.has(where):
            return where
        return where.rpartition(".")[0]

    def value(self, where: str) -> Any:
        """The value of a key, or its default; None if the section around it is missing."""
        node: object = self.config
        for part in where.split("."):
            if node is None:
                return None
            node = getattr(node, part)
        return node


def _leaves(node: Section | Mapping[str, object], above: Keys) -> Iterator[tuple[Keys, object, object]]:
    """List the written values below a section: keys, value and default."""
    if isinstance(node, Section):
        fields = type(node).model_fields
        items = [
            (key, getattr(node, key), fields[key].default) for key in fields if key in node.model_fields_set
        ]
    else:
        items = [(str(key), value, None) for key, value in node.items()]
    for key, value, default in items:
        if isinstance(value, Section | dict):
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value, default


class Violation(NamedTuple):
    """The result of a rule, without its code and severity."""

    where: str
    message: str
    hint: str
    fix: Fix | None = None
    severity: Severity | None = None
    """That of its rule if it is None."""


Check = Callable[[Subject], Iterator[Violation]]


@dataclass(frozen=True)
class Rule:
    """One rule between keys, with a ds_config that breaks it."""

    severity: Severity
    check: Check
    broken: Mapping[str, object]
    repair: Mapping[str, object]
    """The smallest one: dotted key → new value; None deletes the key."""
    context: Context
    """Context that the rule needs."""

    @property
    def code(self) -> str:
        """The name of the function, as findings show it."""
        return self.check.__name__.replace("_", "-")

    @property
    def why(self) -> str:
        """What DeepSpeed does, in a few sentences."""
        return self.check.__doc__ or ""

    def __call__(self, subject: Subject) -> Iterator[Finding]:
        """Apply the rule."""
        for fault in self.check(subject):
            severity = fault.severity or self.severity
            yield Finding(self.code, fault.message, fault.hint, fault.where, severity, fix=fault.fix)


def _rule(
    severity: Severity, broken: Mapping[str, object], repair: Mapping[str, object], context: Context = UNKNOWN
) -> Callable[[Check], Rule]:
    """Turn a function into a rule: its name is the code, its docstring says what DeepSpeed does.

    The arguments are a config that breaks the rule, its smallest repair, and the context that it needs.
    """
    return lambda check: Rule(severity, check, broken, repair, context)


error = partial(_rule, Severity.ERROR)
fails_later = partial(_rule, Severity.FAILS_LATER)
warning = partial(_rule, Severity.WARNING)
ignored = partial(_rule, Severity.IGNORED)
advice = partial(_rule, Severity.ADVICE)


def zero(*keys: str) -> str:
    """Name a key below `zero_optimization`."""
    return ".".join((ZERO, *keys))


def number(value: object, filled: object = None) -> float | None:
    """Read a number; `filled` replaces "auto"."""
    if value == "auto":
        value = filled
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return None
