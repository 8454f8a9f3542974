"""The plan of a job: everything it will do, decided before anything starts."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL, ResolvedAutos
from zlaunch.config.resolve.compose import OFFLOADS
from zlaunch.config.resolve.job import ResolveContext, ResolvedConfig, resolve_config
from zlaunch.config.resolve.trainer_agreement import fsdp_conflict, script_arguments
from zlaunch.config.resolve.values import AUTO, Values
from zlaunch.dsconfig.keys.auto_keys import FILLED
from zlaunch.dsconfig.native_ops import NativeOp, needed_ops
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import Document, dotted
from zlaunch.errors import Finding, Severity, WrongUsage, refuse_fatal
from zlaunch.estimate.splits import split_by_arguments
from zlaunch.files import as_safe_word
from zlaunch.hosts.agent.python_of_host import is_here, own_program
from zlaunch.hosts.cluster.topology import Host, Reach, Topology
from zlaunch.hosts.environment import Variable, accelerate_variables, asked_variables, job_environment
from zlaunch.hosts.machine import op_cache
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.op_cache import OpCache
from zlaunch.hosts.machine.ports import LOOPBACK
from zlaunch.hosts.machine.probe import stack_of
from zlaunch.hosts.machine.resources import Machine
from zlaunch.job.args import ScriptArgs
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import FSDP, ConfigInterface, Handover, Script
from zlaunch.job.spec import Debug, JobSpec, Launcher
from zlaunch.job.stack import SoftwareStack
from zlaunch.job.trainer_args import TrainerArgs, absent_arguments
from zlaunch.launch.backends import BACKENDS, launcher_of, torchrun
from zlaunch.launch.backends.target import Target
from zlaunch.launch.time_limit import TimeLimit, shields_ranks, time_limit
from zlaunch.process import RANK_PROGRAM, ours, process_started
from zlaunch.resume.handover import Resumption
from zlaunch.resume.resumed_data import DataPosition, data_position
from zlaunch.resume.save_plan import SavePlan, plan_saves
from zlaunch.resume.training import PlannedTraining
from zlaunch.rundir.layout import RunDir
from zlaunch.units import whole


@dataclass(frozen=True, slots=True)
class Software:
    """The interpreter of the ranks on a host, and where their native ops are kept."""

    python: Interpreter
    op_cache: OpCache | None
    path: str | None = None
    """PATH of the programs that start there; None if the host was not asked."""


@dataclass(frozen=True)
class PlanInputs:
    """The inputs of a plan."""

    job: JobSpec
    script: Script
    base: Document | None
    """The user's ds_config, or the one that the script brings along."""
    model: ModelConfig | None
    machine: Machine
    topology: Topology
    port: int
    """A free port of the first host, for launchers that do not pick one."""
    layout: RunDir
    environ: Mapping[str, str]
    """The environment zlaunch was started in."""
    python: Interpreter
    """The interpreter of the ranks."""
    op_cache: OpCache | None = None
    """Where native ops are kept; None without torch."""
    resume: Resumption | None = None
    """The checkpoint that the job resumes from."""
    address: str = LOOPBACK
    """The address of the first host, for the others."""
    started_by: str | None = None
    """What started zlaunch, by its variables."""
    given: Mapping[str, Variable] = field(default_factory=dict)
    """Variables from `.deepspeed_env`, where DeepSpeed's runner does not read it."""
    software: Mapping[str, Software] = field(default_factory=dict)
    """Names of other hosts → what their ranks use."""

    @property
    def stack(self) -> SoftwareStack:
        """The releases of the packages that the ranks see."""
        return stack_of(self.python)

    @property
    def trainer_flags(self) -> ScriptArgs:
        """The arguments of the script as flags of the Trainer."""
        words = () if self.resume is None else self.resume.words(self.layout)
        return self.script.trainer_flags(self.job.args).followed_by(words)

    def read_args(self) -> tuple[TrainerArgs, list[Finding]]:
        """Read the arguments of the Trainer; return them with findings."""
        return self.script.trainer_args(self.job.args, self.stack.trainer)

    @property
    def _divides_ranks(self) -> bool:
        """Whether the script may decide which ranks share a batch."""
        has_stages = self.base is not None and self.base.has("pipeline")
        return has_stages or self.script.divides_ranks or split_by_arguments(self.job.args) is not None

    def context(self, args: TrainerArgs) -> ResolveContext:
        """What the ds_config is resolved for; `args` are those of the Trainer."""
        return ResolveContext(
            base=self.base,
            args=args,
            model=self.model,
            machine=self.machine,
            world_size=self.topology.world_size,
            interface=self.script.interface,
            is_sure=self.script.is_sure,
            handover=self.script.handover,
            stack=self.stack,
            has_own_groups=self._divides_ranks,
        )


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a rank listens for a debugger: on the loopback interface of its host."""

    rank: int
    host: str
    port: int


@dataclass(frozen=True)
class LaunchPlan:
    """What will be started, where, with which ds_config, and why."""

    layout: RunDir
    python: Interpreter
    """The interpreter of the ranks."""
    topology: Topology
    accelerator: str
    launcher: Launcher
    port: int
    """A free port, for launchers that do not pick one."""
    program: Script
    values: Values
    """The ds_config with every value that is known."""
    ds_config: Values
    """The ds_config that is written: "auto" wherever the program has the last word."""
    left: Mapping[str, str]
    """ds_config keys whose value is not known → what fills them in."""
    args: ScriptArgs
    """All arguments of the script."""
    environment: Mapping[str, Variable]
    ops: tuple[NativeOp, ...]
    precision: str | None
    """None if the script decides."""
    warnings: tuple[Finding, ...]
    """Parts of the user's ds_config that DeepSpeed silently ignores or changes."""
    module: str | None = None
    """What `python -m` runs instead of the script's file."""
    debug: Listener | None = None
    op_cache: OpCache | None = None
    """Where native ops are kept; None without torch."""
    resume: DataPosition | None = None
    """The checkpoint that it resumes from, and where in its data."""
    saves: SavePlan | None = None
    """When its Trainer saves checkpoints; None if it saves none."""
    address: str = LOOPBACK
    """The address of the first host, for the others."""
    started_by: str | None = None
    """What started zlaunch, by its variables; None if nothing but a person did."""
    limit: TimeLimit | None = None
    """When it must have ended."""
    shielded: bool = False
    """Whether SIGTERM must not reach launchers and scripts."""
    software: Mapping[str, Software] = field(default_factory=dict)
    """Names of other hosts → what their ranks use."""

    def software_on(self, host: Host) -> Software:
        """What the ranks of a host use; if it was not asked, it is taken to be like this one."""
        if (known := self.software.get(host.name)) is not None:
            return known
        executable = self.python.executable if host.python is None or is_here(host) else host.python
        return Software(replace(self.python, executable=executable), self.op_cache)

    def own_environment(self, host: Host) -> dict[str, str]:
        """Variables of the ranks that differ on a host: its PATH, and its native ops."""
        software, own = self.software_on(host), self._own_path(host)
        chosen = self.environment.get(op_cache.VARIABLE)
        if self.op_cache is not None and chosen is not None and chosen.value == str(self.op_cache.folder):
            folder = (software.op_cache or self.op_cache).folder
            own |= {} if folder == self.op_cache.folder else {op_cache.VARIABLE: str(folder)}
        return own

    def _own_path(self, host: Host) -> dict[str, str]:
        """PATH of a host, with the programs of its Python in front; that of `--env` is for all hosts."""
        software, common = self.software_on(host), self.environment.get("PATH")
        if common is not None and common.prepended is None:
            return {}
        here = os.environ.get("PATH", os.defpath) if common is None else common.value
        path = here if software.path is None else software.path
        own = os.pathsep.join([*software.python.not_on_path({"PATH": path}), path])
        return {} if own == (path if common is None else here) else {"PATH": own}

    @property
    def script(self) -> tuple[str, ...]:
        """The script and all its arguments; of a module, its file."""
        return (str(self.program.path), *self.args.words)

    @property
    def on_each_host(self) -> bool:
        """Whether zlaunch itself starts a launcher on each of several hosts."""
        return self.launcher == "torchrun" and self.topology.spans_hosts

    @property
    def argv(self) -> tuple[str, ...]:
        """The launcher's command line, with the script in its place."""
        return self.node_argv(0, watched=False) if self.on_each_host else self._argv(self._target)

    @property
    def _target(self) -> Target:
        return Target(
            self.module or str(self.program.path),
            self.args.words,
            "script" if self.module is None else "module",
            self.passes_local_rank,
        )

    @property
    def watched_argv(self) -> tuple[str, ...]:
        """The same, with zlaunch's rank program around the script, in the Python of zlaunch."""
        if self.on_each_host:
            return tuple(ours("zlaunch.worker.coordinator", str(self.layout.root)))
        program, *args = ours(RANK_PROGRAM, as_safe_word(self.layout.root))
        return self._argv(Target(program, tuple(args), "program"))

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that start a rank on each host."""
        return (self.python.executable, *ours(RANK_PROGRAM)[:2])

    def node_argv(self, node: int, watched: bool = True) -> tuple[str, ...]:
        """The launcher's command line on one of several hosts."""
        host = self.topology.hosts[node]
        program, *args = own_program(host, RANK_PROGRAM, as_safe_word(self.layout.root))
        target = Target(program, tuple(args), "program") if watched else self._target
        module, *words = torchrun.node_argv(target, self.topology, node, self.address, self.port)
        return (*self.software_on(host).python.module(module), *words)

    @property
    def passes_local_rank(self) -> bool:
        """Whether the script gets `--local_rank=N`, as DeepSpeed's launcher passes it."""
        is_started = self.topology.reach in (Reach.JOINED, Reach.SRUN)
        return self.program.wants_local_rank and (self.launcher == "deepspeed" or is_started)

    def _argv(self, target: Target) -> tuple[str, ...]:
        target = replace(target, hostfile=str(self.layout.hostfile) if self.topology.spans_hosts else None)
        backend = BACKENDS[self.launcher]
        module, *words = backend.build_argv(target, self.topology, self.accelerator, self.port)
        return (*self.python.module(module), *words)

    @property
    def training(self) -> PlannedTraining:
        """What of it concerns checkpoints."""
        return PlannedTraining(
            self.program,
            self.args,
            self.values,
            self.precision,
            self.topology.world_size,
            self.resume,
            self.saves,
        )

    @property
    def swap_dirs(self) -> tuple[Path, ...]:
        """Directories on NVMe that belong to this run alone."""
        used = [name for name in OFFLOADS if self.values[(ZERO, name, "device")] == "nvme"]
        paths = {self.values[(ZERO, name, "nvme_path")] for name in used}
        return tuple(sorted(Path(path) for path in paths if isinstance(path, str)))


