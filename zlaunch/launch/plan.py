"""The plan of a job: everything it will do, decided before anything starts."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zlaunch.config.resolve.compose import OFFLOADS
from zlaunch.config.resolve.values import Values
from zlaunch.dsconfig.native_ops import NativeOp
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.errors import Finding, WrongUsage
from zlaunch.files import as_safe_word
from zlaunch.frozen import dataclass
from zlaunch.hosts.agent.python_of_host import own_program
from zlaunch.hosts.cluster.topology import Host, Topology
from zlaunch.hosts.machine import op_cache
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.rank_environment import Variable
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import Script
from zlaunch.job.spec import Debug, Launcher, Profile
from zlaunch.job.stack import FORCED_LOAD
from zlaunch.launch.backends import backend_of
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.launcher import Backend, Target
from zlaunch.launch.time_limit import TimeLimit
from zlaunch.process import RANK_PROGRAM, ours
from zlaunch.resume.save_plan import SavePlan
from zlaunch.resume.training import PlannedTraining
from zlaunch.rundir.layout import RunDir

if TYPE_CHECKING:  # a job that resumes nothing needs none of it
    from zlaunch.resume.resumed_data import DataPosition


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a rank listens for a debugger: on the loopback interface of its host."""

    rank: int
    host: str
    port: int


def listener(debug: Debug, topology: Topology) -> Listener:
    """Where a rank listens; raise WrongUsage for a rank the job does not have."""
    if debug.rank >= topology.world_size:
        ranks = "rank 0" if topology.world_size == 1 else f"ranks 0 to {topology.world_size - 1}"
        raise WrongUsage(f"`--debug {debug.rank}`: there are {ranks}", "write `--debug 0`")
    (slot,) = (slot for slot in topology.slots() if slot.rank == debug.rank)
    return Listener(debug.rank, slot.host, debug.port)


def check_profile(profile: Profile, topology: Topology) -> None:
    """Raise WrongUsage for a rank the job does not have."""
    if max(profile.ranks or (0,)) >= topology.world_size:
        ranks = "only rank 0" if topology.world_size == 1 else f"ranks 0 to {topology.world_size - 1}"
        raise WrongUsage(f"`--profile` names rank {max(profile.ranks or ())}: this job has {ranks}")


