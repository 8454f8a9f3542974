"""Collect the facts that a plan depends on: the files of a job, this machine, and its hosts.

Nothing is judged, written or started here. An error means that something cannot be read.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from zlaunch.checks.tracking import PACKAGES
from zlaunch.config.resolve.compose import OFFLOADS
from zlaunch.config.resolve.job import ResolveContext
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import Document
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Finding, InputMissing, Refused, Unavailable, ZlaunchError
from zlaunch.estimate.splits import split_by_arguments
from zlaunch.files import is_safe_word, nearest
from zlaunch.hosts.agent.answers import ask_hosts, ask_machines
from zlaunch.hosts.agent.python_of_host import is_here, python_here
from zlaunch.hosts.cluster.deepspeed_env import read_deepspeed_env
from zlaunch.hosts.cluster.environment import Member
from zlaunch.hosts.cluster.placement import assign_ranks, choose_slots, count_slots
from zlaunch.hosts.cluster.topology import Host, HostLine, Reach, Topology, read_hosts
from zlaunch.hosts.environment import Variable
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.interpreter import TRAINING, Interpreter, check_packages, inspect_python, stack_of
from zlaunch.hosts.machine.op_cache import OpCache
from zlaunch.hosts.machine.ports import LOOPBACK
from zlaunch.hosts.machine.probe import probe_machine
from zlaunch.hosts.machine.question import Question
from zlaunch.hosts.machine.resources import Machine, weakest
from zlaunch.hosts.machine.survey import survey
from zlaunch.job.args import ScriptArgs
from zlaunch.job.argument_checks import check_script_args
from zlaunch.job.hub import HUB_ID, fetch_model
from zlaunch.job.model import ModelConfig, model_flag, read_model
from zlaunch.job.recipes import FOLDER, recipe_of
from zlaunch.job.script import FSDP, ConfigInterface, Handover, Script
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import JobSpec
from zlaunch.job.stack import SoftwareStack
from zlaunch.job.trainer_args import TrainerArgs
from zlaunch.launch.ask import ask
from zlaunch.launch.backends import backend_of, launcher_of
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.surroundings import NOWHERE, Surroundings
from zlaunch.resume.save_plan import with_save_directory
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.run_files import RunFiles

if TYPE_CHECKING:  # often nothing is estimated
    from zlaunch.estimate.query import Estimate
    from zlaunch.resume.handover import Resumption

DEBUGGER = "debugpy"
"""The package that `--debug` needs on the machine of the rank."""


ADAPTER = "adapter_config.json"
"""The file of an adapter, which transformers loads together with its base model."""


@dataclass(frozen=True)
class Sources:
    """A job, and the files that it names."""

    job: JobSpec
    """With the arguments by which its script is told where to save."""
    script: Script
    ds_config: Document | None
    hostfile: tuple[HostLine, ...]
    hosts: Topology | None
    """The slots that the job uses on several hosts; None on this one alone, and until they are counted."""


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
    given: Mapping[str, Variable] = field(default_factory=dict)
    """Variables that DeepSpeed's runner would read in this directory, where it does not run."""
    surroundings: Surroundings = NOWHERE
    resume: "Resumption | None" = None
    """The checkpoint that the job resumes from."""
    repeats: RunFiles | None = None
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
        if self.resume is None:
            return flags
        return flags.followed_by(self.resume.words(self.layout))

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


def default_recipe() -> Path:
    """Path of the training program that comes with zlaunch."""
    return FOLDER / "causal_lm.py"


def read_sources(job: JobSpec) -> Sources:
    """Read the files a job names, and check the arguments of its script.

    Raises InputMissing or Refused for a file that cannot be read, WrongUsage for slots that no host has, and
    for arguments that the script certainly does not define.
    """
    script = _as_told(read_script(job.script), job)
    is_its_own = script.handover is Handover.NOT and bool(job.config_flags)
    ds_config: Document | None = None
    if job.ds_config is not None and not is_its_own:
        ds_config = read(job.ds_config)
    lines: tuple[HostLine, ...] = ()
    topology: Topology | None = None
    if job.names_hosts:
        lines = read_hosts(job.hostfile, job.hosts)
        if all(line.host.devices for line in lines):
            topology = choose_slots(job, [line.host for line in lines])
    job = with_save_directory(job, script)
    check_script_args(script, job.args)
    return Sources(job, script, ds_config, lines, topology)


def _count_slots(sources: Sources, machine: Machine, *, is_offline: bool) -> Sources:
    """Ask hosts for their devices if the hostfile does not say how many to use."""
    job, lines = sources.job, sources.hostfile
    if sources.hosts is not None or not lines:
        return sources
    if is_offline:
        devices = assign_ranks(replace(job, hostfile=None, hosts=None, include=None, exclude=None), machine)
        likely = devices.hosts[0].devices
        hosts = [replace(line.host, devices=line.host.devices or likely) for line in lines]
        return replace(sources, hosts=choose_slots(job, hosts))
    uncounted = [line.host for line in lines if not line.host.devices]
    lines = count_slots(lines, ask_machines(uncounted, machine, job.python))
    return replace(sources, hostfile=lines, hosts=choose_slots(job, [line.host for line in lines]))


def _as_told(script: Script, job: JobSpec) -> Script:
    """Return the script as it trains with this command line.

    With FSDP, the Trainer excludes DeepSpeed. A ds_config that the parser of the script names is its own if
    the job says nothing about it.
    """
    if script.interface is ConfigInterface.TRAINER and job.args.fsdp:
        return replace(script, interface=ConfigInterface.NONE, without_deepspeed=FSDP)
    default, is_open = script.default_config, job.ds_config is None and not job.config_options
    if default is not None and is_open and Path(str(default.value)).is_file():
        return replace(script, own_config=default)
    return script