def make_plan(inputs: PlanInputs) -> LaunchPlan:
    """Plan a job; raise Refused with all findings if it cannot work."""
    job, script, topology = inputs.job, inputs.script, inputs.topology
    args, findings = inputs.read_args()
    fsdp = [*_fsdp(job, script)]
    refuse_fatal(fsdp)
    config = resolve_config(job, inputs.context(args), [*findings, *_absent(inputs), *_no_optimizer(inputs)])
    config = replace(config, values=config.values.placed(job.places))
    resolved = _leave_total(_in_own_swap_dirs(config.values, inputs.layout), config.left, inputs)
    words, handed = _handed_over(inputs, config)
    resumed = () if inputs.resume is None else inputs.resume.words(inputs.layout)
    told = {} if inputs.resume is None else inputs.resume.variables(inputs.layout)
    variables = {**_op_cache(inputs), **handed, **told}
    position = position_of(inputs, resolved.values)
    return LaunchPlan(
        layout=inputs.layout,
        python=inputs.python,
        topology=topology,
        accelerator=inputs.machine.accelerator,
        launcher=launcher_of(inputs.job, inputs.script, topology.reach),
        port=inputs.port,
        address=inputs.address,
        started_by=inputs.started_by,
        software=inputs.software,
        program=script,
        values=resolved.values,
        ds_config=_left_to_program(resolved.values, config)
        if script.reported is not None
        else resolved.values,
        left=resolved.left,
        args=job.args.followed_by((*resumed, *words)),
        environment={
            **inputs.given,
            **job_environment(inputs.machine, topology, inputs.environ, variables, inputs.python),
            **asked_variables(job.env, inputs.environ),
        },
        ops=_ops(inputs, config),
        precision=config.precision,
        warnings=(*fsdp, *_without_effect(job, script), *config.warnings),
        module=job.module,
        debug=None if job.debug is None else listener(job.debug, topology),
        op_cache=inputs.op_cache,
        resume=position,
        saves=plan_saves(script, job.args, position),
        limit=time_limit(job.wishes.preempt, inputs.environ, process_started()),
        shielded=shields_ranks(job.wishes.preempt, inputs.environ),
    )


