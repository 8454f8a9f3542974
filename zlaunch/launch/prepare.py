"""Check a job against the facts about it, and make the inputs of a plan.

Nothing is written and nothing is started here.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zlaunch.checks.across_hosts import gpus_used_twice
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.text.document import Document
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Refused, Unavailable, WrongUsage, ZlaunchError
from zlaunch.hosts.cluster.placement import (
    assign_ranks,
    most_slots,
    refuse_contradictions,
    refuse_parts_of_hosts,
)
from zlaunch.hosts.cluster.rendezvous import reporting_failures
from zlaunch.hosts.cluster.topology import Reach, Topology, beyond_deepspeed, too_many_slots
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.ports import LOOPBACK
from zlaunch.hosts.machine.resources import weakest
from zlaunch.job.argument_checks import check_script_args
from zlaunch.job.model_checks import wrong_sizes
from zlaunch.job.script import RESUME, Handover, OwnConfig
from zlaunch.job.spec import JobSpec, ranks_to_show
from zlaunch.job.trainer_args import flags, take_ds_config
from zlaunch.launch import rundir_writer
from zlaunch.launch.backends import launcher_of
from zlaunch.launch.facts import DEBUGGER, Facts, inspect, read_sources
from zlaunch.launch.plan import LaunchPlan, Listener, PlanInputs, Software, listener, make_plan
from zlaunch.launch.reporter import Reporter
from zlaunch.launch.surroundings import NOWHERE, Surroundings
from zlaunch.resume.choose import find_resumption, nothing_yet
from zlaunch.resume.save_option import told_where_to_save
from zlaunch.rundir.layout import RUNS, RunDir

if TYPE_CHECKING:  # often nothing is estimated
    from zlaunch.estimate.query import Estimate


@dataclass(frozen=True)
class Prepared:
    """A job that passed all checks before planning, and the directory for its run."""

    inputs: PlanInputs
    facts: Facts
    run_dir: Path | None
    beside: Path = RUNS
    """Parent of the run directory, unless the user names one."""
    make_plan: Callable[[PlanInputs], LaunchPlan] = make_plan
    estimate: "Estimate | None" = None
    """The memory estimate, if there is one."""
    surroundings: Surroundings = NOWHERE

    def plan(self, layout: RunDir | None = None) -> LaunchPlan:
        """Plan the job for a run directory; the next free one if it is left out."""
        plan = self.make_plan(self.inputs if layout is None else replace(self.inputs, layout=layout))
        if self.inputs.job.nvme_dir is not None and not plan.swap_dirs:
            raise WrongUsage(
                "`--nvme` names a directory, but nothing is offloaded to NVMe", "add `--offload nvme`"
            )
        return plan


_NAME = re.compile(r"[A-Za-z][\w-]{0,23}")
"""What may name something else than a file; a ds_config in base64 is longer."""


def ds_config_of(argv: Sequence[str], chosen: Path | None) -> tuple[tuple[str, ...], Path | None]:
    """Take the ds_config from the script's arguments, if they name one as other launchers want it."""
    rest, named = take_ds_config(argv)
    if named is not None and _NAME.fullmatch(named) and not Path(named).exists():
        named = None  # one that the program knows by name, as in `swift sft --deepspeed zero3`
    if named is None:
        rest = tuple(argv)  # with `--deepspeed` as a switch of the script
    if named is not None and chosen is not None:
        raise WrongUsage(
            f"the script's arguments name the ds_config `{named}`, but zlaunch has `--ds-config {chosen}`",
            "keep one",
        )
    return rest, Path(named) if named is not None else chosen


def prepare(
    job: JobSpec,
    run_dir: Path | None,
    reporter: Reporter,
    beside: Path = RUNS,
    surroundings: Surroundings = NOWHERE,
) -> Prepared:
    """Inspect and check a job; the command line is checked before anything slow is inspected."""
    with reporting_failures(surroundings.rendezvous):
        return _prepare(job, run_dir, reporter, beside, surroundings)


def _prepare(
    job: JobSpec, run_dir: Path | None, reporter: Reporter, beside: Path, surroundings: Surroundings
) -> Prepared:
    refuse_contradictions(job)
    surroundings.refuse_contradictions(job)
    if surroundings.unheeded is not None and not job.names_hosts:
        reporter.note(
            f"{surroundings.unheeded}, but this job runs on one of them: name them with `--hosts`, or start "
            "zlaunch on each with NNODES, NODE_RANK and MASTER_ADDR"
        )
    sources = read_sources(job)
    job = told_where_to_save(job, sources.script)
    check_script_args(sources.script, job.script_args)
    layout = next(rundir_writer.candidates(run_dir, job.name, beside))
    is_imagined = surroundings.imagined is not None  # its drives cannot be checked
    _check_directories(replace(job, nvme_dir=None) if is_imagined else job, run_dir, layout)
    facts = inspect(job, sources, layout, reporter, surroundings)
    if surroundings.rendezvous is not None and not surroundings.rendezvous.leads:
        layout = RunDir(Path(surroundings.rendezvous.run_directory))
    inputs = check_facts(job, facts, layout, is_offline=surroundings.is_offline)
    inputs = replace(inputs, started_by=surroundings.source)
    if (resumption := find_resumption(job, facts.sources.script)) is not None:
        found = str(resumption.checkpoint.folder)  # so that a rerun takes the same one
        inputs = replace(inputs, job=replace(job, resume=found), resume=resumption)
    elif job.resume is not None:
        reporter.note(nothing_yet(job, facts.sources.script), "resume")
        inputs = replace(inputs, job=replace(job, resume=None))
    elif _is_requeued(facts.environ) and RESUME.removeprefix("--") not in dict(flags(job.script_args)):
        reporter.note("Slurm has requeued this job, which begins anew: `--resume latest` goes on", "resume")
    if untested := list(inputs.stack.untested()):
        reporter.note(f"zlaunch was not tested with {', '.join(untested)}")
    return Prepared(inputs, facts, run_dir, beside, surroundings=surroundings)


