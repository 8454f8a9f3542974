"""What is known of one machine: a typed value, gathered once, here or by the program on another host.

What was not asked for is None. What was asked for and could not be found out is None as well, and `failures`
says why.
"""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from zlaunch.errors import Unavailable
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.hub import Hub
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.network import UNKNOWN, Connection, Network
from zlaunch.hosts.machine.op_cache import OpCache
from zlaunch.hosts.machine.op_states import OpState
from zlaunch.hosts.machine.resources import FreeResources, Machine


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something is not known: the message and hint of an error."""

    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Files:
    """The files that were asked about."""

    looked_for: frozenset[Path] = frozenset()
    identities: Mapping[Path, tuple[int, int]] = field(default_factory=dict)
    """Existing path → inode and time of change, which are equal on hosts that share it."""
    hashes: Mapping[Path, str | None] = field(default_factory=dict)
    """File to compare → the hash of its bytes; None for one that cannot be read."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports on which programs can listen."""

    free: int
    """One that was free."""
    debug_error: str | None = None
    """Why a debugger cannot listen on the port that was asked for."""
    other_debug: int | None = None
    """A free port near that one."""


@dataclass(frozen=True, slots=True)
class Cuda:
    """CUDA releases in the Python of the ranks; None for what is not there."""

    torch: str | None
    """The one that torch was built for, as `12.8`."""
    nccl: str | None


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """How the GPUs are connected; None for what the driver or torch does not tell."""

    matrix: str | None = None
    """The output of `nvidia-smi topo -m`."""
    peers: tuple[tuple[bool, ...], ...] | None = None
    """Whether the GPU of the row reads the memory of that of the column, by torch."""


@dataclass(frozen=True, slots=True)
class Compilers:
    """Releases of what compiles native ops, empty if they do not tell; None for what is not there."""

    cxx: str | None
    ninja: str | None
    nvcc: str | None
    has_python_headers: bool


@dataclass(frozen=True)
class MachineFacts:
    """One machine, and the Python of the ranks there."""

    python: Interpreter
    """The interpreter of the ranks."""
    hardware: Machine | None = None
    """Named as in the hostfile."""
    free: FreeResources | None = None
    files: Files | None = None
    op_cache: OpCache | None = None
    """Where native ops are kept; None without torch, too."""
    ops: Mapping[str, OpState] | None = None
    """Name → the state of a native op that was asked about."""
    ports: Ports | None = None
    connection: Connection = UNKNOWN
    path: str | None = None
    """PATH of the programs that start there."""
    cuda: Cuda | None = None
    links: GpuLinks | None = None
    """None without several GPUs, too."""
    compilers: Compilers | None = None
    network: Network | None = None
    own_addresses: tuple[str, ...] | None = None
    """What the machine's own name stands for there."""
    hub: Hub | None = None
    failures: Mapping[str, Failure] = field(default_factory=dict)
    """Topic → why it could not be found out."""
    seconds: float = 0.0
    """How long it took to find out all of it."""

    @property
    def machine(self) -> Machine:
        """The hardware; raise Unavailable if it could not be found out."""
        if self.hardware is None:
            failure = self.failures.get("hardware", Failure("this machine was not examined"))
            raise Unavailable(failure.message, failure.hint)
        return self.hardware

    @property
    def port(self) -> int:
        """A port that was free; 0 if nobody asked."""
        return 0 if self.ports is None else self.ports.free
