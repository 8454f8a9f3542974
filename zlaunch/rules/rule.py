"""What a rule is: one pure function, one code, one case that breaks it and is mended by one change."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zlaunch.dsconfig.config import DsConfig
from zlaunch.dsconfig.releases import Release
from zlaunch.dsconfig.section import Section
from zlaunch.dsconfig.zero import OffloadOptimizer, OffloadParam, Zero
from zlaunch.errors import Finding, Mending, Severity
from zlaunch.model import ModelShape
from zlaunch.script import Interface
from zlaunch.trainer_args import TrainerArgs


@dataclass(frozen=True)
class Context:
    """As much of the job as is known."""

    world_size: int | None = None
    """Data-parallel ranks; None if nobody said."""
    args: TrainerArgs | None = None
    model: ModelShape | None = None
    interface: Interface = Interface.TRAINER
    release: Release | None = None
    """The DeepSpeed release that the user asks about; None means the newest."""


@dataclass(frozen=True)
class Subject:
    """What a rule judges: a ds_config, and the job it is for."""

    config: DsConfig
    context: Context = Context()

    @property
    def zero(self) -> Zero:
        """Say what is partitioned."""
        return self.config.zero_optimization

    @property
    def stage(self) -> int | None:
        """Say the ZeRO stage; None while it is "auto"."""
        return self.zero.stage if isinstance(self.zero.stage, int) else None

    @property
    def offloads(self) -> Mapping[str, OffloadOptimizer | OffloadParam]:
        """Find the offload sections that move something."""
        sections = {
            "offload_optimizer": self.zero.offload_optimizer,
            "offload_param": self.zero.offload_param,
        }
        return {name: s for name, s in sections.items() if s is not None and s.device in ("cpu", "nvme")}

    def has(self, where: str) -> bool:
        """Whether a key was written, whatever its value."""
        node: Any = self.config
        for part in where.split("."):
            if not isinstance(node, Section) or part not in node.model_fields_set:
                return False
            node = getattr(node, part)
        return True


@dataclass(frozen=True, slots=True)
class Fault:
    """What a rule finds; the rule itself adds its code and its severity."""

    where: str
    message: str
    hint: str
    mending: Mending | None = None


@dataclass(frozen=True)
class Case:
    """A ds_config that breaks a rule, and the smallest change that mends it."""

    broken: Mapping[str, Any]
    repair: Mapping[str, Any]
    """Dotted key → its new value; None leaves the key out."""
    context: Context = Context()
    """What else the rule must know."""


Check = Callable[[Subject], Iterator[Fault]]


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong between keys."""

    code: str
    severity: Severity
    why: str
    """What DeepSpeed does, in one sentence or a few."""
    case: Case
    check: Check

    def __call__(self, subject: Subject) -> Iterator[Finding]:
        """Apply the rule."""
        for fault in self.check(subject):
            yield Finding(
                self.code, fault.message, fault.hint, fault.where, self.severity, mending=fault.mending
            )


def rule(code: str, severity: Severity, case: Case) -> Callable[[Check], Rule]:
    """Make a rule of a function; its docstring says what DeepSpeed does."""
    return lambda check: Rule(code, severity, check.__doc__ or "", case, check)


def zero(*keys: str) -> str:
    """Name a key below `zero_optimization`."""
    return ".".join(("zero_optimization", *keys))
