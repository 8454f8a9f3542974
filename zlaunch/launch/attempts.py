"""Run a job: start it, wait for its end, and restart it after a failure."""

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zlaunch.checkpoint.resume import ResumeTarget, newest_to_resume
from zlaunch.errors import Unavailable, ZlaunchError
from zlaunch.job.spec import JobSpec
from zlaunch.launch import rundir_writer
from zlaunch.launch.execute import execute
from zlaunch.launch.finish import FinishedRun
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.preflight.preflight import Preflight
from zlaunch.launch.prepare import Prepared, prepare
from zlaunch.launch.restart_policy import FailedAttempt, Retry, propose_retries, resume_note, resumed
from zlaunch.launch.resume import told_by
from zlaunch.process import defer_signals, heed_signals, signals_as_exceptions
from zlaunch.rundir.record import Lineage


def run_attempts(prepared: Prepared, preflight: Preflight) -> int:
    """Start a job, restart it as its policy allows, and return the exit status of the last attempt."""
    attempts = _Attempts(preflight)
    with signals_as_exceptions():
        last = attempts.restart(attempts.start(prepared, preflight.options.origin))
    return last.ended.outcome.exit_status


@dataclass(frozen=True)
class _Attempt:
    prepared: Prepared
    run: Path
    ended: FinishedRun


@dataclass(frozen=True)
class _Attempts:
    preflight: Preflight

    def start(self, prepared: Prepared, lineage: Lineage) -> _Attempt:
        job, topology = prepared.inputs.job, prepared.inputs.topology
        debugged = None if job.debug is None else job.debug.rank
        monitor = job.wishes.monitor_options(
            topology.world_size, self.preflight.options.interactive, debugged
        )
        plan = self._reserve(prepared, lineage)
        self.preflight.reporter.starting(plan, shows_output=bool(monitor.show_ranks))
        return _Attempt(prepared, plan.layout.root, execute(plan, monitor, self.preflight.reporter))

    def _reserve(self, prepared: Prepared, lineage: Lineage) -> LaunchPlan:
        """Plan for a free run directory and write it; take the next one if another run was faster.

        A directory that cannot be written completely is removed: nothing ran in it.
        """
        for layout in rundir_writer.candidates(prepared.run_dir, prepared.inputs.job.name, prepared.beside):
            plan = self.preflight.plan(prepared, layout)
            self.preflight.check(prepared, plan)
            defer_signals()  # until an end can be recorded in the run directory
            try:
                rundir_writer.claim(plan)
                rundir_writer.write_run_files(plan, prepared.inputs, sys.argv, lineage)
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
        asked = attempt.prepared.inputs.job
        failures: list[FailedAttempt] = []
        while True:
            step = max((rank.step for rank in attempt.ended.evidence.ranks), default=0)
            failures.append(FailedAttempt(attempt.ended.outcome, step))
            for job, lineage, note in self._retries(asked, attempt, failures):
                directory = _run_directory(attempt.prepared.run_dir, lineage.attempt)
                heed_signals()
                try:
                    prepared = self.preflight.estimate(
                        prepare(job, directory, self.preflight.reporter, attempt.prepared.beside)
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
        self, asked: JobSpec, attempt: _Attempt, failures: Sequence[FailedAttempt]
    ) -> Iterator[tuple[JobSpec, Lineage, str]]:
        """List the jobs to try next, their lineage, and a note for the user."""
        job, evidence = attempt.prepared.inputs.job, attempt.ended.evidence
        for proposal in propose_retries(job, evidence, failures, asked.wishes.policy):
            checkpoint = _checkpoint(attempt, proposal)
            section = evidence.job.config.get("checkpoint")
            loads_universal = isinstance(section, Mapping) and section.get("load_universal") is True
            following = resumed(asked, proposal, checkpoint, loads_universal)
            if following is None:
                why = f"{proposal.why}: there is no checkpoint to go on from"
                self.preflight.reporter.restarting(f"not tried, {why}")
                continue
            lineage = Lineage(len(failures) + 1, continues=attempt.run.name, why=proposal.why)
            yield following, lineage, f"{proposal.why}; {resume_note(checkpoint, failures[-1].step)}"


def _run_directory(run_dir: Path | None, number: int) -> Path | None:
    """Name the attempts `mine`, `mine-attempt-2`, `mine-attempt-3`."""
    if run_dir is None:
        return None
    stem = run_dir.name.rpartition("-attempt-")[0] or run_dir.name
    return run_dir.with_name(f"{stem}-attempt-{number}")


def _checkpoint(attempt: _Attempt, proposal: Retry) -> Path | None:
    """Find a checkpoint to resume from, for scripts that have a flag for it."""
    inputs, ran = attempt.prepared.inputs, attempt.ended.evidence.job
    flag, is_read, _ = told_by(inputs.script)
    if not (proposal.resumes and flag and is_read):
        return None
    directory = inputs.script.output_dir(inputs.job.script_args)
    asked = proposal.job.offload
    offload = (asked and asked.optimizer) or ran.offload.get("optimizer", "none")
    target = ResumeTarget(ran.world_size, ran.stage, offload=offload)
    before = math.inf if proposal.before is None else proposal.before
    return newest_to_resume(directory.absolute(), target, before)
