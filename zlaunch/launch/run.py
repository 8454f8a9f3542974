"""Launch a job: estimate, plan, start, and restart it after a failure."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zlaunch.errors import FATAL, Refused, Unavailable, ZlaunchError
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.query import Estimate
from zlaunch.job.spec import JobSpec
from zlaunch.launch import rundir_writer
from zlaunch.launch.checkpoints import newest_whole
from zlaunch.launch.execute import execute
from zlaunch.launch.finish import FinishedRun
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.preflight.memory import check_memory, choose_stage
from zlaunch.launch.preflight.run import run_preflight
from zlaunch.launch.prepare import Prepared, prepare
from zlaunch.launch.reporter import Reporter
from zlaunch.launch.restart_policy import FailedAttempt, Retry, propose_retries, resume_note, resumed
from zlaunch.rundir.record import FIRST, Lineage


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How to launch a job."""

    interactive: bool
    """Whether the output goes to a terminal."""
    rehearse: bool = False
    force: bool = False
    dry_run: bool = False
    auto_stage: bool = False
    """Choose the stage and the offload."""
    origin: Lineage = FIRST


def run(prepared: Prepared, options: LaunchOptions, reporter: Reporter) -> int:
    """Launch a job, restart it as its policy allows, and return the exit status of the last attempt.

    Raises a ZlaunchError if the job cannot work or cannot be started.
    """
    return _Launch(options, reporter).run(prepared)


@dataclass(frozen=True)
class _Attempt:
    prepared: Prepared
    run: Path
    ended: FinishedRun


@dataclass(frozen=True)
class _Launch:
    options: LaunchOptions
    reporter: Reporter

    def run(self, prepared: Prepared) -> int:
        prepared = self._estimate(prepared, self.options.auto_stage)
        if self.options.dry_run:
            plan = prepared.plan()
            self.reporter.dry_run(plan, prepared.estimate)
            self._preflight(prepared, plan)
            return 0
        attempt = self._start(prepared, self.options.origin)
        return self._restart(attempt).ended.outcome.exit_status

    def _estimate(self, prepared: Prepared, auto_stage: bool = False) -> Prepared:
        """Choose a stage and estimate the memory, all questions to one program; refuse what cannot fit."""
        if prepared.facts.model_error is not None:
            text = f"{prepared.facts.model_error}; the Trainer fills in what depends on the model"
            self.reporter.note(text, "model")
        with Estimator() as estimator:
            if auto_stage:
                job, why = choose_stage(prepared, estimator)
                self.reporter.note(why, "stage")
                prepared = replace(prepared, inputs=replace(prepared.inputs, job=job))
            return replace(prepared, estimate=self._memory(prepared, estimator))

    def _memory(self, prepared: Prepared, estimator: Estimator) -> Estimate | None:
        """Estimate a job if that was asked for, or if there are GPUs it must fit."""
        rehearse, has_gpus = self.options.rehearse, bool(prepared.inputs.machine.gpus)
        if not rehearse and (self.options.force or not has_gpus or prepared.facts.model is None):
            return None
        try:
            estimate = check_memory(prepared, estimator)
        except Unavailable as error:
            if rehearse:
                raise
            self.reporter.note(error.message)  # the job may well work: it starts
            return None
        self.reporter.warn(estimate.remarks)
        return estimate

    def _start(self, prepared: Prepared, lineage: Lineage) -> _Attempt:
        job, topology = prepared.inputs.job, prepared.inputs.topology
        debugged = None if job.debug is None else job.debug.rank
        monitor = job.wishes.monitor_options(topology.world_size, self.options.interactive, debugged)
        plan = self._reserve(prepared, lineage)
        self.reporter.starting(plan, shows_output=bool(monitor.show_ranks))
        return _Attempt(prepared, plan.layout.root, execute(plan, monitor, self.reporter))

    def _reserve(self, prepared: Prepared, lineage: Lineage) -> LaunchPlan:
        """Plan for a free run directory and write it; take the next one if another run was faster.

        A directory that cannot be written completely is removed: nothing ran in it.
        """
        for layout in rundir_writer.candidates(prepared.run_dir, prepared.inputs.job.name, prepared.beside):
            plan = prepared.plan(layout)
            self._preflight(prepared, plan)
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
                raise Unavailable(message, "name another with `--run-dir DIR`") from None
            return plan
        taken = os.path.relpath(prepared.run_dir or prepared.beside)
        raise Unavailable(
            f"another run took the run directory `{taken}`", "name another with `--run-dir DIR`"
        )

    def _preflight(self, prepared: Prepared, plan: LaunchPlan) -> None:
        """Report what is short; raise Refused, unless forced, if the job cannot work."""
        findings = run_preflight(prepared, plan)
        wrong = [finding for finding in findings if finding.severity in FATAL and not self.options.force]
        self.reporter.warn([finding for finding in findings if finding not in wrong])
        if wrong:
            raise Refused(wrong, "`--force` starts it anyway")

    def _restart(self, attempt: _Attempt) -> _Attempt:
        """Start again as long as the policy allows and it may help; return the last attempt."""
        asked = attempt.prepared.inputs.job
        failures: list[FailedAttempt] = []
        while True:
            step = max((rank.step for rank in attempt.ended.evidence.ranks), default=0)
            failures.append(FailedAttempt(attempt.ended.outcome, step))
            for job, lineage, note in _retries(asked, attempt, failures):
                directory = _run_directory(attempt.prepared.run_dir, lineage.attempt)
                try:
                    prepared = self._estimate(prepare(job, directory, attempt.prepared.beside))
                    self.reporter.restarting(f"attempt {lineage.attempt}, {note}")
                    attempt = self._start(prepared, lineage)
                except ZlaunchError as error:  # the result is still that of the failure before
                    self.reporter.restarting(f"not tried, {lineage.why}: {error.message}")
                else:
                    break
            else:
                return attempt


def _retries(
    asked: JobSpec, attempt: _Attempt, failures: Sequence[FailedAttempt]
) -> Iterator[tuple[JobSpec, Lineage, str]]:
    """List the jobs to try next, their lineage, and what the user is told."""
    job, evidence = attempt.prepared.inputs.job, attempt.ended.evidence
    for proposal in propose_retries(job, evidence, failures, asked.wishes.policy):
        checkpoint = _checkpoint(attempt, proposal)
        following = resumed(asked, proposal, checkpoint)
        if following is not None:
            lineage = Lineage(len(failures) + 1, continues=attempt.run.name, why=proposal.why)
            yield following, lineage, f"{proposal.why}; {resume_note(checkpoint, failures[-1].step)}"


def _run_directory(run_dir: Path | None, number: int) -> Path | None:
    """Name the attempts `mine`, `mine-attempt-2`, `mine-attempt-3`."""
    if run_dir is None:
        return None
    stem = run_dir.name.rpartition("-attempt-")[0] or run_dir.name
    return run_dir.with_name(f"{stem}-attempt-{number}")


def _checkpoint(attempt: _Attempt, proposal: Retry) -> Path | None:
    """Find a checkpoint to resume from, for Trainer scripts that know the flag."""
    inputs, ran = attempt.prepared.inputs, attempt.ended.evidence.job
    if not proposal.resumes or not inputs.script.mentions("resume_from_checkpoint"):
        return None
    directory = inputs.script.output_dir(inputs.job.script_args)
    return newest_whole(directory.absolute(), ran.world_size, ran.stage)
