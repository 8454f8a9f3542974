"""Run a job: start it, wait for its end, and restart it after a failure."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zlaunch.checkpoint.summary import Summary
from zlaunch.diagnosis.outcome import Outcome
from zlaunch.errors import Unavailable, ZlaunchError
from zlaunch.job.spec import JobSpec
from zlaunch.launch import rundir_writer
from zlaunch.launch.execute import execute
from zlaunch.launch.finish import FinishedRun
from zlaunch.launch.plan import LaunchPlan, PlanInputs
from zlaunch.launch.preflight import Preflight
from zlaunch.launch.prepare import Prepared, prepare
from zlaunch.process import defer_signals, heed_signals, signals_as_exceptions
from zlaunch.resume.choose import newest_for_restart
from zlaunch.resume.restart import FailedAttempt, Retry, propose_retries, restart_point, resumed
from zlaunch.rundir.record import Lineage


def run_attempts(prepared: Prepared, preflight: Preflight) -> Outcome:
    """Start a job, restart it as its policy allows, and return how the last attempt ended."""
    attempts = _Attempts(preflight)
    with signals_as_exceptions():
        last = attempts.restart(attempts.start(prepared, preflight.options.origin))
    return last.ended.outcome


@dataclass(frozen=True)
class _Attempt:
    prepared: Prepared
    plan: LaunchPlan
    ended: FinishedRun

    @property
    def failure(self) -> FailedAttempt:
        """Its failure, as the restart policy judges it."""
        ranks, resume = self.ended.evidence.ranks, self.prepared.inputs.resume
        return FailedAttempt(
            self.ended.outcome,
            max((rank.step for rank in ranks), default=0),
            0 if resume is None else resume.saved.step or 0,
        )


@dataclass(frozen=True)
class _Attempts:
    preflight: Preflight

    def start(self, prepared: Prepared, lineage: Lineage) -> _Attempt:
        job, topology = prepared.inputs.job, prepared.inputs.topology
        debugged = None if job.debug is None else job.debug.rank
        monitor = job.wishes.monitor_options(
            topology.world_size, self.preflight.options.interactive, debugged
        )
        plan, rendezvous = self._reserve(prepared, lineage), prepared.surroundings.rendezvous
        self.preflight.reporter.starting(plan, shows_output=bool(monitor.show_ranks))
        return _Attempt(prepared, plan, execute(plan, monitor, self.preflight.reporter, rendezvous))

    def _reserve(self, prepared: Prepared, lineage: Lineage) -> LaunchPlan:
        """Plan for a free run directory and write it; take the next one if another run was faster.

        A directory that cannot be written completely is removed: nothing ran in it.
        """
        for layout in rundir_writer.candidates(prepared.run_dir, prepared.inputs.job.name, prepared.beside):
            plan = self.preflight.plan(prepared, layout)
            forced = self.preflight.check(prepared, plan)
            defer_signals()  # until an end can be recorded in the run directory
            try:
                rundir_writer.claim(plan)
                asked = prepared.inputs.job.asked or sys.argv
                rundir_writer.write_run_files(plan, prepared.inputs, asked, lineage, forced)
                if prepared.estimate is not None:
                    rundir_writer.write_forecast(layout, prepared.estimate.forecast)
            except FileExistsError:
                continue
            except OSError as error:
                rundir_writer.release(plan)
                message = f"the run directory `{os.path.relpath(layout.root)}`: {error.strerror}"
                raise Unavailable(message, "choose another with `--run-dir DIR`") from None
            return plan
        taken = os.path.relpath(prepared.run_dir or prepared.beside)
        raise Unavailable(
            f"another run took the run directory `{taken}`", "choose another with `--run-dir DIR`"
        )

    def restart(self, attempt: _Attempt) -> _Attempt:
        """Start again as long as the policy allows and it may help; return the last attempt."""
        first = attempt.prepared.inputs
        failures: list[FailedAttempt] = []
        while True:
            failures.append(attempt.failure)
            for job, lineage, note in self._retries(first, attempt, failures):
                directory = _run_directory(attempt.prepared.run_dir, lineage.attempt)
                heed_signals()
                try:
                    prepared = self.preflight.complete(
                        prepare(
                            job,
                            directory,
                            self.preflight.reporter,
                            attempt.prepared.beside,
                            attempt.prepared.surroundings,
                        )
                    )
                    self.preflight.reporter.restarting(f"attempt {lineage.attempt}, {note}")
                    attempt = self.start(prepared, lineage)
                except ZlaunchError as error:  # the result is still that of the failure before
                    self.preflight.reporter.restarting(f"not tried, {lineage.why}: {error.message}")
                else:
                    break
            else:
                return attempt

    def _retries(
        self, first: PlanInputs, attempt: _Attempt, failures: Sequence[FailedAttempt]
    ) -> Iterator[tuple[JobSpec, Lineage, str]]:
        """List the jobs to try next, their lineage, and a note for the user."""
        job, asked = attempt.prepared.inputs.job, first.job
        for proposal in propose_retries(job, attempt.ended.evidence, failures, asked.wishes.policy):
            newest = _newest_checkpoint(attempt, proposal)
            folder = None if newest is None else newest.checkpoint.folder
            following = resumed(asked, proposal, folder, attempt.plan.training.loads_universal)
            if following is None:
                why = f"{proposal.why}: there is no checkpoint to resume from"
                self.preflight.reporter.restarting(f"not tried, {why}")
                continue
            if newest is None and first.resume is not None:
                newest = first.resume.saved
            start = restart_point(asked, first.script, newest, failures[-1].step)
            lineage = Lineage(len(failures) + 1, continues=attempt.plan.layout.root.name, why=proposal.why)
            yield following, lineage, f"{proposal.why}; {start}"


def _newest_checkpoint(attempt: _Attempt, proposal: Retry) -> Summary | None:
    """Find the checkpoint that an attempt has left for the next one."""
    if not proposal.resumes:
        return None
    return newest_for_restart(attempt.plan.training, attempt.plan.layout.root, proposal.job.offload)


def _run_directory(run_dir: Path | None, number: int) -> Path | None:
    """Name the attempts `mine`, `mine-attempt-2`, `mine-attempt-3`."""
    if run_dir is None:
        return None
    stem = run_dir.name.rpartition("-attempt-")[0] or run_dir.name
    return run_dir.with_name(f"{stem}-attempt-{number}")