def _is_requeued(environ: Mapping[str, str]) -> bool:
    return environ.get("SLURM_RESTART_COUNT", "0") != "0"


def _check_directories(job: JobSpec, run_dir: Path | None, layout: RunDir) -> None:
    if job.nvme_dir is not None:
        if not job.nvme_dir.is_dir():
            raise Unavailable(
                f"`--nvme {job.nvme_dir}`: there is no such directory", "create it on the drive first"
            )
        rundir_writer.check_writable(job.nvme_dir, "--nvme")
    rundir_writer.check_writable(run_dir or layout.root, "--run-dir")
    if run_dir is not None:
        rundir_writer.check_unused(run_dir)


def check_facts(job: JobSpec, facts: Facts, layout: RunDir, *, is_offline: bool = False) -> PlanInputs:
    """Check a job against the facts and assign its ranks; raise what makes it impossible."""
    script, hosts, others = facts.sources.script, facts.sources.hosts, facts.others
    machines = facts.machines([] if hosts is None else hosts.hosts)
    most = {name: most_slots(len(one.gpus), one.num_cores) for name, one in machines.items()}
    wrong = []
    if not is_offline:  # which takes this machine for all of them
        wrong += too_many_slots(facts.sources.hostfile, most)
        devices = {} if hosts is None else {host.name: host.devices for host in hosts.hosts}
        wrong += gpus_used_twice(devices, machines)
    if launcher_of(job, script) != "torchrun":
        wrong += beyond_deepspeed(facts.sources.hostfile)
    wrong += wrong_sizes(facts.model) if facts.model is not None else ()
    if wrong:
        raise Refused(wrong)
    machine = weakest(list(machines.values())) if machines else facts.here.machine
    topology = hosts or assign_ranks(job, machine)
    refuse_parts_of_hosts(job, topology)
    ranks_to_show(job.wishes.show_ranks, topology.world_size, interactive=False)  # raises for a wrong rank
    if job.debug is not None:
        listening = listener(job.debug, topology)
        _check_debugger(listening, others.get(listening.host, facts.here), listening.host in others)
    return PlanInputs(
        job=job,
        script=script,
        base=_own_document(script.own_config) if script.own_config else facts.sources.ds_config,
        model=facts.model if script.handover is not Handover.NOT else None,
        machine=machine,
        python=facts.here.python,
        topology=topology,
        port=others.get(topology.hosts[0].name, facts.here).port,
        address=facts.address or _address(facts, topology),
        layout=layout,
        environ=facts.environ,
        op_cache=facts.here.op_cache,
        given=facts.given,
        software={name: Software(one.python, one.op_cache, one.path) for name, one in others.items()},
    )


def _address(facts: Facts, topology: Topology) -> str:
    """Find the address at which the other hosts reach the first one."""
    first, others = topology.hosts[0].name, facts.others
    if topology.hosts[0].addr is not None:
        return topology.hosts[0].addr
    if not others:
        return first if topology.reach is Reach.SSH else LOOPBACK
    if first in others:
        return others[first].connection.reached_at or first
    addresses = (one.connection.seen_from for one in others.values())
    return next(filter(None, addresses), os.uname().nodename)


def _own_document(own: OwnConfig) -> Document | None:
    """Read the ds_config that a script brings along; None if it cannot be read, which is up to the script."""
    try:
        if isinstance(own.value, str):
            return read(Path(own.value))
        return None if own.value is None else parse(json.dumps(own.value, indent=2, default=str), own.where)
    except ZlaunchError:
        return None


def _check_debugger(listener: Listener, facts: MachineFacts, is_remote: bool) -> None:
    if DEBUGGER in facts.python.missing:
        where = f"on {listener.host}" if is_remote else "here"
        raise Unavailable(
            f"`--debug` needs {DEBUGGER}, which is not installed {where}",
            f"`{facts.python.executable} -m pip install {DEBUGGER}`",
        )
    if facts.ports is not None and facts.ports.debug_error is not None:
        where = f"on {listener.host}" if is_remote else "on this port"
        other = facts.ports.other_debug
        raise Unavailable(
            f"`--debug {listener.rank}:{listener.port}`: cannot listen {where}: {facts.ports.debug_error}",
            f"write `--debug {listener.rank}:{other}`" if other else None,
        )
