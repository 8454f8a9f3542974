"""Inspect a job, and check whether it can run on its hosts. Nothing is written or started here."""

from zlaunch.checks.across_hosts import gpus_used_twice
from zlaunch.errors import Finding, Refused, Unavailable
from zlaunch.files import check_writable
from zlaunch.hosts.cluster.placement import (
    most_slots,
    refuse_contradictions,
)
from zlaunch.hosts.cluster.topology import beyond_deepspeed, too_many_slots
from zlaunch.job.model_checks import wrong_sizes
from zlaunch.job.spec import JobSpec, ranks_to_show
from zlaunch.launch.backends import backend_of, launcher_of
from zlaunch.launch.facts import DEBUGGER, JobFacts, inspect, read_sources
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.plan import Listener, listener
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.surroundings import NOWHERE, Surroundings
from zlaunch.rundir.choose import candidates, check_unused
from zlaunch.rundir.layout import RunDir


def prepare(
    job: JobSpec, options: LaunchOptions, reporter: PlanReporter, surroundings: Surroundings = NOWHERE
) -> JobFacts:
    """Inspect and check a job; the command line is checked before anything slow is inspected."""
    with surroundings.reporting_failures():
        refuse_contradictions(job)
        surroundings.refuse_contradictions(job)
        if surroundings.unheeded is not None and not job.names_hosts:
            reporter.note(
                f"{surroundings.unheeded}, but this job runs on one of them: name them with `--hosts`, or "
                "start zlaunch on each with NNODES, NODE_RANK and MASTER_ADDR"
            )
        sources = read_sources(job)
        layout = next(candidates(options.run_dir, job.name, options.beside))
        _check_directories(job, options, layout, surroundings)
        facts = inspect(sources, layout, reporter, surroundings)
        check_facts(facts)
        if untested := list(facts.stack.untested()):
            reporter.note(f"zlaunch was not tested with {', '.join(untested)}")
        return facts


def _check_directories(
    job: JobSpec, options: LaunchOptions, layout: RunDir, surroundings: Surroundings
) -> None:
    if job.nvme_dir is not None and surroundings.imagined is None:  # whose drives cannot be checked
        if not job.nvme_dir.is_dir():
            raise Unavailable(
                f"`--nvme {job.nvme_dir}`: there is no such directory", "create it on the drive first"
            )
        check_writable(job.nvme_dir, "--nvme")
    check_writable(options.run_dir or layout.root, "--run-dir")
    if options.run_dir is not None:
        check_unused(options.run_dir)


def check_facts(facts: JobFacts) -> None:
    """Raise what makes a job impossible on its hosts."""
    job, topology, machines = facts.job, facts.topology, facts.machines
    wrong: list[Finding] = []
    if not facts.surroundings.is_offline:  # which takes this machine for all of them
        most = {name: most_slots(len(one.gpus), one.num_cores) for name, one in machines.items()}
        wrong += too_many_slots(facts.hostfile, most)
        known = {name: host.machine for name, host in facts.known_hosts.items()}
        wrong += gpus_used_twice({host.name: host.devices for host in topology.hosts}, known)
    backend = backend_of(launcher_of(job, facts.script))
    if backend.starter is not None:
        wrong += beyond_deepspeed(facts.hostfile)
    if facts.model is not None:
        wrong += wrong_sizes(facts.model)
    if wrong:
        raise Refused(wrong)
    _ = facts.machine  # raises if only some hosts have GPUs
    backend.check(topology)
    ranks_to_show(job.wishes.show_ranks, topology.world_size, interactive=False)  # raises for a wrong rank
    if job.debug is not None:
        _check_debugger(listener(job.debug, topology), facts)


def _check_debugger(listener: Listener, facts: JobFacts) -> None:
    is_remote = listener.host in facts.others
    there = facts.others.get(listener.host, facts.here)
    if DEBUGGER in there.python.missing:
        where = f"on {listener.host}" if is_remote else "here"
        raise Unavailable(
            f"`--debug` needs {DEBUGGER}, which is not installed {where}",
            f"`{there.python.executable} -m pip install {DEBUGGER}`",
        )
    ports = there.ports
    if ports is not None and ports.debug_error is not None:
        where = f"on {listener.host}" if is_remote else "on this port"
        hint = f"write `--debug {listener.rank}:{ports.other_debug}`" if ports.other_debug else None
        typed = f"`--debug {listener.rank}:{listener.port}`"
        raise Unavailable(f"{typed}: cannot listen {where}: {ports.debug_error}", hint)
