"""Give a job to a scheduler, and follow it to its end.

The machine that submits is not one that trains: it may have no GPU, and other memory and disks. So only the
files, the options and the ds_config are checked here; each start checks its nodes itself.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.frozen import dataclass
from zlaunch.hosts.cluster.placement import refuse_contradictions
from zlaunch.hosts.cluster.topology import Host, Topology
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.interpreter import Interpreter, inspect_python
from zlaunch.hosts.machine.resources import Gpu, Machine
from zlaunch.hosts.rank_environment import is_name
from zlaunch.job.spec import JobSpec
from zlaunch.launch.ask import ask
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.monitoring.log_tail import LogTail
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.preflight import Preflight
from zlaunch.launch.prepare import check_facts, prepare
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.scheduler import JobStatus, Scheduler, SubmitRequest
from zlaunch.launch.sources import Sources, planned_config, read_sources
from zlaunch.launch.surroundings import UNKNOWN_MEMORY_BYTES, Imagined, Surroundings
from zlaunch.process import Printing
from zlaunch.resume.choose import find_resumption
from zlaunch.resume.save_plan import plan_saves
from zlaunch.rundir.choose import candidates

FIRST_SECONDS, MOST_SECONDS, GROWTH = 0.5, 15.0, 1.3
"""Time between two questions to a controller, which serves a whole cluster: growing in between."""

PATIENCE_SECONDS = 600.0
"""How long a controller may not answer while a job is followed."""

PRINTING_SECONDS = 5.0
"""How long a program may print the rest of the output of a job that has ended."""

TICK_SECONDS = 0.2

_A_GPU = Gpu(0, "GPU of the cluster", "", 80 << 30, (8, 0))
"""An unknown GPU: it has bf16, as all GPUs since Ampere; its memory is not checked."""


class SubmitReporter(Protocol):
    """Shows the progress of a submitted job."""

    def submitted(self, job: str, cancel: str) -> None:
        """The job has an identifier, and a command would end it."""

    def changed(self, before: JobStatus | None, state: JobStatus) -> None:
        """The state of the job has changed."""

    def output(self, chunk: bytes) -> None:
        """New output of the job."""

    def unanswered(self, error: Unavailable) -> None:
        """The scheduler does not answer; it is asked again."""

    def ended(self, job: str, state: JobStatus) -> None:
        """The job has ended."""

    def left(self, job: str, cancel: str) -> None:
        """The job keeps running and is no longer watched."""


@dataclass(frozen=True, slots=True)
class NodesAsked:
    """The nodes that a scheduler is asked for, as far as they are known."""

    count: int
    gpus: int | None
    """GPUs of each node."""
    imagined: Imagined | None = None
    """The hardware that `--on` names."""


def check_elsewhere(
    job: JobSpec, nodes: NodesAsked, options: LaunchOptions, reporter: PlanReporter, *, must_exist: bool
) -> bool:
    """Check a job as far as that does not depend on its nodes; return whether it may be resumed.

    Without a number of GPUs, nothing that depends on the number of ranks is checked; with known hardware, its
    memory is, too. Unless it `must_exist` here, the script may be elsewhere, and is not checked then.
    """
    refuse_contradictions(job)
    if job.hostfile is not None:
        raise WrongUsage(
            "`--submit` and `--hostfile` contradict each other: a scheduler chooses the hosts", "keep one"
        )
    if not must_exist and not job.script.exists():
        reporter.note(f"`{job.script}` is not on this machine, so the job is not checked before it starts")
        return True
    sources = read_sources(replace(job, env=tuple(_env_here(job, reporter, must_exist=must_exist))))
    job = sources.job
    devices = tuple(range(nodes.gpus or 1))
    topology = Topology(tuple(Host(f"node-{number}", devices) for number in range(nodes.count)))
    python = inspect_python(job.python)
    script = ask(job, sources.script, python, reporter, topology)
    if job.resume is not None:
        find_resumption(job, script)
    if nodes.imagined is not None:
        _check_there(job, nodes.imagined, options, reporter)
    elif nodes.gpus is not None:
        known = replace(sources, script=script, hosts=topology)
        facts = _facts_of_nodes(known, python)
        check_facts(facts)
        reporter.warn(make_plan(facts).warnings)
    saves = plan_saves(script, job.args, None) is not None
    return saves or script.mentions("save_checkpoint")


def _env_here(job: JobSpec, reporter: PlanReporter, *, must_exist: bool) -> Iterator[str]:
    """Leave out the variables that only the nodes have."""
    for word in job.env:
        if not is_name(word) or word in os.environ:
            yield word
        elif must_exist:  # of the others, the scheduler says what they need
            reporter.note(f"`--env {word}`: {word} is not set here, so the nodes must have it of their own")


def _check_there(job: JobSpec, nodes: Imagined, options: LaunchOptions, reporter: PlanReporter) -> None:
    """Plan a job for known hardware; raise Refused if it cannot work there or does not fit its memory."""
    surroundings = Surroundings(imagined=nodes, is_offline=True)
    options = replace(options, dry_run=True, run_dir=None)
    preflight = Preflight(options, reporter)
    facts = prepare(replace(job, gpus=None), options, reporter, surroundings)
    reporter.warn(preflight.plan(preflight.complete(facts)).warnings)


def _facts_of_nodes(sources: Sources, python: Interpreter) -> JobFacts:
    """Make the facts about unknown nodes."""
    machine = Machine("", os.cpu_count() or 1, UNKNOWN_MEMORY_BYTES, (_A_GPU,))
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        machine = replace(machine, gpus=(), is_cpu_asked=True)
    assert sources.hosts is not None
    return JobFacts(
        job=sources.job,
        script=sources.script,
        ds_config=planned_config(sources.script, sources.ds_config),
        model=None,
        topology=sources.hosts,
        here=MachineFacts(python, machine),
        layout=next(candidates(None, sources.job.name)),
        environ=os.environ,
    )


@dataclass
class Follower:
    """Follows one job: asks for its state, passes its output on."""

    scheduler: Scheduler[Any]
    request: SubmitRequest
    job: str
    reporter: SubmitReporter

    def follow(self) -> JobStatus:
        """Report what changes until the job has ended; raise Unavailable if the scheduler is gone."""
        before: JobStatus | None = None
        with ExitStack() as stack:
            output = _Output(self.reporter.output, stack)
            pause, answered = FIRST_SECONDS, time.monotonic()
            while True:
                try:
                    state = self.scheduler.look(self.job, self.request)
                    answered = time.monotonic()
                except Unavailable as error:
                    if time.monotonic() - answered > PATIENCE_SECONDS:
                        raise
                    self.reporter.unanswered(error)
                    state = before or JobStatus("unknown")
                if _shown_part(state) != _shown_part(before):
                    output.pump()
                    self.reporter.changed(before, state)
                    before, pause = state, FIRST_SECONDS
                output.follow(state.output)
                if state.is_over:
                    output.finish()
                    return state
                output.pump_for(pause)
                pause = min(MOST_SECONDS, pause * GROWTH)


def _shown_part(state: JobStatus | None) -> JobStatus | None:
    if state is None:
        return None
    return replace(state, output=None, runs=())


class _Output:
    """The output of a job: of a file, or of a program that prints it."""

    def __init__(self, show: Callable[[bytes], None], stack: ExitStack) -> None:
        self._show = show
        self._stack = stack
        self._source: Path | tuple[str, ...] | None = None
        self._tail: LogTail | None = None
        self._program: Printing | None = None

    def follow(self, source: Path | tuple[str, ...] | None) -> None:
        """Begin with another source, unless it is the same."""
        if source is None or source == self._source:
            return
        self.finish()
        self._source = source
        if not isinstance(source, Path):
            source = self._printed(source)
        self._tail = LogTail(source, self._show)

    def _printed(self, argv: tuple[str, ...]) -> Path:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="zlaunch-log-"))
        self._program = Printing(argv, Path(folder, "log"))
        self._stack.callback(self._program.end)
        return Path(folder, "log")

    def pump(self) -> None:
        if self._tail is not None:
            self._tail.pump()

    def pump_for(self, seconds: float) -> None:
        """Pass output on for some time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.pump()
            time.sleep(TICK_SECONDS)

    def finish(self) -> None:
        """Pass on the remaining output; a program prints all of it before it ends."""
        if self._program is not None:
            self._program.end(PRINTING_SECONDS)
            self._program = None
        if self._tail is not None:
            self._tail.finish()


def submit(
    scheduler: Scheduler[Any], request: SubmitRequest, reporter: SubmitReporter, *, detach: bool
) -> int:
    """Submit a job, follow it unless it is to be left alone, and return its exit status."""
    job = scheduler.submit(scheduler.render(request), request)
    cancel = scheduler.cancel_command(job, request)
    reporter.submitted(job, cancel)
    if detach:
        return 0
    try:
        state = Follower(scheduler, request, job, reporter).follow()
    except KeyboardInterrupt:
        reporter.left(job, cancel)
        raise
    reporter.ended(job, state)
    if state.exit_status is None:
        return 1
    return state.exit_status