def inspect(
    sources: Sources, layout: RunDir, reporter: PlanReporter, surroundings: Surroundings = NOWHERE
) -> JobFacts:
    """Ask the script, read the model's config.json, and survey all machines, other hosts over ssh.

    Raises InputMissing for a missing model, WrongUsage for arguments that the script rejects, Unavailable
    for a Python that lacks packages, devices that do not exist, or a host that gives no answer.
    """
    job = sources.job
    python = inspect_python(python_here(sources.hostfile, job.python), (DEBUGGER, *PACKAGES))
    check_packages(python, _needed(job, sources.script))
    if surroundings.imagined is None:
        machine = probe_machine(os.environ, python)
    else:
        machine = surroundings.imagined.machine
    sources = _count_slots(sources, machine, is_offline=surroundings.is_offline)
    likely = sources.hosts or surroundings.likely_topology(job, machine)
    sources = replace(sources, script=ask(job, sources.script, python, reporter, likely))
    model, model_error = _model(job, sources.script)
    question = _question(sources, layout)
    here = survey(question, python, machine)
    others: Mapping[str, MachineFacts] = {}
    if sources.hosts is None:
        topology, others = surroundings.find_hosts(job, here, question, str(layout.root))
        if not topology.spans_hosts:
            topology = assign_ranks(job, here.machine)
    else:
        topology = sources.hosts
        if not surroundings.is_offline:
            others = ask_hosts(topology.hosts, question)
    if surroundings.rendezvous is not None and not surroundings.rendezvous.leads:
        layout = RunDir(Path(surroundings.rendezvous.run_directory))
    return JobFacts(
        job=job,
        script=sources.script,
        ds_config=planned_config(sources),
        model=model,
        model_error=model_error,
        topology=topology,
        here=here,
        others=others,
        question=question,
        hostfile=sources.hostfile,
        layout=layout,
        environ=dict(os.environ),
        given=_given(sources, topology),
        surroundings=surroundings,
    )


def planned_config(sources: Sources) -> Document | None:
    """Return the user's ds_config, or that of the script; None if it cannot be read, which is up to it."""
    own = sources.script.own_config
    if own is None:
        return sources.ds_config
    try:
        if isinstance(own.value, str):
            return read(Path(own.value))
        if own.value is None:
            return None
        return parse(json.dumps(own.value, indent=2, default=str), own.where)
    except ZlaunchError:
        return None


def _given(sources: Sources, topology: Topology) -> Mapping[str, Variable]:
    is_elsewhere = not is_safe_word(str(Path.cwd()))  # the runner would not quote this directory
    has_hosts = sources.hosts is not None or topology.spans_hosts
    backend = backend_of(launcher_of(sources.job, sources.script))
    if not has_hosts or backend.starter is None or not is_elsewhere:
        return {}
    return read_deepspeed_env(Path.cwd(), os.environ)


def _needed(job: JobSpec, script: Script) -> tuple[str, ...]:
    """List the packages without which a job certainly cannot start."""
    if (recipe := recipe_of(job.script)) is not None:
        return tuple(dict.fromkeys((*TRAINING, *recipe.packages)))
    backend = backend_of(launcher_of(job, script))
    is_sure = script.is_sure and script.interface is not ConfigInterface.NONE
    return TRAINING if backend.is_of_deepspeed or is_sure else TRAINING[:1]


def _question(sources: Sources, layout: RunDir) -> Question:
    """Ask about everything that ranks read, write and listen on."""
    job = sources.job
    own: object = None
    if sources.ds_config is not None:
        own = sources.ds_config.value.get(ZERO)
    sections: list[object] = []
    if isinstance(own, Mapping):
        sections = [own.get(name) for name in OFFLOADS]
    swaps = [section.get("nvme_path") for section in sections if isinstance(section, Mapping)]
    swaps += [job.nvme_dir, *(value for key, value in job.overrides if key.endswith(".nvme_path"))]
    named = [sources.script.path, sources.script.output_dir(job.args), *swaps]
    return Question(
        identified=(nearest(layout.root),),
        paths=tuple(Path(path).absolute() for path in named if isinstance(path, str | Path)),
        python=job.python,
        needed=_needed(job, sources.script),
        packages=(DEBUGGER, *PACKAGES),
        debug_port=None if job.debug is None else job.debug.port,
        compared=(sources.script.path.absolute(),),
    )


def _model(job: JobSpec, script: Script) -> tuple[ModelConfig | None, ZlaunchError | None]:
    """Find the config.json of the model the script will load, or why it could not be fetched.

    Raises InputMissing or Refused for a model that the script certainly cannot load, unless its config.json
    is bundled with zlaunch.
    """
    name = model_flag(script.trainer_flags(job.args))
    if name is None:
        recipe = recipe_of(job.script)
        if recipe is None or not recipe.folders:
            return None, None
        return read_model(recipe.folders[0]), None
    loaded = [flag.value for flag in job.args.flags if flag.name in script.loads]
    is_certain = name in loaded and not Path(name, ADAPTER).exists()
    try:
        if Path(name).exists():
            return read_model(Path(name)), None
        if script.reported is None and not script.mentions("from_pretrained"):
            return None, None
        if not HUB_ID.fullmatch(name):
            raise InputMissing(f"there is no model directory `{name}`")
        model = fetch_model(name)
        is_lost = isinstance(model.hub_error, InputMissing)
        return model, None if is_lost and not is_certain else model.hub_error
    except Unavailable as error:
        return None, error
    except (InputMissing, Refused):
        if is_certain:
            raise
        return None, None
