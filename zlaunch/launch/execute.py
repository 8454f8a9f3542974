"""Carry out a plan: convert its checkpoint, compile ops, start the launcher, follow it to its end."""

import contextlib
import gc
import os
import signal
import time
from functools import partial

from zlaunch.diagnosis.collect import LAUNCHER_LOG_BYTES, LauncherEnd, collect_evidence
from zlaunch.diagnosis.evidence import Evidence
from zlaunch.errors import Unavailable, ZlaunchError
from zlaunch.files import end_of
from zlaunch.hosts.cluster.rendezvous import Rendezvous, Start, new_token
from zlaunch.hosts.cluster.started_by import without_cluster_variables
from zlaunch.hosts.machine.build_lock import locks_by_file
from zlaunch.hosts.machine.op_cache import extensions_dir
from zlaunch.hosts.rank_environment import may_export
from zlaunch.job.spec import MonitorOptions
from zlaunch.launch.finish import FinishedRun, finish_run, record_failed_start
from zlaunch.launch.monitoring.lost_hosts import ALIVE_OPTIONS, LostHosts
from zlaunch.launch.monitoring.monitor import JobMonitor
from zlaunch.launch.monitoring.preemption import SaveAndStop
from zlaunch.launch.ops_on_hosts import build_everywhere
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.reporter import Reporter
from zlaunch.process import SAFE_PATH, Foreground, Stopped, defer_signals, heed_signals, ours
from zlaunch.resume.reshard import convert
from zlaunch.rundir import control
from zlaunch.rundir.read import read_rank_records, read_record
from zlaunch.rundir.record import JobRecord, RankRecord
from zlaunch.runs.run import Run
from zlaunch.worker.cleanup import delete
from zlaunch.worker.grace import JOB_SECONDS
from zlaunch.worker.node import TOKEN
from zlaunch.worker.nsys import report_seconds
from zlaunch.worker.sampling import oom_kills

SSH_OPTIONS = "PDSH_SSH_ARGS_APPEND"
"""What pdsh gives to ssh."""


def execute(
    plan: LaunchPlan, options: MonitorOptions, reporter: Reporter, rendezvous: Rendezvous | None = None
) -> FinishedRun:
    """Run the job of a plan whose run directory is written, and record how it ended."""
    environment = _environment(plan)
    gc.freeze()  # imported modules stay, so they are never searched
    gc.enable()
    started, run = time.time(), Run(plan.layout.root)
    run.read_plan()  # the directory may be gone at the end
    try:
        evidence = _build_and_run(plan, environment, options, reporter, rendezvous, run=run)
    except ZlaunchError as error:
        record_failed_start(plan, error, started, reporter)
        raise
    finally:
        defer_signals()  # the job is over, and its end must be recorded
        delete(plan.swap_dirs, [])
    return finish_run(plan, run, evidence, started, reporter)


def _build_and_run(
    plan: LaunchPlan,
    environment: dict[str, str],
    options: MonitorOptions,
    reporter: Reporter,
    rendezvous: Rendezvous | None,
    *,
    run: Run,
) -> Evidence:
    try:
        heed_signals()
        convert(plan.training.resumption, plan.python.executable, plan.layout.conversion_log, reporter)
        stopped_by = build_everywhere(plan, environment, reporter, _if_killed(plan, environment))
        if stopped_by is None:  # otherwise those that came later stay deferred
            heed_signals()
            if rendezvous is not None:
                rendezvous.wait_until_ready(reporter.busy)
            return _run(plan, environment, options, reporter, rendezvous, run=run)
    except Stopped as stop:  # before the first program or between two
        stopped_by = stop.number
    except OSError as error:
        raise Unavailable(f"the job cannot be started: {error.strerror}: {error.filename}") from None
    return Evidence(stopped_by=stopped_by, command=control.stopping_command(plan.layout))


def _if_killed(plan: LaunchPlan, environment: dict[str, str]) -> list[str]:
    """The program that cleans up in place of a zlaunch that was killed."""
    op_cache = []
    if plan.facts.here.op_cache is not None and locks_by_file(plan.python):
        op_cache = [str(extensions_dir(plan.python, environment))]
    return ours("zlaunch.worker.lost", str(plan.layout.root), *op_cache)


def _environment(plan: LaunchPlan) -> dict[str, str]:
    """The environment of the launcher: that of zlaunch, and the variables of the job.

    DeepSpeed's runner exports some variables: it logs secrets among them, and has shells of other hosts
    expand their values. It does not get these. Ranks get all variables from their record.
    """
    own = {name: variable.value for name, variable in plan.environment.items()}
    environment = {**SAFE_PATH, **without_cluster_variables(os.environ), **own}
    if not plan.topology.spans_hosts:
        return environment
    options = f"{environment.get(SSH_OPTIONS, '')} {ALIVE_OPTIONS}".strip()
    return {
        **{name: value for name, value in environment.items() if may_export(name, value)},
        SSH_OPTIONS: options,
    }


