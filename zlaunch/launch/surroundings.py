"""What a job is started in: one machine, a Slurm allocation, or a zlaunch on every node."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from zlaunch.errors import Unavailable, WrongUsage, ZlaunchError
from zlaunch.frozen import dataclass
from zlaunch.hosts.agent.python_of_host import is_here
from zlaunch.hosts.cluster.other_launchers import says_several
from zlaunch.hosts.cluster.placement import assign_ranks, most_slots
from zlaunch.hosts.cluster.started_by import Allocation, Alone, ClusterEnvironment, Member, detect_cluster
from zlaunch.hosts.cluster.topology import Host, Reach, Topology
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.gpu_catalog import parse_hosts_of_gpus
from zlaunch.hosts.machine.question import Question
from zlaunch.hosts.machine.resources import Gpu, Machine
from zlaunch.job.spec import DeviceChoice, GpuChoice, JobSpec
from zlaunch.launch.backends import backend_of
from zlaunch.launch.reporter import PlanReporter
from zlaunch.secrets import SECRET
from zlaunch.units import memory, plural

if TYPE_CHECKING:  # only a zlaunch on every node meets others
    from zlaunch.hosts.cluster.rendezvous import Rendezvous

UNKNOWN_MEMORY_BYTES, UNKNOWN_CORES = 1 << 60, 0
"""Of a host that is imagined: its memory is not checked, and its threads are not chosen."""


@dataclass(frozen=True, slots=True)
class Imagined:
    """`--on 2x8xH100-80GB`: hosts that are not there."""

    count: int
    machine: Machine


def imagine(text: str) -> Imagined:
    """Read `--on`; raise WrongUsage for an unknown GPU."""
    count, gpus, model = parse_hosts_of_gpus(text)
    name = next(iter(model.nvml_names), model.name)
    capability = (7, 0)
    if model.has_bf16:
        capability = (8, 0)
    each = tuple(Gpu(index, name, "", model.total_bytes, capability) for index in range(gpus or 1))
    return Imagined(count or 1, Machine("", UNKNOWN_CORES, UNKNOWN_MEMORY_BYTES, each))


@dataclass(frozen=True)
class Surroundings:
    """What started zlaunch, and the connection to the other members of the job if there are any."""

    cluster: ClusterEnvironment | None = None
    rendezvous: "Rendezvous | None" = None
    """None in a dry run, too, which assumes that all nodes are alike."""
    imagined: Imagined | None = None
    """The hosts that a dry run is for, instead of this one."""
    is_offline: bool = False
    """Whether no host is asked: all are taken for this one, or for those that are imagined."""
    ignored_cluster: str | None = None
    """What a scheduler that zlaunch does not obey says about several hosts."""

    @property
    def address(self) -> str | None:
        """The address of the first host, where what started zlaunch has chosen it."""
        if isinstance(self.cluster, Member):
            return self.cluster.address
        return None

    @property
    def source(self) -> str | None:
        """Where this comes from, for the plan; None if nothing but a person started zlaunch."""
        if isinstance(self.cluster, Member) and self.rendezvous is None:
            return f"{self.cluster.source}; taking all nodes to be like this one"
        if self.imagined is not None:
            gpus = self.imagined.machine.gpus
            each = f"{len(gpus)} x {gpus[0].name}, {memory(gpus[0].memory_bytes)} each"
            return f"{each}, as `--on` says; no machine is asked"
        if self.cluster is None:
            return None
        return self.cluster.source

    @contextmanager
    def reporting_failures(self) -> Iterator[None]:
        """Tell an error of this member to all others."""
        try:
            yield
        except ZlaunchError as error:
            if self.rendezvous is not None:
                self.rendezvous.fail(error)
            raise

    def refuse_contradictions(self, job: JobSpec) -> None:
        """Raise WrongUsage for options that contradict what started zlaunch."""
        reaches_hosts = job.launcher is not None and backend_of(job.launcher).starter is not None
        if reaches_hosts and isinstance(self.cluster, Member | Allocation):
            raise WrongUsage(
                f"DeepSpeed's launcher would start ranks over ssh, beside {self.cluster.source}",
                "use `--launcher torchrun`",
            )
        if not job.names_hosts or self.cluster is None or isinstance(self.cluster, Alone):
            return
        flag = "--hostfile"
        if job.hosts is not None:
            flag = "--hosts"
        hint = f"start zlaunch once, outside of this job; or leave out `{flag}`"
        if isinstance(self.cluster, Allocation):
            hint = f"leave out `{flag}`: zlaunch takes the nodes of the job"
        raise WrongUsage(f"`{flag}` and {self.cluster.source} both name the hosts", hint)

    def likely_topology(self, choice: DeviceChoice, machine: Machine) -> Topology:
        """The ranks of the job if all nodes are like this one."""
        match self.cluster:
            case Member() as member:
                devices = _devices_of_member(member, choice, machine)
                names = [f"{member.kind} {number}" for number in range(member.count)]
                return Topology(tuple(Host(name, devices) for name in names), Reach.JOINED)
            case Allocation() as allocation:  # a login node may have no GPU
                if choice.gpus is None:
                    devices = assign_ranks(machine, choice).hosts[0].devices
                else:
                    devices = choice.gpus.devices or tuple(range(choice.gpus.count or 1))
                return Topology(tuple(Host(name, devices) for name in allocation.hosts), Reach.SRUN)
        if self.imagined is not None and self.imagined.count > 1:
            devices = assign_ranks(machine, choice).hosts[0].devices
            names = [f"host-{number}" for number in range(self.imagined.count)]
            return Topology(tuple(Host(name, devices) for name in names), Reach.SSH)
        return assign_ranks(machine, choice)

    def ask(
        self, hosts: Sequence[Host], question: Question, reach: Reach = Reach.SSH
    ) -> Mapping[str, MachineFacts]:
        """Ask the other hosts, if any is to be asked; raise Unavailable for one that gives no answer."""
        if self.is_offline or all(map(is_here, hosts)):
            return {}
        from zlaunch.hosts.agent.answers import ask_hosts  # a job on one machine asks no other

        return ask_hosts(hosts, question, reach)

    def find_hosts(
        self, choice: DeviceChoice, here: MachineFacts, question: Question, run_directory: str
    ) -> tuple[Topology, Mapping[str, MachineFacts]]:
        """Find out what the hosts have, and return them in the order of their ranks.

        Raises Unavailable for a host that gives no answer, or does not take part in time.
        """
        likely = self.likely_topology(choice, here.machine)
        if isinstance(self.cluster, Allocation):
            others = self.ask(likely.hosts, question, Reach.SRUN)
            machines = [others.get(host.name, here).machine for host in likely.hosts]
            hosts = [
                replace(host, devices=assign_ranks(machine, choice).hosts[0].devices)
                for host, machine in zip(likely.hosts, machines, strict=True)
            ]
            return replace(likely, hosts=tuple(hosts)), others
        if self.rendezvous is None:
            return likely, {}
        devices = _devices_of_member(self.rendezvous.member, choice, here.machine)
        return self.rendezvous.join(self.rendezvous.facts_here(devices, here), run_directory)


NOWHERE = Surroundings()


def refuse_several(environ: Mapping[str, str], command: str) -> None:
    """Raise WrongUsage for a command that one zlaunch runs for itself if several were started."""
    cluster = detect_cluster(environ)
    if isinstance(cluster, Member):
        raise WrongUsage(
            f"`{command}` runs on one machine, but zlaunch was started as one of {cluster.count}: "
            f"{cluster.source}",
            "start it once",
        )


def find_surroundings(
    environ: Mapping[str, str],
    timeout: float,
    reporter: PlanReporter,
    dry_run: bool,
    *,
    chosen: Member | None = None,
    on: str | None = None,
    is_offline: bool = False,
) -> Surroundings:
    """Recognize what started zlaunch, unless the user has chosen which member this is.

    Raises WrongUsage for variables that contradict each other.
    """
    if on is not None:
        _refuse_to_train("--on", dry_run)
        return Surroundings(imagined=imagine(on), is_offline=True)
    if is_offline:
        _refuse_to_train("--offline", dry_run)
    cluster = chosen or detect_cluster(environ)
    if not isinstance(cluster, Member) or dry_run:
        ignored_cluster = None
        if cluster is None or isinstance(cluster, Alone):
            ignored_cluster = says_several(environ)
        return Surroundings(cluster, is_offline=is_offline, ignored_cluster=ignored_cluster)
    from zlaunch.hosts.cluster.rendezvous import Rendezvous  # as above

    return Surroundings(cluster, Rendezvous(cluster, timeout, reporter.note, environ.get(SECRET, "")))


def _refuse_to_train(option: str, dry_run: bool) -> None:
    if not dry_run:
        raise WrongUsage(f"`{option}` plans without asking any machine", "add `--dry-run`")


def _devices_of_member(member: Member, choice: DeviceChoice, machine: Machine) -> tuple[int, ...]:
    """Choose the devices of one member: all of its node, as many as it was told, or its own one."""
    if member.device is not None:
        return (_own_device(member, member.device, choice.gpus, machine),)
    if choice.gpus is None and member.slots is not None:
        if member.slots > (most := most_slots(len(machine.gpus), machine.num_cores)):
            has = "no GPU"
            if machine.gpus:
                has = plural(most, "visible GPU")
            raise Unavailable(
                f"{member.source} asks for {plural(member.slots, 'rank')} a node, but {machine.hostname} has "
                f"{has} and {plural(machine.num_cores, 'CPU core')}",
                f"ask for {plural(most, 'rank')} a node, or fewer",
            )
        if not machine.gpus:
            return tuple(range(member.slots))
        choice = replace(choice, gpus=GpuChoice(count=member.slots))
    return assign_ranks(machine, choice).hosts[0].devices


def _own_device(member: Member, device: int, gpus: GpuChoice | None, machine: Machine) -> int:
    """Choose the device of a member that is one rank; the scheduler may show it that one alone."""
    if gpus is not None and max(gpus.count or 1, len(gpus.devices or ())) > 1:
        raise WrongUsage(
            f"`--gpus` asks for several ranks, but this zlaunch is one rank: {member.source}",
            "leave out `--gpus`, or start zlaunch once on each node",
        )
    visible = [gpu.index for gpu in machine.gpus]
    if len(visible) <= 1:
        return next(iter(visible), device)
    if device >= len(visible):
        raise Unavailable(
            f"{member.source}: there is no GPU for local rank {device}; "
            f"{machine.hostname} has {plural(len(visible), 'visible GPU')}"
        )
    return visible[device]
