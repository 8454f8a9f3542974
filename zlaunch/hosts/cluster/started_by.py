"""What started zlaunch, as its environment variables say: Slurm, Kubernetes, torchrun, MPI, or nothing.

zlaunch may be started once for a whole allocation, once on every node, or once for every rank. The last two
are one case: each zlaunch is a member of the job, with the slots of its node or with a single one.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from zlaunch.errors import WrongUsage
from zlaunch.frozen import dataclass
from zlaunch.hosts.cluster.hostlist import expand
from zlaunch.hosts.machine.ports import LOOPBACK
from zlaunch.units import plural

DEFAULT_PORT = 29500
"""The port of torchrun, accelerate and deepspeed if MASTER_PORT is not set."""

_PORTS = range(20_000, 32_000)
"""Below the ports that Linux hands out to connections."""

_ADDRESS = r"[\w.-]{1,255}|\[?[0-9A-Fa-f:.]{2,45}(%\w+)?\]?"

Environ = Mapping[str, str]

_OF_A_RANK = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK"})
"""What torchrun, deepspeed and accelerate set for each rank."""


@dataclass(frozen=True, slots=True)
class Member:
    """One of several zlaunch processes that start one job together."""

    number: int
    count: int
    address: str
    """Where member 0 listens."""
    port: int
    source: str
    """The variables that say so, for the plan."""
    slots: int | None = None
    """How many ranks it starts; None for one per device."""
    device: int | None = None
    """The device of a member that is a single rank."""
    hosts: str = ""
    """All hosts as this member was told of them, if it was; the others must have been told the same."""

    @property
    def kind(self) -> str:
        """What it is, for messages."""
        if self.device is None:
            return "node"
        return "rank"


class Allocation(NamedTuple):
    """A Slurm allocation of several nodes, in which zlaunch was started once."""

    hosts: tuple[str, ...]
    source: str


class Alone(NamedTuple):
    """One node, as something other than a person has decided."""

    source: str


ClusterEnvironment = Member | Allocation | Alone


def detect_cluster(environ: Environ) -> ClusterEnvironment | None:
    """Recognize what started zlaunch; None if nothing did.

    Raises WrongUsage for variables that contradict each other, or say only in part what the job is.
    """
    found = [answer for recognize in _RECOGNIZERS if (answer := recognize(environ)) is not None]
    members = [one for one in found if isinstance(one, Member)]
    for other in members[1:]:
        _refuse_contradiction(members[0], other)
    if members:  # of those that agree, RANK without LOCAL_RANK leaves open what it counts
        return next((one for one in members if one.device is not None), members[0])
    if (allocation := next((one for one in found if isinstance(one, Allocation)), None)) is not None:
        return allocation
    alone = next(iter(found), None)
    _refuse_parts(environ, alone)
    return alone


def _refuse_parts(environ: Environ, alone: ClusterEnvironment | None) -> None:
    """Raise WrongUsage for the number of one of several where nothing else says that there are several."""
    is_elsewhere = environ.get("MASTER_ADDR", LOOPBACK) not in (LOOPBACK, "localhost", "::1")
    for rank, sizes in _SIZES.items():
        text = environ.get(rank, "")
        says_several = rank in _OF_NODES and is_elsewhere and alone is None
        if not text.isdecimal() or (int(text) == 0 and not says_several):
            continue
        size = next(filter(environ.get, sizes), None)
        if size is None:
            raise WrongUsage(
                f"{rank}={text} is set without {sizes[0]}", f"set {sizes[0]} everywhere, or unset {rank}"
            )
        if int(text) == 0 or alone is None:
            continue
        count = f"{size}={environ[size]}"
        if alone.source == count:
            raise WrongUsage(f"{rank}={text} is not below {count}", f"count {rank} from 0")
        said = f"{rank}={text} {count} and {alone.source} contradict each other"
        raise WrongUsage(said, "unset the variables that do not belong to this job")


def _refuse_contradiction(first: Member, other: Member) -> None:
    if (first.number, first.count) != (other.number, other.count):
        raise WrongUsage(
            f"{first.source} and {other.source} contradict each other: number {first.number} of "
            f"{first.count}, or number {other.number} of {other.count}",
            "unset the variables that do not belong to this job",
        )


class _NodeVariables(NamedTuple):
    """Names of the variables that tell a program its node."""

    nodes: str
    rank: str
    address: str
    port: str
    per_node: str


_NNODES = _NodeVariables("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE")
"""What ms-swift and LLaMA-Factory read."""

_PET = _NodeVariables(*(f"PET_{name}" for name in _NNODES))
"""What Kubeflow sets and torchrun reads."""

_AZURE = _NNODES._replace(nodes="AZUREML_NODE_COUNT")
"""What Azure ML sets if it starts one process on each node."""

_COUNTS_OF_NODES = tuple(names.nodes for names in (_PET, _NNODES, _AZURE))

_OF_NODES = {_NNODES.rank: (_NNODES.nodes, _AZURE.nodes), _PET.rank: (_PET.nodes,)}

_SIZES = {
    **_OF_NODES,
    "RANK": ("WORLD_SIZE",),
    "OMPI_COMM_WORLD_RANK": ("OMPI_COMM_WORLD_SIZE",),
    "PMI_RANK": ("PMI_SIZE",),
}
"""Variables with the number of one of several → those with how many there are."""


def _per_node(names: _NodeVariables, environ: Environ) -> ClusterEnvironment | None:
    """A zlaunch on every node, as the variables of one family say."""
    nodes, rank = names.nodes, names.rank
    if _is_of_a_rank(environ) or (_in_slurm(environ) and not environ.get(rank)):
        return None
    if not environ.get(nodes):
        return None
    if ":" in environ[nodes]:
        raise WrongUsage(
            f"{nodes}={environ[nodes]}: zlaunch starts no elastic jobs", f"set {nodes} to a number"
        )
    count = _number_in(environ, nodes)
    if count == 1:
        return Alone(f"{nodes}=1")
    if lacking := " and ".join(name for name in (rank, names.address) if not environ.get(name)):
        raise WrongUsage(
            f"{nodes}={count} is set without {lacking}",
            f"set {lacking} on every node, or unset {nodes} to train on this one alone",
        )
    number, address = _number_in(environ, rank), environ[names.address]
    slots = None
    if environ.get(names.per_node, "").isdecimal():
        slots = _number_in(environ, names.per_node)
    if slots == 0:
        raise WrongUsage(
            f"{names.per_node}=0 starts no ranks", f"set {names.per_node} to the ranks of a node"
        )
    port = _number_in(environ, names.port, DEFAULT_PORT)
    source = f"{nodes}={count} {rank}={number} {names.address}={address}"
    return _checked(Member(number, count, address, port, source, slots), rank, nodes)


def _rank_variables(environ: Environ) -> ClusterEnvironment | None:
    """`RANK` and `WORLD_SIZE`: with `LOCAL_RANK` of a rank, else of a node, as a PyTorchJob sets them."""
    is_node = not environ.keys() >= _OF_A_RANK
    says_nodes = any(environ.get(name) for name in _COUNTS_OF_NODES)
    if environ.get("WORLD_SIZE") == "1" and says_nodes:
        return None  # left over from a single process
    counts = [environ.get(name) for name in _COUNTS_OF_NODES]
    numbers_nodes = environ.get("WORLD_SIZE") in counts and {"RANK", "MASTER_ADDR"} <= environ.keys()
    if not environ.get("WORLD_SIZE") or (is_node and says_nodes and not numbers_nodes):
        return None
    count = _number_in(environ, "WORLD_SIZE")
    if count == 1:
        return Alone("WORLD_SIZE=1")
    lacking = [name for name in ("RANK", "MASTER_ADDR") if not environ.get(name)]
    if lacking:
        if _in_slurm(environ):
            return None
        lacks = " and ".join(lacking)
        raise WrongUsage(
            f"WORLD_SIZE={count} is set without {lacks}",
            f"set {lacks}, or unset WORLD_SIZE to train on this machine alone",
        )
    number, address = _number_in(environ, "RANK"), environ["MASTER_ADDR"]
    source = f"RANK={number} WORLD_SIZE={count} MASTER_ADDR={address}"
    if is_node:
        member = Member(number, count, address, _number_in(environ, "MASTER_PORT", DEFAULT_PORT), source)
    else:
        member = Member(
            number,
            count,
            address,
            _port_inside_torchrun(environ),
            source,
            1,
            _number_in(environ, "LOCAL_RANK"),
        )
    return _checked(member, "RANK", "WORLD_SIZE")


def _is_of_a_rank(environ: Environ) -> bool:
    """Whether each rank of a job has a zlaunch; variables of a single process may be left over."""
    return environ.keys() >= _OF_A_RANK and environ["WORLD_SIZE"] != "1"


def _in_slurm(environ: Environ) -> bool:
    """Whether Slurm says what a script has set only in part, for all of its tasks."""
    return bool(environ.get("SLURM_JOB_ID"))


def _port_inside_torchrun(environ: Environ) -> int:
    """Choose a port for a job inside of torchrun, whose own store listens on MASTER_PORT."""
    return _derived_port(f"{environ.get('MASTER_PORT')} {environ.get('TORCHELASTIC_RUN_ID')}")


def _slurm(environ: Environ) -> ClusterEnvironment | None:
    if not _in_slurm(environ) or "OMPI_COMM_WORLD_SIZE" in environ:  # of mpirun's own step
        return None
    job = f"Slurm job {environ['SLURM_JOB_ID']}"
    nodes = _number_in(environ, "SLURM_JOB_NUM_NODES", _number_in(environ, "SLURM_NNODES", 1))
    if "SLURM_STEP_ID" not in environ or _is_interactive(environ):
        if nodes == 1:
            return Alone(f"{job} on 1 node")
        return Allocation(_node_list(environ, "SLURM_JOB_NODELIST", nodes), f"{job} on {nodes} nodes")
    tasks = _number_in(environ, "SLURM_STEP_NUM_TASKS", 1)
    step_nodes = _number_in(environ, "SLURM_STEP_NUM_NODES", 1)
    step = f"{job}, step {environ['SLURM_STEP_ID']}"
    if tasks == 1 and nodes == 1:
        return Alone(f"{step} on 1 node")
    if tasks == 1:
        return Alone(f"{step} on 1 node of the {nodes} of the job")
    hosts = _node_list(environ, "SLURM_STEP_NODELIST", step_nodes)
    first = LOOPBACK
    if step_nodes > 1:
        first = hosts[0]
    number, address = _number_in(environ, "SLURM_PROCID"), environ.get("MASTER_ADDR") or first
    port = _number_in(environ, "MASTER_PORT", _derived_port(step))
    if tasks == step_nodes:
        member = Member(number, tasks, address, port, f"{step}, node {number} of {tasks}")
    else:
        source, device = f"{step}, rank {number} of {tasks}", _number_in(environ, "SLURM_LOCALID", 0)
        member = Member(number, tasks, address, port, source, 1, device)
    return _checked(member, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


def _node_list(environ: Environ, name: str, count: int) -> tuple[str, ...]:
    """Write out the nodes that a variable of Slurm names; raise WrongUsage if they are not so many."""
    text = environ.get(name, "")
    hint = "start zlaunch with the variables that Slurm has set, or unset SLURM_JOB_ID"
    if not text:
        raise WrongUsage(f"{name} is not set", hint)
    try:
        hosts = expand(text)
    except WrongUsage as error:
        raise WrongUsage(f"{name}: {error.message}", hint) from None
    if not count == len(hosts) == len(set(hosts)):
        found = plural(len(set(hosts)), "node")
        raise WrongUsage(f"{name}={text} names {found}, but Slurm counts {count}", hint)
    return hosts


def _is_interactive(environ: Environ) -> bool:
    """Whether the step is the shell of `salloc`, whose commands belong to the whole allocation."""
    step = environ["SLURM_STEP_ID"]
    return not step.isdecimal() or int(step) >= 0xFFFFFFFA


def _open_mpi(environ: Environ) -> ClusterEnvironment | None:
    prefix = "OMPI_COMM_WORLD_"
    return _mpi(environ, *(f"{prefix}{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")))


def _pmi(environ: Environ) -> ClusterEnvironment | None:
    """MPICH and Intel MPI; Slurm sets these variables too."""
    if "SLURM_STEP_ID" in environ:
        return None
    return _mpi(environ, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")


def _mpi(
    environ: Environ, rank: str, size: str, local_rank: str, local_size: str
) -> ClusterEnvironment | None:
    says_other = environ.get("WORLD_SIZE") or "1"
    if not environ.get(size) or _is_of_a_rank(environ) or says_other not in ("1", environ[size]):
        return None
    if any((environ.get(name) or "1") != "1" for name in _COUNTS_OF_NODES):
        return None
    count = _number_in(environ, size)
    if count == 1:
        return Alone(f"{size}=1")
    here = _number_in(environ, local_size, 0)
    if "MASTER_ADDR" not in environ and here != count:
        raise WrongUsage(
            f"{size}={count} is set without MASTER_ADDR, the host of rank 0",
            "start it with `mpirun -x MASTER_ADDR=HOST …`",
        )
    number = _number_in(environ, rank)
    world = (
        environ.get("PMIX_NAMESPACE") or environ.get("PMI_ID") or environ.get("OMPI_MCA_ess_base_jobid") or ""
    )
    address, port = (
        environ.get("MASTER_ADDR", LOOPBACK),
        _number_in(environ, "MASTER_PORT", _derived_port(world)),
    )
    source = f"{rank}={number} {size}={count}"
    if here == 1:
        member = Member(number, count, address, port, source)
    else:
        member = Member(number, count, address, port, source, 1, _number_in(environ, local_rank, 0))
    return _checked(member, rank, size)


def _checked(member: Member, rank: str, size: str) -> Member:
    if member.number >= member.count:
        raise WrongUsage(f"{rank}={member.number} is not below {size}={member.count}", f"count {rank} from 0")
    if not 0 < member.port < 1 << 16:
        raise WrongUsage(f"{member.port} is not a port", "set MASTER_PORT to a number from 1 to 65535")
    if not _is_address(member.address):
        raise WrongUsage(
            f"`{member.address}` is neither a host name nor an address",
            "set MASTER_ADDR to the name of the first host alone, such as `node1`",
        )
    return member


def _is_address(text: str) -> bool:
    """Whether something may be called so; it need not exist."""
    labels = text.removesuffix(".").split(".")
    return re.fullmatch(_ADDRESS, text) is not None and (
        ":" in text or all(0 < len(one) < 64 for one in labels)
    )


def _number_in(environ: Environ, name: str, default: int | None = None) -> int:
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    if not text.isdecimal() or len(text) > 9:
        raise WrongUsage(f"{name}={text} is not a number from 0 on", f"set {name} to one, or unset it")
    return int(text)


def _derived_port(text: str) -> int:
    """Choose the same port everywhere, and different ones for different jobs."""
    return _PORTS[int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % len(_PORTS)]


_RECOGNIZERS: tuple[Callable[[Environ], ClusterEnvironment | None], ...] = (
    partial(_per_node, _PET),
    partial(_per_node, _NNODES),
    partial(_per_node, _AZURE),
    _rank_variables,
    _slurm,
    _open_mpi,
    _pmi,
)
"""What a user has set by hand comes before what a scheduler sets for every job."""

_PREFIXES = ("PET_", "TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_")
_NAMES = frozenset(
    {
        *_NNODES,
        *_OF_A_RANK,
        *("LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
    }
)


def without_cluster_variables(environ: Environ) -> dict[str, str]:
    """Return an environment for a launcher, which would take these variables for its own options."""
    given = environ.items()
    return {name: value for name, value in given if name not in _NAMES and not name.startswith(_PREFIXES)}
