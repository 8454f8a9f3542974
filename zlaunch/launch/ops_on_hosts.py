"""Make native ops ready on every host of a job before its ranks start, and show it as for this machine.

Hosts may have caches of their own, for other CPUs or on other disks. Of those that share one, the first is
asked, if the survey has shown that they share it. If it has not, torch's locks let one build and others wait.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from zlaunch.console import StepReporter
from zlaunch.errors import Unavailable
from zlaunch.hosts.agent.channel import Channel, Message, wait_for_any
from zlaunch.hosts.agent.host_command import host_command
from zlaunch.hosts.agent.python_of_host import is_here, own_program
from zlaunch.hosts.cluster.started_by import without_cluster_variables
from zlaunch.hosts.cluster.topology import Host, Reach
from zlaunch.json_lines import plain
from zlaunch.launch.build_program import BuildOrder
from zlaunch.launch.op_build import NotBuilt, OpBuild, build_missing
from zlaunch.launch.plan import LaunchPlan
from zlaunch.process import PipedProgram, Stopped, heed_signals
from zlaunch.rundir.layout import RunDir

PROGRAM = "zlaunch.launch.build_program"

START_SECONDS = 120.0
"""How long a host may take to start Python, which it may have to read over a network first."""

SILENCE_SECONDS = 60.0
_END_SECONDS = 10.0


def build_everywhere(
    plan: LaunchPlan, environment: Mapping[str, str], reporter: StepReporter, if_killed: Sequence[str]
) -> signal.Signals | None:
    """Make the ops of a plan ready on this machine, if it has ranks, then on the others.

    Returns the signal that ended it, if one did. Raises NotBuilt with the host and the compiler's first
    error, Unavailable for a host that is lost meanwhile.
    """
    if plan.topology.reach not in (Reach.SSH, Reach.SRUN):
        return build_missing(plan, environment, reporter, if_killed)
    if any(map(is_here, plan.topology.hosts)):
        stopped_by = build_missing(plan, environment, reporter, if_killed)
        if stopped_by is not None:
            return stopped_by
    heed_signals()
    hosts = [*_to_ask(plan)] if plan.ops else []
    with plan.layout.launcher_log.open("ab") as errors, ExitStack() as ends:
        builds = []
        for host in hosts:
            builds.append(build := _HostBuild(plan, host, reporter, errors))
            ends.callback(build.end)
        _follow_builds(builds)
    return None


def _to_ask(plan: LaunchPlan) -> Iterator[Host]:
    """List the other hosts whose cache is not that of a host before them."""
    seen: set[object] = set()
    for host in sorted(plan.topology.hosts, key=lambda host: not is_here(host)):
        cache = _cache_of(plan, host)
        if cache is not None and cache not in seen and not is_here(host):
            yield host
        seen.add(cache)


def _cache_of(plan: LaunchPlan, host: Host) -> object | None:
    """Identify the cache of a host; hosts that are known to share one have the same."""
    cache = plan.facts.software_on(host).op_cache
    return None if cache is None else (cache.folder, cache.identity or host.name)


def build_as_member(plan: LaunchPlan, number: int, reporter: StepReporter) -> None:
    """Make the ops of a plan ready for a node that starts its own ranks, unless a node before it does.

    Raises NotBuilt with the compiler's first error, Stopped for a signal.
    """
    caches, cache = [_cache_of(plan, host) for host in plan.topology.hosts], plan.facts.here.op_cache
    if cache is None or caches.index(caches[number]) != number:
        return
    variables = {name: variable.value for name, variable in plan.environment.items()}
    environment = {**without_cluster_variables(os.environ), **variables}
    logs = RunDir(Path(tempfile.mkdtemp(prefix="zlaunch-build-")))  # the run directory is that of node 0
    logs.logs.mkdir()
    stopped_by = OpBuild(plan.ops, plan.python, cache, logs, environment, reporter).run()
    shutil.rmtree(logs.root)
    if stopped_by is not None:
        raise Stopped(stopped_by)


def _follow_builds(builds: Sequence["_HostBuild"]) -> None:
    while running := [build for build in builds if not build.is_over]:
        wait_for_any([build.channel for build in running], 0.2)
        for build in running:
            build.hear(shows_progress=build is running[0])  # there is one line for it


@dataclass
class _HostBuild:
    """The build program on another host."""

    plan: LaunchPlan
    host: Host
    reporter: StepReporter
    errors: IO[bytes]
    is_over: bool = False
    program: PipedProgram = field(init=False)
    channel: Channel = field(init=False)

    def __post_init__(self) -> None:
        argv = host_command(self.host, own_program(self.host, PROGRAM), self.plan.topology.reach)
        self.program = PipedProgram(argv, os.environ, self.errors)
        streams = self.program.take_streams()
        self.channel = Channel(*streams, first=START_SECONDS, silence=SILENCE_SECONDS)
        self.channel.send({"build": plain(_order(self.plan, self.host))})

    def hear(self, *, shows_progress: bool) -> None:
        """Show what it does; raise what it failed with."""
        for message in self.channel.receive():
            self._take(message, shows_progress)
        if self.channel.closed and not self.is_over:
            status = self.program.wait(1.0)
            how = "it did not answer" if status is None else f"the connection ended with status {status}"
            hint = f"start again; its messages are in {self.plan.layout.launcher_log}"
            raise Unavailable(f"lost {self.host.name} while it was building native ops: {how}", hint)

    def _take(self, message: Message, shows_progress: bool) -> None:
        if isinstance(note := message.get("note"), str):
            self.reporter.note(f"{self.host.name}: {note}")
        if shows_progress and isinstance(busy := message.get("busy"), str):
            self.reporter.busy(f"{self.host.name}: {busy}", str(message.get("elapsed", "")))
        if isinstance(ended := message.get("ended"), dict):
            self.is_over = True
            if ended:
                self._fail(ended)

    def _fail(self, ended: Message) -> None:
        said, hint = f"{self.host.name}: {ended.get('message')}", ended.get("hint")
        if not isinstance(log := ended.get("log"), str):
            raise Unavailable(said, None if hint is None else f"on {self.host.name}: {hint}")
        name = Path(str(ended.get("name"))).stem
        file = self.plan.layout.logs / f"{name}-on-{self.host.name.replace(os.sep, '-')}.log"
        file.write_text(log, "utf-8")
        raise NotBuilt(said, f"on {self.host.name}: {hint}", file)

    def end(self) -> None:
        """Close the connection, which ends what still runs there."""
        self.channel.close()
        if self.program.wait(0.0 if self.is_over else _END_SECONDS) is None:
            self.program.kill()


def _order(plan: LaunchPlan, host: Host) -> BuildOrder:
    software = plan.facts.software_on(host)
    assert software.op_cache is not None
    own = plan.own_environment(host) if plan.on_each_host else {}
    given = {name: variable.value for name, variable in plan.environment.items()}
    names = tuple(op.name for op in plan.ops)
    return BuildOrder(names, Path(software.python.executable), software.op_cache, {**given, **own})