def position_of(inputs: PlanInputs, values: Values) -> DataPosition | None:
    """Where a resumed training continues in its data; None if it starts at step 0."""
    if inputs.resume is None:
        return None
    micro, pieces = whole(values[MICRO]), whole(values[ACCUMULATION])
    batch = micro * pieces * inputs.topology.world_size if micro and pieces else None
    ignores = bool(inputs.trainer_flags.is_on("ignore_data_skip"))
    return data_position(inputs.resume, inputs.script.interface, batch, ignores)


def _ops(inputs: PlanInputs, config: ResolvedConfig) -> tuple[NativeOp, ...]:
    if inputs.script.interface is ConfigInterface.NONE:
        return ()
    optimizer = inputs.stack.optimizer_on_host(str(config.agreement.args["optim"].value))
    return needed_ops(config.config, inputs.machine.accelerator, optimizer)


def _op_cache(inputs: PlanInputs) -> dict[str, Variable]:
    if inputs.op_cache is None or inputs.script.interface is ConfigInterface.NONE:
        return {}
    why = "native ops of these packages; other environments have other directories"
    return {op_cache.VARIABLE: Variable(str(inputs.op_cache.folder), why)}


def _handed_over(inputs: PlanInputs, config: ResolvedConfig) -> tuple[tuple[str, ...], dict[str, Variable]]:
    """List the arguments and the variables by which the ds_config reaches the script."""
    script, file = inputs.script, inputs.layout.ds_config
    typed = _as_typed(inputs)
    variable = {"ZLAUNCH_DS_CONFIG": Variable(str(file), _IN_VARIABLE)}
    match script.handover:
        case Handover.ARGUMENTS:
            return script_arguments(config.agreement, file, script.config_flags), {}
        case Handover.ACCELERATE:
            variables = accelerate_variables(inputs.layout, inputs.job.precision)
            return typed, variables if script.is_sure else {**variables, **variable}
        case Handover.VARIABLE:
            return typed, variable
    return typed, {}