@dataclass(frozen=True)
class LaunchPlan:
    """What will be started, where, with which ds_config, and why."""

    facts: JobFacts
    """What it was planned from."""
    topology: Topology
    accelerator: str
    launcher: Launcher
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
    warnings: tuple[Finding, ...] = ()
    """Parts of the user's ds_config that DeepSpeed silently ignores or changes."""
    data_position: "DataPosition | None" = None
    """The checkpoint that it resumes from, and where in its data."""
    saves: SavePlan | None = None
    """When its Trainer saves checkpoints; None if it saves none."""
    limit: TimeLimit | None = None
    """When it must have ended."""
    shielded: bool = False
    """Whether SIGTERM must not reach launchers and scripts."""

    @property
    def layout(self) -> RunDir:
        """The run directory."""
        return self.facts.layout

    @property
    def python(self) -> Interpreter:
        """The interpreter of the ranks."""
        return self.facts.python

    @property
    def script(self) -> Script:
        """The training script."""
        return self.facts.script

    @property
    def module(self) -> str | None:
        """What `python -m` runs instead of the script's file."""
        return self.facts.job.module

    @property
    def debug(self) -> Listener | None:
        """Where a rank waits for a debugger."""
        debug = self.facts.job.debug
        return None if debug is None else listener(debug, self.topology)

    def own_environment(self, host: Host) -> dict[str, str]:
        """Variables of the ranks that differ on a host: its PATH, and its native ops."""
        software, variables = self.facts.software_on(host), self._own_path(host)
        chosen = self.environment.get(op_cache.VARIABLE)
        here = self.facts.here.op_cache
        if here is not None and chosen is not None and chosen.value == str(here.folder):
            folder = (software.op_cache or here).folder
            if folder != here.folder:
                variables[op_cache.VARIABLE] = str(folder)
        return variables

    def _own_path(self, host: Host) -> dict[str, str]:
        """PATH of a host, with the programs of its Python in front; that of `--env` is for all hosts."""
        software, common = self.facts.software_on(host), self.environment.get("PATH")
        if common is not None and common.prepended is None:
            return {}
        here = os.environ.get("PATH", os.defpath)
        if common is not None:
            here = common.value
        path = here
        if software.path is not None:
            path = software.path
        inherited = path
        if common is not None:
            inherited = here
        path = os.pathsep.join([*software.python.not_on_path({"PATH": path}), path])
        if path == inherited:
            return {}
        return {"PATH": path}

    @property
    def script_words(self) -> tuple[str, ...]:
        """The script and all its arguments; of a module, its file."""
        return (str(self.script.path), *self.args.words)

    @property
    def backend(self) -> Backend:
        """Its launcher."""
        return backend_of(self.launcher)

    @property
    def on_each_host(self) -> bool:
        """Whether zlaunch itself starts a launcher on each of several hosts."""
        return self.backend.starter is None and self.topology.spans_hosts

    @property
    def argv(self) -> tuple[str, ...]:
        """The launcher's command line, with the script in its place."""
        if self.on_each_host:
            return self.node_argv(0, watched=False)
        return self._argv(self._target)

    @property
    def _target(self) -> Target:
        return Target(
            self.module or str(self.script.path),
            self.args.words,
            "script" if self.module is None else "module",
            self.passes_local_rank and self.script.wants_local_rank,
        )

    @property
    def watched_argv(self) -> tuple[str, ...]:
        """The same, with zlaunch's rank program around the script, in the Python of zlaunch."""
        if self.on_each_host:
            return tuple(ours("zlaunch.worker.coordinator", str(self.layout.root)))
        program, *args = ours(RANK_PROGRAM, as_safe_word(self.layout.root))
        return self._argv(Target(program, tuple(args), "program"))

    @property
    def start_words(self) -> tuple[str, ...]:
        """The words that start a rank on each host."""
        return (self.python.executable, *ours(RANK_PROGRAM)[:2])

    def node_argv(self, node: int, watched: bool = True) -> tuple[str, ...]:
        """The launcher's command line on one of several hosts."""
        host = self.topology.hosts[node]
        program, *args = own_program(host, RANK_PROGRAM, as_safe_word(self.layout.root))
        target = self._target
        if watched:
            target = Target(program, tuple(args), "program")
        assert self.backend.node_argv is not None
        module, *words = self.backend.node_argv(
            target, self.topology, node, self.facts.address, self.facts.port
        )
        return (*self.facts.software_on(host).python.module(module), *words)

    @property
    def passes_local_rank(self) -> bool:
        """Whether the script gets its local rank as an argument.

        DeepSpeed's launcher shows `--local_rank=N`; no launcher passes another spelling, so zlaunch does.
        """
        is_passed = self.backend.is_of_deepspeed or self.topology.reach.is_inside_job
        return bool(self.script.local_rank_flag) and (is_passed or not self.script.wants_local_rank)

    def _argv(self, target: Target) -> tuple[str, ...]:
        if self.topology.spans_hosts:
            target = replace(target, hostfile=str(self.layout.hostfile))
        module, *words = self.backend.build_argv(target, self.topology, self.accelerator, self.facts.port)
        return (*self.python.module(module), *words)

    @property
    def training(self) -> PlannedTraining:
        """What of it concerns checkpoints."""
        return PlannedTraining(
            self.script,
            self.args,
            self.values,
            self.precision,
            self.topology.world_size,
            self.data_position,
            self.saves,
            self._refuses_classes,
        )

    @property
    def _refuses_classes(self) -> bool:
        forced = self.environment.get(FORCED_LOAD)
        given = self.facts.environ.get(FORCED_LOAD, "") if forced is None else forced.value
        return self.facts.stack.refuses_classes and given.lower() not in ("1", "y", "yes", "true")

    @property
    def swap_dirs(self) -> tuple[Path, ...]:
        """Directories on NVMe that belong to this run alone."""
        used = [name for name in OFFLOADS if self.values[(ZERO, name, "device")] == "nvme"]
        paths = {self.values[(ZERO, name, "nvme_path")] for name in used}
        return tuple(sorted(Path(path) for path in paths if isinstance(path, str)))


def swap_name(layout: RunDir) -> str:
    """Name a run's own directory on NVMe; it differs between runs of the same name in different places."""
    mark = hashlib.sha256(str(layout.root).encode()).hexdigest()[:8]
    return f"zlaunch-{layout.root.name}-{mark}"
