"""What a launcher is: how it runs a target in each rank, and what it can and cannot do."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from zlaunch.frozen import dataclass
from zlaunch.hosts.cluster.topology import Topology


@dataclass(frozen=True, slots=True)
class Target:
    """What runs in each rank: a Python script, a Python module or any program, with its arguments."""

    name: str
    args: tuple[str, ...]
    kind: Literal["script", "module", "program"] = "script"
    wants_local_rank: bool = False
    """Whether it reads its local rank from the argument `--local_rank`."""
    hostfile: str | None = None
    """The hostfile, for launchers that reach other hosts themselves."""


class Starter(NamedTuple):
    """A program with which a launcher reaches other hosts, and its Debian package."""

    program: str
    package: str


PDSH = Starter("pdsh", "pdsh")


def _starts_any_ranks(_: Topology) -> None:
    """Raise nothing."""


@dataclass(frozen=True)
class Backend:
    """A launcher."""

    build_argv: Callable[[Target, Topology, str, int], tuple[str, ...]]
    """Its module, and the arguments with which it runs a target on every slot: of a topology, for an
    accelerator (`cuda` or `cpu`), with a port."""
    node_argv: Callable[[Target, Topology, int, str, int], tuple[str, ...]] | None = None
    """The same on one of several hosts, by its number, with address and port of the first; None for a
    launcher that reaches other hosts itself."""
    starter: Starter | None = None
    """What it reaches them with."""
    is_of_deepspeed: bool = False
    """Whether its node program is DeepSpeed's, which passes `--local_rank` and sets LOCAL_SIZE."""
    check: Callable[[Topology], None] = _starts_any_ranks
    """Raises WrongUsage for ranks that it cannot start."""