def _as_typed(inputs: PlanInputs) -> tuple[str, ...]:
    """Return the flags by which the user named the ds_config, if they may be the script's own."""
    flags = [flag for flag in inputs.job.config_flags if inputs.script.may_define(flag)]
    is_written = inputs.script.handover is not Handover.NOT
    return (*flags, str(inputs.layout.ds_config if is_written else inputs.job.ds_config)) if flags else ()


_IN_VARIABLE = "the script has no flag for it; use `deepspeed.initialize(config=os.environ[…])`"


def _left_to_program(values: Values, config: ResolvedConfig) -> Values:
    """Put back each "auto" that the Trainer fills in itself: the program may still change its arguments."""
    for path in config.written.autos():
        if values.has(path) and path in FILLED:
            values = values.put(path, AUTO, values.leaves[path].source)
    return values


def listener(debug: Debug, topology: Topology) -> Listener:
    """Where a rank listens; raise WrongUsage for a rank the job does not have."""
    if debug.rank >= topology.world_size:
        ranks = "rank 0" if topology.world_size == 1 else f"ranks 0 to {topology.world_size - 1}"
        raise WrongUsage(f"`--debug {debug.rank}`: there are {ranks}", "write `--debug 0`")
    (slot,) = (slot for slot in topology.slots() if slot.rank == debug.rank)
    return Listener(debug.rank, slot.host, debug.port)


def _in_own_swap_dirs(values: Values, layout: RunDir) -> Values:
    """Give each run its own directory on NVMe."""
    for path in [(ZERO, name, "nvme_path") for name in OFFLOADS]:
        if isinstance(directory := values[path], str) and directory != "auto":
            given = values.leaves[path].source
            source = replace(given, text=f"{given}, with a directory for this run")
            own = Path(directory) / swap_name(layout)
            values = values.put(path, str(own), source)
    return values


