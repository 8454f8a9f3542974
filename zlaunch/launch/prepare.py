"""Inspect a job, and check whether it can run on its hosts. Nothing is written or started here."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import which

from zlaunch.checks.across_hosts import gpus_used_twice
from zlaunch.checks.tracking import PACKAGES
from zlaunch.config.resolve.compose import OFFLOADS
from zlaunch.config.resolve.trainer_optimizer import OPTIMIZER_PACKAGES
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.errors import Finding, Refused, Unavailable
from zlaunch.files import check_writable, is_safe_word, nearest
from zlaunch.hosts.agent.python_of_host import python_here
from zlaunch.hosts.cluster.deepspeed_env import read_deepspeed_env
from zlaunch.hosts.cluster.placement import (
    choose_slots,
    count_slots,
    most_slots,
    refuse_contradictions,
    uncounted_hosts,
)
from zlaunch.hosts.cluster.topology import HostLine, beyond_deepspeed, too_many_slots
from zlaunch.hosts.machine.interpreter import TRAINING, check_packages, inspect_python
from zlaunch.hosts.machine.probe import probe_machine
from zlaunch.hosts.machine.question import Question
from zlaunch.hosts.machine.resources import Machine
from zlaunch.hosts.machine.survey import survey
from zlaunch.hosts.rank_environment import Variable
from zlaunch.job.model_checks import wrong_sizes
from zlaunch.job.model_of_script import find_model
from zlaunch.job.recipes import recipe_of
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.spec import JobSpec, ranks_to_show
from zlaunch.launch.ask import ask
from zlaunch.launch.backends import backend_of, launcher_of
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.launcher import Backend
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.plan import Listener, check_profile, listener
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.sources import Sources, planned_config, read_sources
from zlaunch.launch.surroundings import NOWHERE, Surroundings
from zlaunch.rundir.choose import candidates, check_unused
from zlaunch.rundir.layout import RunDir
from zlaunch.worker.nsys import PROGRAM as NSYS

DEBUGGER = "debugpy"
"""The package that `--debug` needs on the machine of the rank."""


def prepare(
    job: JobSpec, options: LaunchOptions, reporter: PlanReporter, surroundings: Surroundings = NOWHERE
) -> JobFacts:
    """Inspect and check a job; the command line is checked before anything slow is inspected.

    Raises InputMissing or Refused for a file that cannot be read, WrongUsage for options or arguments that
    cannot be right, Unavailable for a Python that lacks packages, devices that do not exist, a host that
    gives no answer, or a directory that cannot be written.
    """
    with surroundings.reporting_failures():
        refuse_contradictions(job)
        surroundings.refuse_contradictions(job)
        if surroundings.ignored_cluster is not None and not job.names_hosts:
            reporter.note(
                f"{surroundings.ignored_cluster}, but this job runs on one of them: name them with "
                "`--hosts`, or start zlaunch on each with NNODES, NODE_RANK and MASTER_ADDR"
            )
        sources = read_sources(job)
        layout = next(candidates(options.run_dir, job.name, options.beside))
        _check_directories(job.nvme_dir, options.run_dir, layout, surroundings)
        facts = _inspect(sources, layout, reporter, surroundings)
        check_facts(facts)
        if job.profile is not None and job.profile.with_nsys:
            _check_nsys(facts)
        for sentence in facts.stack.untested():
            reporter.note(sentence)
        return facts


def _check_directories(
    nvme: Path | None, run_dir: Path | None, layout: RunDir, surroundings: Surroundings
) -> None:
    if nvme is not None and surroundings.imagined is None:  # whose drives cannot be checked
        if not nvme.is_dir():
            raise Unavailable(f"`--nvme {nvme}`: there is no such directory", "create it on the drive first")
        check_writable(nvme, "--nvme")
    check_writable(run_dir or layout.root, "--run-dir")
    if run_dir is not None:
        check_unused(run_dir)


def _inspect(
    sources: Sources, layout: RunDir, reporter: PlanReporter, surroundings: Surroundings
) -> JobFacts:
    """Survey this machine, ask the script, find its model, and survey the other hosts."""
    job, lines = sources.job, sources.hostfile
    python = inspect_python(python_here(lines, job.python), (DEBUGGER, *PACKAGES, *OPTIMIZER_PACKAGES))
    check_packages(python, _needed_packages(sources.script, _backend(job, sources.script)))
    if surroundings.imagined is None:
        machine = probe_machine(os.environ, python)
    else:
        machine = surroundings.imagined.machine
    topology = sources.hosts
    if topology is None and lines:
        lines = _counted(lines, job, machine, is_offline=surroundings.is_offline)
        topology = choose_slots(lines, job.devices)
    likely = topology or surroundings.likely_topology(job.devices, machine)
    script = ask(job, sources.script, python, reporter, likely, ds_config=sources.ds_config)
    backend = _backend(job, script)
    sources = replace(sources, script=script)
    model, model_error = find_model(script, job.args)
    question = _question(sources, layout, _needed_packages(script, backend))
    here = survey(question, python, machine)
    if topology is None:
        topology, others = surroundings.find_hosts(job.devices, here, question, str(layout.root))
    else:
        others = surroundings.ask(topology.hosts, question)
    if surroundings.rendezvous is not None and not surroundings.rendezvous.leads:
        layout = RunDir(Path(surroundings.rendezvous.run_directory))
    deepspeed_env: Mapping[str, Variable] = {}
    if topology.spans_hosts and backend.starter is not None and not is_safe_word(str(Path.cwd())):
        deepspeed_env = read_deepspeed_env(
            Path.cwd(), os.environ
        )  # the runner would not quote this directory
    return JobFacts(
        job=job,
        script=script,
        ds_config=planned_config(script, sources.ds_config),
        model=model,
        model_error=model_error,
        topology=topology,
        here=here,
        others=others,
        question=question,
        hostfile=lines,
        layout=layout,
        environ=dict(os.environ),
        deepspeed_env=deepspeed_env,
        surroundings=surroundings,
    )


def _backend(job: JobSpec, script: Script) -> Backend:
    return backend_of(launcher_of(job.launcher, script))


def _needed_packages(script: Script, backend: Backend) -> tuple[str, ...]:
    """List the packages without which a job certainly cannot start."""
    if (recipe := recipe_of(script.path)) is not None:
        return tuple(dict.fromkeys((*TRAINING, *recipe.packages)))
    uses_deepspeed = script.is_sure and script.interface is not ConfigInterface.NONE
    if backend.is_of_deepspeed or uses_deepspeed:
        return TRAINING
    return TRAINING[:1]


def _counted(
    lines: tuple[HostLine, ...], job: JobSpec, machine: Machine, *, is_offline: bool
) -> tuple[HostLine, ...]:
    """Ask hosts for their devices if the hostfile does not say how many to use."""
    uncounted = uncounted_hosts(lines)
    if is_offline:
        return count_slots(lines, {host.name: machine for host in uncounted})
    from zlaunch.hosts.agent.answers import ask_machines  # a job on one machine asks no other

    return count_slots(lines, ask_machines(uncounted, machine, job.python))


def _question(sources: Sources, layout: RunDir, needed: tuple[str, ...]) -> Question:
    """Ask about everything that ranks read, write and listen on."""
    job, script = sources.job, sources.script
    zero: object = None
    if sources.ds_config is not None:
        zero = sources.ds_config.value.get(ZERO)
    sections: list[object] = []
    if isinstance(zero, Mapping):
        sections = [zero.get(name) for name in OFFLOADS]
    swaps = [section.get("nvme_path") for section in sections if isinstance(section, Mapping)]
    swaps += [job.nvme_dir, *(value for key, value in job.overrides if key.endswith(".nvme_path"))]
    named = [script.path, script.output_dir(job.args), *swaps]
    return Question(
        identified=(nearest(layout.root),),
        paths=tuple(Path(path).absolute() for path in named if isinstance(path, str | Path)),
        python=job.python,
        needed=needed,
        packages=(DEBUGGER, *PACKAGES),
        debug_port=None if job.debug is None else job.debug.port,
        compared=(script.path.absolute(),),
    )


def check_facts(facts: JobFacts) -> None:
    """Raise what makes a job impossible on its hosts."""
    job, topology, machines = facts.job, facts.topology, facts.machines
    wrong: list[Finding] = []
    if not facts.surroundings.is_offline:  # which takes this machine for all of them
        most = {name: most_slots(len(machine.gpus), machine.num_cores) for name, machine in machines.items()}
        wrong += too_many_slots(facts.hostfile, most)
        known = {name: host.machine for name, host in facts.known_hosts.items()}
        wrong += gpus_used_twice({host.name: host.devices for host in topology.hosts}, known)
    backend = _backend(job, facts.script)
    if backend.starter is not None:
        wrong += beyond_deepspeed(facts.hostfile)
    if facts.model is not None:
        wrong += wrong_sizes(facts.model)
    if wrong:
        raise Refused(wrong)
    _ = facts.machine  # raises if only some hosts have GPUs
    backend.check(topology)
    ranks_to_show(
        job.run_options.show_ranks, topology.world_size, interactive=False
    )  # raises for a wrong rank
    if job.profile is not None:
        check_profile(job.profile, topology)
        if job.profile.with_nsys and job.profile.first is not None and not facts.machine.gpus:
            message = "`--profile`: nsys is told the steps through CUDA, and this job has no GPU"
            raise Unavailable(message, "`--profile nsys` records the whole run")
    if job.debug is not None:
        _check_debugger(listener(job.debug, topology), facts)


def _check_nsys(facts: JobFacts) -> None:
    """Raise Unavailable if nsys is not here; another host says so itself."""
    is_elsewhere = facts.surroundings.is_offline or facts.topology.spans_hosts
    if not is_elsewhere and which(NSYS, path=facts.environ.get("PATH")) is None:
        hint = "install Nsight Systems, or leave out `nsys`: `--profile 10-12` uses torch's profiler"
        raise Unavailable(f"`--profile` needs `{NSYS}`, which is not on PATH", hint)


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
