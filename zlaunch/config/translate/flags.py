"""Describe the flags of launchers, and what each becomes in zlaunch."""

from collections.abc import Mapping
from dataclasses import field
from enum import Enum, auto

from zlaunch.config.translate.wrappers import Front, num_tasks, task_starter, words_of
from zlaunch.errors import Place
from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """The flag is not needed: zlaunch does this by default, or it has no effect."""

    why: str


@dataclass(frozen=True, slots=True)
class NoEquivalent:
    """The flag has no equivalent, and a note says so."""

    why: str


@dataclass(frozen=True, slots=True)
class Untranslatable:
    """No zlaunch command does the same, so the translation is refused."""

    why: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class BecomesVariable:
    """The flag becomes an environment variable in front of the command, by default with the flag's value."""

    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class BecomesOption:
    """A flag that an option of zlaunch with the same value replaces."""

    name: str


class Role(Enum):
    """The meaning of a flag that is translated together with others."""

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
    NO_SSH = auto()
    """The launcher is started on each host, and reaches no other."""
    HOST_STARTER = auto()
    """What starts the ranks of other hosts, or `standard`: the launcher is started on each."""
    NODE_RANK = auto()
    MASTER_ADDR = auto()
    MASTER_PORT = auto()
    ENDPOINT = auto()
    """Address and port of the first host."""

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


Becomes = NotNeeded | NoEquivalent | Untranslatable | BecomesVariable | BecomesOption | Role


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its spellings, the usual one last; whether it takes a value; what it becomes.

    Idle values repeat a default.
    """

    names: tuple[str, ...]
    takes_value: bool
    becomes: Becomes
    idle: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of the flag in config files."""
        return max(self.names, key=len).lstrip("-")


HELP = Flag(("-h", "--help"), False, Untranslatable("it only prints help"))


@dataclass(frozen=True)
class LauncherSyntax:
    """A launcher: its flags, and how it parses them."""

    name: str
    flags: tuple[Flag, ...]
    either_dash: bool = True
    """Whether `--num-gpus` is accepted for `--num_gpus`."""
    shortens: bool = True
    """Whether flags may be abbreviated."""
    variables: str = ""
    """Prefix of environment variables that set its flags."""
    ranks: str | None = None
    """Default number of ranks per host; None for one per GPU."""
    passes_local_rank: Flag | None = None
    """The flag that turns off passing `--local_rank` to the script."""
    counts_hosts: bool = False
    """Whether it can use only the first hosts of a hostfile."""
    hostfile: str | None = None
    """Its default hostfile, read if it exists."""

    def spellings(self) -> Mapping[str, Flag]:
        """Map every spelling to its flag."""
        flags: dict[str, Flag] = {}
        for flag in (*self.flags, HELP):
            for name in flag.names:
                flags[name] = flag
                if self.either_dash and name.startswith("--"):
                    flags["--" + name[2:].replace("_", "-")] = flag
        return flags


@dataclass(frozen=True, slots=True)
class GivenFlag:
    """A given flag with its value, as written."""

    flag: Flag
    value: str
    written: str
    place: Place | None = None
    """Where a config file has it; None on the command line."""


Roles = Mapping[Role, GivenFlag]


def implied(written: str, value: str) -> GivenFlag:
    """Describe a setting that is implied without a flag."""
    return GivenFlag(Flag((written,), True, NotNeeded("")), value, written)


@dataclass(frozen=True, slots=True)
class Around:
    """Where a command stands."""

    environ: Mapping[str, str] = field(default_factory=dict)
    """The environment in which it is typed."""
    front: Front = ()
    """What stands in front of the shells around it."""
    level: int = 0
    """The number of these shells."""


@dataclass(frozen=True)
class Command:
    """A parsed command line of a launcher."""

    launcher: LauncherSyntax
    environment: Mapping[str, str]
    given: tuple[GivenFlag, ...]
    script: str | None
    args: ScriptArgs
    front: Front = ()
    """Programs in front of the launcher, such as `nohup`, with their options."""
    behind: frozenset[str] = frozenset()
    """Names of variables that are set behind a program that does not hand them on."""
    around: Around = Around()

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words in front of the launcher."""
        return words_of(self.front)

    @property
    def task_starter(self) -> str | None:
        """What starts it as one or several tasks, and numbers them; None if nothing does."""
        return task_starter((*self.around.front, *self.front))

    @property
    def num_tasks(self) -> int | None:
        """How many tasks that is told to start; None if it is not."""
        return num_tasks((*self.around.front, *self.front))

    def roles(self) -> dict[Role, GivenFlag]:
        """The flags with a role; of two with the same role, the last counts."""
        return {given.flag.becomes: given for given in self.given if isinstance(given.flag.becomes, Role)}
