"""What a rule is: one pure function, one code, one case that breaks it and is mended by one change."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zlaunch.dsconfig.keys.autos import FILLED
from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.dsconfig.releases import Release
from zlaunch.dsconfig.schema.parallel import data_ranks
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import Section
from zlaunch.dsconfig.schema.zero import OffloadOptimizer, OffloadParam, Zero
from zlaunch.errors import Finding, Fix, Severity
from zlaunch.job.model import ModelShape
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_args import TrainerArgs

Keys = tuple[str, ...]
CONSTRUCTORS = (("optimizer", "params"), ("scheduler", "params"))
"""Sections whose keys a constructor takes."""

CPU = {"device": "cpu"}
"""An offload, as short as it can be."""

FORMATS: Mapping[str, str] = {
    "fp16": "fp16",
    "half": "fp16",
    "float16": "fp16",
    "bf16": "bf16",
    "bfloat16": "bf16",
}


@dataclass(frozen=True)
class Context:
    """As much of the job as is known."""

    world_size: int | None = None
    """Data-parallel ranks; None if nobody said."""
    args: TrainerArgs | None = None
    model: ModelShape | None = None
    interface: ConfigInterface = ConfigInterface.TRAINER
    device_fp16: bool | None = None
    """Whether the device trains in fp16; None if that is unknown."""
    release: Release | None = None
    """The DeepSpeed release that the user asks about; None means the newest."""
    strict_json: bool = False
    """Whether it was said that a reader of strict JSON will read the text as it is."""


@dataclass(frozen=True)
class Subject:
    """What a rule judges: a ds_config, and the job it is for."""

    config: DsConfig
    context: Context = Context()

    @property
    def data_ranks(self) -> int | None:
        """Count the ranks by which a batch is divided; None if nobody knows them.

        Where ranks share a sequence, it depends on accelerate's settings what the Trainer makes of it.
        """
        world, shared = self.context.world_size, self.config.sequence_parallel_size
        if world is None or ((shared or 1) > 1 and self.context.interface is not ConfigInterface.DEEPSPEED):
            return None
        return data_ranks(world, shared)

    @property
    def zero(self) -> Zero:
        """Say what is partitioned."""
        return self.config.zero_optimization

    @property
    def stage(self) -> int | None:
        """Say the ZeRO stage; None while it is "auto"."""
        return self.zero.stage if isinstance(self.zero.stage, int) else None

    @cached_property
    def offloads(self) -> Mapping[str, OffloadOptimizer | OffloadParam]:
        """Find the offload sections that move something."""
        return self.zero.offloads

    @cached_property
    def written(self) -> Mapping[Keys, Any]:
        """Find every value that was written."""
        return {keys: value for keys, value, _ in _leaves(self.config, ())}

    @cached_property
    def changed(self) -> Mapping[Keys, Any]:
        """Find every value that was written and is neither the default nor "auto"."""
        return {
            keys: value for keys, value, default in _leaves(self.config, ()) if value not in (default, "auto")
        }

    @cached_property
    def autos(self) -> tuple[Keys, ...]:
        """Find the keys whose "auto" somebody must fill in."""
        return tuple(
            keys
            for keys, value in self.written.items()
            if value == "auto" and (keys in FILLED or keys[:2] in CONSTRUCTORS)
        )

    @property
    def for_trainer(self) -> bool:
        """Whether the config is visibly for the Trainer."""
        context = self.context
        return context.interface is ConfigInterface.TRAINER and (context.args is not None or bool(self.autos))

    @property
    def optimizer(self) -> str | None:
        """Name the optimizer that DeepSpeed builds, in lower case."""
        return None if self.config.optimizer is None else self.config.optimizer.type.lower()

    def param(self, name: str) -> Any:
        """Look up an argument of the optimizer, if it was written."""
        return self.written.get(("optimizer", "params", name))

    @property
    def has_torch_adam(self) -> bool:
        """Whether torch's Adam stands in for DeepSpeed's."""
        return self.param("torch_adam") is True

    def argument(self, name: str) -> Any:
        """Look up what the Trainer will be told; None while nobody knows."""
        args = self.context.args
        return args[name].value if args is not None and self.for_trainer else None

    @property
    def has_both_formats(self) -> bool:
        """Whether the config enables fp16 and bf16."""
        bf16 = self.config.brain_float
        return self.config.fp16.enabled is True and bf16 is not None and bf16.enabled is True

    def is_on(self, name: str) -> bool | None:
        """Whether a format is switched on; None while an argument can still do it."""
        section = self.config.fp16 if name == "fp16" else self.config.brain_float
        if section is not None and section.enabled != "auto" and section.model_fields_set:
            return section.enabled
        if self.context.interface is ConfigInterface.DEEPSPEED:
            return False
        if self.context.args is not None:
            return self.context.args.is_on(name, f"{name}_full_eval")
        return None if self.autos else False

    @property
    def format(self) -> str | None:
        """Name the format of the model; None while it is open."""
        switches = {name: self.is_on(name) for name in ("bf16", "fp16")}
        on = [name for name, is_on in switches.items() if is_on]
        return on[0] if on else None if None in switches.values() else "fp32"

    def has(self, where: str) -> bool:
        """Whether a key was written, whatever its value."""
        node: Any = self.config
        for part in where.split("."):
            if not isinstance(node, Section) or part not in node.model_fields_set:
                return False
            node = getattr(node, part)
        return True


def _leaves(node: Section | Mapping[str, Any], above: Keys) -> Iterator[tuple[Keys, Any, Any]]:
    """Find what was written below a section: its keys, its value and its default."""
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


@dataclass(frozen=True, slots=True)
class Violation:
    """What a rule finds; the rule itself adds its code and its severity."""

    where: str
    message: str
    hint: str
    mending: Fix | None = None


@dataclass(frozen=True)
class RuleCase:
    """A ds_config that breaks a rule, and the smallest change that mends it."""

    broken: Mapping[str, Any]
    repair: Mapping[str, Any]
    """Dotted key → its new value; None leaves the key out."""
    context: Context = Context()
    """What else the rule must know."""


Check = Callable[[Subject], Iterator[Violation]]


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong between keys."""

    code: str
    severity: Severity
    why: str
    """What DeepSpeed does, in one sentence or a few."""
    case: RuleCase
    check: Check

    def __call__(self, subject: Subject) -> Iterator[Finding]:
        """Apply the rule."""
        for fault in self.check(subject):
            yield Finding(
                self.code, fault.message, fault.hint, fault.where, self.severity, mending=fault.mending
            )


def rule(code: str, severity: Severity, case: RuleCase) -> Callable[[Check], Rule]:
    """Make a rule of a function; its docstring says what DeepSpeed does."""
    return lambda check: Rule(code, severity, check.__doc__ or "", case, check)


def zero(*keys: str) -> str:
    """Name a key below `zero_optimization`."""
    return ".".join((ZERO, *keys))


def number(value: Any, filled: Any = None) -> float | None:
    """Read a number; `filled` is what "auto" will become."""
    if value == "auto":
        value = filled
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
