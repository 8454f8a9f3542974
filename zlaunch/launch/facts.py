"""What a plan depends on: the files of a job, this machine, and its hosts."""

import os
from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from zlaunch.config.resolve.job import ResolveContext
from zlaunch.dsconfig.text.document import Document
from zlaunch.errors import Finding, ZlaunchError
from zlaunch.estimate.splits import split_by_arguments
from zlaunch.frozen import dataclass
from zlaunch.hosts.agent.python_of_host import is_here
from zlaunch.hosts.cluster.started_by import Member
from zlaunch.hosts.cluster.topology import Host, HostLine, Reach, Topology
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.interpreter import Interpreter, stack_of
from zlaunch.hosts.machine.op_cache import OpCache
from zlaunch.hosts.machine.ports import LOOPBACK
from zlaunch.hosts.machine.question import Question
from zlaunch.hosts.machine.resources import Machine, weakest
from zlaunch.hosts.rank_environment import Variable
from zlaunch.job.args import ScriptArgs
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import Handover, Script
from zlaunch.job.spec import JobSpec
from zlaunch.job.stack import SoftwareStack
from zlaunch.job.trainer_args import TrainerArgs
from zlaunch.launch.surroundings import NOWHERE, Surroundings
from zlaunch.rundir.layout import RunDir

if TYPE_CHECKING:  # a job that starts anew has none of them
    from zlaunch.estimate.query import Estimate
    from zlaunch.resume.handover import Resumption
    from zlaunch.rundir.run_files import RunFiles


@dataclass(frozen=True, slots=True)
class Software:
    """The interpreter of the ranks on a host, and where their native ops are kept."""

    python: Interpreter
    op_cache: OpCache | None
    path: str | None = None
    """PATH of the programs that start there; None if the host was not asked."""


@dataclass(frozen=True)
class JobFacts:
    """Everything that is known about a job before it is planned."""

    job: JobSpec
    script: Script
    ds_config: Document | None
    """The user's ds_config, or the one that the script brings along."""
    model: ModelConfig | None
    """The model the script will load, if it is known."""
    topology: Topology
    here: MachineFacts
    layout: RunDir
    """The run directory, if it is still free when the job starts."""
    environ: Mapping[str, str]
    """The environment zlaunch was started in."""
    others: Mapping[str, MachineFacts] = field(default_factory=dict)
    """The other hosts by name."""
    question: Question = field(default_factory=Question)
    """What was asked about all hosts."""
    hostfile: tuple[HostLine, ...] = ()
    model_error: ZlaunchError | None = None
    """Why the model's config.json could not be fetched; InputMissing if the script cannot load the model."""
    deepspeed_env: Mapping[str, Variable] = field(default_factory=dict)
    """Variables that DeepSpeed's runner would read in this directory, where it does not run."""
    surroundings: Surroundings = NOWHERE
    resumption: "Resumption | None" = None
    """The checkpoint that the job resumes from."""
    repeats: "RunFiles | None" = None
    """The run whose plan is repeated."""
    estimate: "Estimate | None" = None
    """The memory estimate, if there is one."""

    @property
    def python(self) -> Interpreter:
        """The interpreter of the ranks."""
        return self.here.python

    @property
    def stack(self) -> SoftwareStack:
        """The releases of the packages that the ranks see."""
        return stack_of(self.python)

    @property
    def machines(self) -> dict[str, Machine]:
        """The machine of each host of the job."""
        return {host.name: self.others.get(host.name, self.here).machine for host in self.topology.hosts}

    @property
    def names_here(self) -> list[str]:
        """The hosts of the job that are this machine; a dry run takes other nodes for ones like it."""
        cluster = self.surroundings.cluster
        if isinstance(cluster, Member):
            return [self.topology.hosts[cluster.number].name]
        return [host.name for host in self.topology.hosts if host.name not in self.others]

    @property
    def known_hosts(self) -> dict[str, MachineFacts]:
        """The hosts of the job that are known, this machine first."""
        return {**dict.fromkeys(self.names_here, self.here), **self.others}

    @cached_property
    def machine(self) -> Machine:
        """What the machines of all hosts have; raise Unavailable if only some have GPUs."""
        return weakest(list(self.machines.values()))

    @property
    def port(self) -> int:
        """A free port of the first host, for launchers that do not pick one."""
        return self.others.get(self.topology.hosts[0].name, self.here).port

    @property
    def address(self) -> str:
        """The address at which the other hosts reach the first one."""
        first = self.topology.hosts[0]
        if (known := self.surroundings.address or first.addr) is not None:
            return known
        if not self.others:
            return first.name if self.topology.reach is Reach.SSH else LOOPBACK
        if first.name in self.others:
            return self.others[first.name].connection.reached_at or first.name
        addresses = (host.connection.seen_from for host in self.others.values())
        return next(filter(None, addresses), os.uname().nodename)

    def software_on(self, host: Host) -> Software:
        """What the ranks of a host use; if it was not asked, it is taken to be like this one."""
        if (known := self.others.get(host.name)) is not None:
            return Software(known.python, known.op_cache, known.path)
        python = self.python
        if host.python is not None and not is_here(host):
            python = replace(python, executable=host.python)
        return Software(python, self.here.op_cache)

    @property
    def trainer_flags(self) -> ScriptArgs:
        """The arguments of the script as flags of the Trainer."""
        flags = self.script.trainer_flags(self.job.args)
        if self.resumption is None:
            return flags
        return flags.followed_by(self.resumption.words(self.layout))

    def read_args(self) -> tuple[TrainerArgs, list[Finding]]:
        """Read the arguments of the Trainer; return them with findings."""
        return self.script.trainer_args(self.job.args, self.stack.trainer)

    @property
    def _divides_ranks(self) -> bool:
        """Whether the script may decide which ranks share a batch."""
        has_stages = self.ds_config is not None and self.ds_config.has("pipeline")
        return has_stages or self.script.divides_ranks or split_by_arguments(self.job.args) is not None

    def context(self, args: TrainerArgs) -> ResolveContext:
        """What the ds_config is resolved for; `args` are those of the Trainer."""
        return ResolveContext(
            base=self.ds_config,
            args=args,
            model=None if self.script.handover is Handover.NOT else self.model,
            machine=self.machine,
            world_size=self.topology.world_size,
            interface=self.script.interface,
            is_sure=self.script.is_sure,
            handover=self.script.handover,
            stack=self.stack,
            has_own_groups=self._divides_ranks,
        )