def _run(
    plan: LaunchPlan,
    environment: dict[str, str],
    options: MonitorOptions,
    reporter: Reporter,
    rendezvous: Rendezvous | None,
    *,
    run: Run,
) -> Evidence:
    layout, spans_hosts = plan.layout, plan.topology.spans_hosts
    guard = ours("zlaunch.worker.guard", str(layout.root), *plan.watched_argv)
    # DeepSpeed's runner would answer a signal by killing every job of this user on all hosts, by name.
    tell = partial(control.write_stop, layout) if spans_hosts or plan.shielded else None
    killed_before = oom_kills()
    if_killed = _if_killed(plan, environment)
    token = new_token()
    if plan.on_each_host:
        environment[TOKEN] = token if rendezvous is None else rendezvous.key(token)
    control.write_save_at(layout, None)
    log = layout.launcher_log.open("w+b")
    grace = JOB_SECONDS + report_seconds(read_record(layout.job, JobRecord).get("profile"))
    job = Foreground(guard, environment, log, grace, tell=tell, if_killed=if_killed, shielded=plan.shielded)
    if rendezvous is not None:
        port = read_record(layout.job, JobRecord)["control_port"]
        rendezvous.begin(Start(port, token, str(layout.root)))
    stop = partial(job.on_signal, signal.SIGTERM, None)
    saving = SaveAndStop(plan, options.preempt, os.environ, stop, reporter)
    job.save_first = saving.on_signal
    monitor = JobMonitor(layout, plan.topology.world_size, options, stop, reporter)
    lost = LostHosts(plan)
    try:
        returncode = job.wait(partial(_follow, plan, monitor, job, saving, rendezvous, lost=lost))
    finally:
        monitor.end()
        delete([], monitor.buffers)
    is_ended = monitor.is_diverged or (monitor.stall is not None and monitor.stall.ended_job)
    stopped_by, save = None if is_ended else job.stopped_by, saving.evidence()
    if stopped_by is None and save is not None and save.checkpoint is None and saving.has_ended_scripts:
        stopped_by = signal.SIGTERM  # as far as their script goes, they have finished
    if (save is None or save.checkpoint is None) and lost.ended_job(stopped_by, os.environ):
        stopped_by, returncode = None, 1  # the launcher's own says nothing
    words = end_of(log, LAUNCHER_LOG_BYTES)
    end = LauncherEnd(
        returncode,
        stopped_by,
        monitor.stall,
        monitor.is_diverged,
        save,
        stopped_at=job.stopped_at,
        oom_kills=oom_kills().since(killed_before),
        log=words,
        started=monitor.started,
    )
    return collect_evidence(run, end)


def _follow(
    plan: LaunchPlan,
    monitor: JobMonitor,
    job: Foreground,
    saving: SaveAndStop,
    rendezvous: Rendezvous | None,
    *,
    lost: LostHosts,
) -> None:
    """Monitor the job; end it on request, or if a rank of several hosts has failed, or a host is gone."""
    if job.stopped_by is None:
        saving.tick(monitor.progress)
    monitor.is_saving = saving.is_asked
    if not monitor.tick():
        return
    for sent in () if rendezvous is None else rendezvous.signals():
        if not saving.on_signal(sent):
            job.on_signal(sent, None)
    if job.stopped_by is signal.SIGINT:
        monitor.confirm_interrupt()
    if plan.topology.spans_hosts and not plan.on_each_host and _has_failed(plan, job, lost):
        by = control.COORDINATOR if lost.any else "zlaunch"
        with contextlib.suppress(OSError):
            control.write_stop(plan.layout, signal.SIGTERM, by)  # pdsh would wait for the other hosts
        job.end_within(JOB_SECONDS)
    elif job.stopped_by is None and (number := control.requested_stop(plan.layout)) is not None:
        job.on_signal(number, None)


def _has_failed(plan: LaunchPlan, job: Foreground, lost: LostHosts) -> bool:
    """Whether a rank that DeepSpeed's runner has started failed by itself, or its host is gone."""
    if job.stopped_by is None and control.read_stop(plan.layout) is None:
        lost.look()  # not later: hosts whose ranks are stopped are not lost
    records = read_rank_records(plan.layout, RankRecord).values()
    return lost.any or any(
        record.get("returncode") and record.get("stopped_by") is None for record in records
    )
