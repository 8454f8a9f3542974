"""Run a job: start it, wait for its end, and restart it after a failure."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from zlaunch.checkpoint.summary import Summary
from zlaunch.diagnosis.outcome import Outcome
from zlaunch.errors import Refused, Unavailable, ZlaunchError
from zlaunch.frozen import dataclass
from zlaunch.job.spec import JobSpec
from zlaunch.launch import rundir_writer
from zlaunch.launch.execute import execute
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.finish import FinishedRun
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.preflight import Preflight
from zlaunch.launch.prepare import prepare
from zlaunch.launch.reporter import Reporter
from zlaunch.process import defer_signals, heed_signals, signals_as_exceptions
from zlaunch.resume.choose import newest_for_restart
from zlaunch.resume.restart import FailedAttempt, Retry, propose_retries, restart_point, resumed
from zlaunch.rundir.choose import candidates
from zlaunch.rundir.record import Lineage
from zlaunch.rundir.swap import left_behind
from zlaunch.units import memory


@dataclass(frozen=True)
class _Attempt:
    plan: LaunchPlan
    ended: FinishedRun

    @property
    def failure(self) -> FailedAttempt:
        """Its failure, as the restart policy judges it."""
        ranks, resumption = self.ended.evidence.ranks, self.plan.facts.resumption
        return FailedAttempt(
            self.ended.outcome,
            max((rank.step for rank in ranks), default=0),
            0 if resumption is None else resumption.saved.step or 0,
        )


def run_attempts(facts: JobFacts, preflight: Preflight, reporter: Reporter) -> Outcome:
    """Start a job, restart it as its policy allows, and return how the last attempt ended."""
    with signals_as_exceptions(is_final=True):
        attempt = _start(facts, preflight, reporter)
        failures: list[FailedAttempt] = []
        while True:
            failures.append(attempt.failure)
            following = _restart(attempt, failures, preflight, reporter, first=facts)
            if following is None:
                return attempt.ended.outcome
            attempt = following


def _start(facts: JobFacts, preflight: Preflight, reporter: Reporter) -> _Attempt:
    debugged = None if facts.job.debug is None else facts.job.debug.rank
    monitor = facts.job.run_options.monitor_options(
        facts.topology.world_size, preflight.options.interactive, debugged
    )
    plan = _reserve(facts, preflight)
    _clear_drives(plan, reporter)
    reporter.starting(plan, monitor.show_ranks)
    return _Attempt(plan, execute(plan, monitor, reporter, facts.surroundings.rendezvous))


def _clear_drives(plan: LaunchPlan, reporter: Reporter) -> None:
    """Delete what killed runs have left on the drives of this one, and name what may be in use."""
    for drive in dict.fromkeys(directory.parent for directory in plan.swap_dirs):
        for left in left_behind(drive):
            if left.is_over:
                reporter.note(f"deleted {left.directory}: {memory(left.delete())} of a run that was killed")
            elif left.directory not in plan.swap_dirs:
                reporter.note(f"{left.directory} is of an older zlaunch: delete it unless its run still runs")


def _reserve(facts: JobFacts, preflight: Preflight) -> LaunchPlan:
    """Plan for a free run directory and write it; take the next one if another run was faster.

    A directory that cannot be written completely is removed: nothing ran in it.
    """
    options = preflight.options
    for layout in candidates(options.run_dir, facts.job.name, options.beside):
        plan = preflight.plan(replace(facts, layout=layout))
        forced = preflight.check(plan)
        defer_signals()  # until an end can be recorded in the run directory
        try:
            rundir_writer.claim(plan, is_shared=options.share)
            asked = facts.job.asked or sys.argv
            rundir_writer.write_run_files(plan, asked, options.origin, forced, is_shared=options.share)
        except FileExistsError:
            continue
        except OSError as error:
            rundir_writer.release(plan)
            message = f"the run directory `{os.path.relpath(layout.root)}`: {error.strerror}"
            raise Unavailable(message, "choose another with `--run-dir DIR`") from None
        return plan
    taken = os.path.relpath(options.run_dir or options.beside)
    raise Unavailable(f"another run took the run directory `{taken}`", "choose another with `--run-dir DIR`")


def _restart(
    attempt: _Attempt,
    failures: Sequence[FailedAttempt],
    preflight: Preflight,
    reporter: Reporter,
    *,
    first: JobFacts,
) -> _Attempt | None:
    """Start again as the policy allows; None if it does not, or nothing that may help can start."""
    for job, lineage, note in _retries(first, attempt, failures, reporter):
        run_dir = _restart_directory(preflight.options.run_dir, len(failures))
        options = replace(preflight.options, run_dir=run_dir, origin=lineage, auto_stage=False)
        heed_signals()
        try:
            facts = prepare(job, options, reporter, first.surroundings)
            again = replace(preflight, options=options)
            facts = again.complete(facts)
            reporter.restarting(f"attempt {lineage.attempt}, {note}")
            return _start(facts, again, reporter)
        except Refused as error:  # the result is still that of the failure before
            reporter.restarting(f"not tried, {lineage.why}: {error.message}")
            reporter.warn(error.findings)
        except ZlaunchError as error:
            hint = f" ({error.hint})" if error.hint else ""
            reporter.restarting(f"not tried, {lineage.why}: {error.message}{hint}")
    return None


def _retries(
    first: JobFacts, attempt: _Attempt, failures: Sequence[FailedAttempt], reporter: Reporter
) -> Iterator[tuple[JobSpec, Lineage, str]]:
    """List the jobs to try next, their lineage, and a note for the user."""
    plan, asked = attempt.plan, first.job
    policy = asked.run_options.policy
    for proposal in propose_retries(plan.facts.job, attempt.ended.evidence, failures, policy):
        newest = _newest_checkpoint(plan, proposal)
        folder = None if newest is None else newest.checkpoint.folder
        following = resumed(asked, proposal, folder, plan.training.loads_universal)
        if following is None:
            reporter.restarting(f"not tried, {proposal.why}: there is no checkpoint to resume from")
            continue
        if newest is None and first.resumption is not None:
            newest = first.resumption.saved
        start = restart_point(asked, first.script, newest, failures[-1].step)
        lineage = Lineage(len(failures) + 1, continues=plan.layout.root.name, why=proposal.why)
        yield following, lineage, f"{proposal.why}; {start}"


def _newest_checkpoint(plan: LaunchPlan, proposal: Retry) -> Summary | None:
    """Find the checkpoint that an attempt has left for the next one."""
    if not proposal.resumes:
        return None
    return newest_for_restart(plan.training, plan.layout.root, proposal.job.offload)


def _restart_directory(run_dir: Path | None, number: int) -> Path | None:
    """Name the restarts of `mine`: `mine-restart-1`; a scheduler starts it again in `mine-attempt-2`."""
    if run_dir is None:
        return None
    return run_dir.with_name(f"{run_dir.name}-restart-{number}")