def _leave_total(values: Values, left: Mapping[str, str], inputs: PlanInputs) -> ResolvedAutos:
    """Drop the global batch if DeepSpeed would compare it with the batch of one rank."""
    if not _counts_one_rank(values, inputs):
        return ResolvedAutos(values, left)
    total = values[TOTAL]
    why = (
        f"DeepSpeed computes {total}; on a CPU, it would compare a written number with the batch of one rank"
    )
    return ResolvedAutos(values.without(TOTAL), {**left, dotted(TOTAL): why})


def swap_name(layout: RunDir) -> str:
    """Name a run's own directory on NVMe; it differs between runs of the same name in different places."""
    mark = hashlib.sha256(str(layout.root).encode()).hexdigest()[:8]
    return f"zlaunch-{layout.root.name}-{mark}"


def _counts_one_rank(values: Values, inputs: PlanInputs) -> bool:
    """On a CPU, TrainingArguments initialize only torch's communication, and `zero.Init` sees one rank."""
    return (
        inputs.machine.accelerator == "cpu"
        and inputs.script.takes_trainer_args
        and values[(ZERO, "stage")] == 3
        and inputs.topology.world_size > 1
        and not inputs.script.mentions("init_distributed")
    )


def _absent(inputs: PlanInputs) -> list[Finding]:
    """Find arguments that the installed Trainer does not have, unless the script defines them itself."""
    if not inputs.script.takes_trainer_args or inputs.script.reported is not None:
        return []
    found = absent_arguments(inputs.job.args, inputs.stack.trainer)
    return [finding for finding in found if not inputs.script.mentions(finding.where.removeprefix("--"))]


def _no_optimizer(inputs: PlanInputs) -> list[Finding]:
    """Find an engine without an optimizer: it fails when it is created, or in its first step."""
    place = inputs.script.wants_optimizer
    is_set = any(key.partition(".")[0] == "optimizer" for key, _ in inputs.job.overrides)
    is_written = inputs.base is not None and inputs.base.value.get("optimizer") is not None
    if place is None or is_set or is_written or inputs.script.interface is not ConfigInterface.DEEPSPEED:
        return []
    message = "neither this call nor the ds_config defines an optimizer, so the engine cannot train"
    hint = "add `--set optimizer.type=AdamW --set optimizer.params.lr=1e-4`, or pass `optimizer=`"
    return [Finding("no-optimizer", message, hint, severity=Severity.FAILS_LATER, place=place)]


def _fsdp(job: JobSpec, script: Script) -> Iterator[Finding]:
    """Find FSDP on the command line of a Trainer beside a ds_config."""
    if job.ds_config is not None and script.without_deepspeed == FSDP:
        yield from fsdp_conflict(job.args, Severity.FAILS_LATER if script.is_sure else Severity.IGNORED)


def _without_effect(job: JobSpec, script: Script) -> Iterator[Finding]:
    """Find options about a ds_config that the script will not read."""
    options = ", ".join(f"`{name}`" for name in job.config_options)
    if not options or script.handover is not Handover.NOT:
        return
    have = "has" if len(job.config_options) == 1 else "have"
    own, effect = script.own_config, f"{options} {have} no effect"
    if own is None:
        instead = (
            f"trains with {script.without_deepspeed}"
            if script.without_deepspeed
            else "does not use DeepSpeed"
        )
        message, hint = (
            f"{script.path.name} {instead}, so {effect}",
            "use the Trainer, Accelerator or `deepspeed.initialize`",
        )
        if script.without_deepspeed == FSDP:
            fsdp = job.args.fsdp
            hint = f"leave out `{fsdp}` to train with DeepSpeed" if fsdp else "remove FSDP from the script"
        yield Finding("no-deepspeed", message, hint, severity=Severity.IGNORED)
    else:
        message = f"the script passes its own ds_config to DeepSpeed ({own.where}), so {effect}"
        hint = "remove the ds_config there, or leave out these options"
        yield Finding("own-config", message, hint, severity=Severity.IGNORED, place=own.place)
