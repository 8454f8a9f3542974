"""What a launcher's flags are, and what becomes of each. The tables of the launchers are made of these."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from zlaunch.errors import Place


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """It is not needed: zlaunch does so by itself, or nothing changes."""

    why: str


@dataclass(frozen=True, slots=True)
class NoEquivalent:
    """There is no equivalent; the person must know."""

    why: str


@dataclass(frozen=True, slots=True)
class Untranslatable:
    """No command line of zlaunch does the same."""

    why: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class BecomesVariable:
    """It becomes a variable in front of the command; with the flag's own value if none is named."""

    name: str
    value: str | None = None


class Role(Enum):
    """It is decided together with others: what it says about the job."""

    RANKS = auto()
    """How many on each host."""
    ALL_RANKS = auto()
    """How many on all hosts together."""
    DEVICES = auto()
    HOSTS = auto()
    """How many."""
    HOSTFILE = auto()
    INCLUDE = auto()
    EXCLUDE = auto()

    DS_CONFIG = auto()
    STAGE = auto()
    OPTIMIZER_DEVICE = auto()
    PARAM_DEVICE = auto()
    OPTIMIZER_PATH = auto()
    PARAM_PATH = auto()
    PRECISION = auto()
    ACCUMULATION = auto()
    CLIPPING = auto()
    SAVE_16BIT = auto()
    SHARDED_INIT = auto()

    USE_DEEPSPEED = auto()
    DISTRIBUTED_TYPE = auto()
    CONFIG_FILE = auto()
    MODULE = auto()
    """The script is a module's name."""


Becomes = NotNeeded | NoEquivalent | Untranslatable | BecomesVariable | Role


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its spellings, the usual one last; whether a value follows; what becomes of it.

    Idle values say what is so anyway.
    """

    names: tuple[str, ...]
    takes_value: bool
    becomes: Becomes
    idle: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Name the flag as configuration files do."""
        return max(self.names, key=len).lstrip("-")


def flag(names: str, becomes: Becomes, idle: str = "") -> Flag:
    """Describe a flag that a value follows."""
    return Flag(tuple(names.split()), True, becomes, tuple(idle.split()))


def switch(names: str, becomes: Becomes) -> Flag:
    """Describe a flag that stands alone."""
    return Flag(tuple(names.split()), False, becomes)


HELP = switch("-h --help", Untranslatable("it only shows a help text"))


@dataclass(frozen=True)
class LauncherSyntax:
    """A launcher: its flags, and how it differs from the others in reading them."""

    name: str
    flags: tuple[Flag, ...]
    either_dash: bool = True
    """Whether `--num-gpus` is as good as `--num_gpus`."""
    shortens: bool = True
    """Whether the beginning of a flag is as good as the whole."""
    variables: str = ""
    """How variables begin that stand for its flags."""
    ranks: str | None = None
    """How many ranks it starts on a host if nothing is said; None for one on each GPU."""
    passes_local_rank: Flag | None = None
    """The flag without which the script gets `--local_rank`."""
    counts_hosts: bool = False
    """Whether it can use the first hosts of a hostfile only."""
    hostfile: str | None = None
    """The hostfile that it reads, if it exists, when none is named."""

    def spellings(self) -> Mapping[str, Flag]:
        """List every way to write a flag."""
        found: dict[str, Flag] = {}
        for one in (*self.flags, HELP):
            for name in one.names:
                found[name] = one
                if self.either_dash:
                    found["--" + name[2:].replace("_", "-") if name.startswith("--") else name] = one
        return found


@dataclass(frozen=True, slots=True)
class GivenFlag:
    """A flag that was given, with its value, as it was written."""

    flag: Flag
    value: str
    said: str
    place: Place | None = None
    """Where a configuration file says it; None on the command line."""


def implied(said: str, value: str) -> GivenFlag:
    """Describe what is asked for without a flag."""
    return GivenFlag(Flag((said,), True, NotNeeded("")), value, said)


@dataclass(frozen=True)
class Command:
    """A launcher's command line, taken apart."""

    launcher: LauncherSyntax
    environment: Mapping[str, str]
    given: tuple[GivenFlag, ...]
    script: str | None
    args: tuple[str, ...]

    def roles(self) -> dict[Role, GivenFlag]:
        """Look up what is decided together; of two that say the same, the last counts."""
        return {one.flag.becomes: one for one in self.given if isinstance(one.flag.becomes, Role)}
