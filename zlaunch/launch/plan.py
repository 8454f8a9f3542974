"""The plan of a job: everything it will do, decided before anything starts."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zlaunch.config.native_ops import NativeOp, needed_ops
from zlaunch.config.resolve.autos import TOTAL, ResolvedAutos
from zlaunch.config.resolve.compose import OFFLOADS
from zlaunch.config.resolve.job import ResolveContext, resolve_config
from zlaunch.config.resolve.trainer_agreement import script_arguments
from zlaunch.config.resolve.values import Values
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import Document, dotted
from zlaunch.errors import Finding, Severity, WrongUsage
from zlaunch.hosts.environment import Variable, accelerate_variables, job_environment
from zlaunch.hosts.machine import Machine
from zlaunch.hosts.topology import Topology
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.spec import Debug, JobSpec, Launcher
from zlaunch.job.stack import SoftwareStack
from zlaunch.job.trainer_args import TrainerArgs, absent_arguments, read_arguments
from zlaunch.launch.backends import BACKENDS
from zlaunch.launch.backends.target import Target
from zlaunch.process import RANK_PROGRAM
from zlaunch.rundir.layout import RunDir


@dataclass(frozen=True)
class PlanInputs:
    """The inputs of a plan."""

    job: JobSpec
    script: Script
    base: Document | None
    """The user's own ds_config."""
    model: ModelConfig | None
    machine: Machine
    topology: Topology
    port: int
    """A free port, for launchers that do not pick one."""
    layout: RunDir
    environ: Mapping[str, str]
    """The environment zlaunch was started in."""
    stack: SoftwareStack = field(default_factory=SoftwareStack)

    def read_args(self) -> tuple[TrainerArgs, list[Finding]]:
        """Read the arguments of the Trainer; return them with findings."""
        return read_arguments(self.job.script_args, self.script.defaults, self.stack.trainer)

    def context(self, args: TrainerArgs) -> ResolveContext:
        """What the ds_config is resolved for; `args` are those of the Trainer."""
        world_size, interface = self.topology.world_size, self.script.interface
        return ResolveContext(self.base, args, self.model, self.machine, world_size, interface, self.stack)


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
    topology: Topology
    accelerator: str
    launcher: Launcher
    port: int
    """A free port, for launchers that do not pick one."""
    values: Values
    left: Mapping[str, str]
    """ds_config keys that stay "auto" → what fills them in."""
    script: tuple[str, ...]
    """The script and all its arguments; of a module, its file."""
    environment: Mapping[str, Variable]
    ops: tuple[NativeOp, ...]
    precision: str
    warnings: tuple[Finding, ...]
    """Parts of the user's ds_config that DeepSpeed silently ignores or changes."""
    module: str | None = None
    """What `python -m` runs instead of the script's file."""
    debug: Listener | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        """The launcher's command line, with the script in its place."""
        file, *args = self.script
        return self._argv(self.module or file, args, is_module=self.module is not None)

    @property
    def watched_argv(self) -> tuple[str, ...]:
        """The same, with zlaunch's rank program around the script."""
        return self._argv(RANK_PROGRAM, [str(self.layout.root)], is_module=True)

    def _argv(self, name: str, args: Sequence[str], *, is_module: bool) -> tuple[str, ...]:
        hostfile = str(self.layout.hostfile) if self.topology.over_ssh else None
        target = Target(name, tuple(args), is_module, hostfile)
        return BACKENDS[self.launcher].build_argv(target, self.topology, self.accelerator, self.port)

    @property
    def swap_dirs(self) -> tuple[Path, ...]:
        """Directories on NVMe that belong to this run alone."""
        used = [name for name in OFFLOADS if self.values[(ZERO, name, "device")] == "nvme"]
        paths = {self.values[(ZERO, name, "nvme_path")] for name in used}
        return tuple(sorted(Path(path) for path in paths if isinstance(path, str)))


def make_plan(inputs: PlanInputs) -> LaunchPlan:
    """Plan a job; raise Refused with all findings if it cannot work."""
    job, script, topology = inputs.job, inputs.script, inputs.topology
    launcher: Launcher = "deepspeed" if topology.over_ssh else job.launcher or "torchrun"
    args, findings = inputs.read_args()
    config = resolve_config(job, inputs.context(args), [*findings, *_absent(inputs), *_no_optimizer(inputs)])
    resolved = _leave_total(_in_own_swap_dirs(config.values, inputs.layout), config.left, inputs)

    words = script_arguments(config.agreement, script.interface, inputs.layout.ds_config, script.config_flags)
    variables = _variables(script, inputs.layout, config.precision)
    return LaunchPlan(
        layout=inputs.layout,
        topology=topology,
        accelerator=inputs.machine.accelerator,
        launcher=launcher,
        port=inputs.port,
        values=resolved.values,
        left=resolved.left,
        script=(str(script.path), *job.script_args, *words),
        environment=job_environment(inputs.machine, topology, inputs.environ, variables),
        ops=needed_ops(config.config, inputs.machine.accelerator, str(config.agreement.args["optim"].value)),
        precision=config.precision,
        warnings=(*_own_engine_config(script), *config.warnings),
        module=job.module,
        debug=None if job.debug is None else listener(job.debug, topology),
    )


def _variables(script: Script, layout: RunDir, precision: str) -> dict[str, Variable]:
    """Variables that name the ds_config, for scripts that take no flag for it."""
    if script.interface is ConfigInterface.ACCELERATE:
        return accelerate_variables(layout, precision)
    if script.interface is ConfigInterface.DEEPSPEED and not script.config_flags:
        why = "the script has no flag for it; use `deepspeed.initialize(config=os.environ[…])`"
        return {"ZLAUNCH_DS_CONFIG": Variable(str(layout.ds_config), why)}
    return {}


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
        f"{total}, computed by DeepSpeed; on a CPU, DeepSpeed counts one rank while transformers "
        "creates the model"
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
        and inputs.script.interface is ConfigInterface.TRAINER
        and values[(ZERO, "stage")] == 3
        and inputs.topology.world_size > 1
        and not inputs.script.mentions("init_distributed")
    )


def _absent(inputs: PlanInputs) -> list[Finding]:
    """Find arguments that the installed Trainer does not have, unless the script defines them itself."""
    if inputs.script.interface is not ConfigInterface.TRAINER:
        return []
    found = absent_arguments(inputs.job.script_args, inputs.stack.trainer)
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
    return [Finding("no-optimizer", message, hint, severity=Severity.LATE, place=place)]


def _own_engine_config(script: Script) -> Iterator[Finding]:
    """Find an engine that does not use the ds_config of this plan."""
    if script.own_engine_config is None:
        return
    hint = 'pass `config=os.environ["ZLAUNCH_DS_CONFIG"]`'
    if script.config_flags:
        hint = f"read it from `{script.config_flags[-1]}` instead"
    message = "the script passes its own config to DeepSpeed, so zlaunch's is not used"
    yield Finding("own-config", message, hint, severity=Severity.SILENT, place=script.own_engine_config)
