"""Run a configuration for some steps, as by `zlaunch train`, and read what it took."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, cast

from zlaunch.frozen import dataclass
from zlaunch.job.script import Script
from zlaunch.job.spec import JobSpec, RunOptions
from zlaunch.launch.measure.trials import TrialJob
from zlaunch.launch.monitoring.progress import Progress
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.prepare import prepare
from zlaunch.launch.reporter import Reporter
from zlaunch.launch.run import run
from zlaunch.process import heed_signals, signals_noted
from zlaunch.resume.restart import OUT_OF_MEMORY
from zlaunch.resume.save_plan import OUTPUT
from zlaunch.rundir.control import MEASURE_COMMAND, write_stop
from zlaunch.rundir.layout import RUNS, RunDir
from zlaunch.runs.memory import compare_with_forecast
from zlaunch.runs.run import Run, State
from zlaunch.runs.step_time import timed_lines

LEAST_STEPS: Final = 5
"""Timed steps without which a run says nothing; the first two are a warm-up."""
EXTREME: Final = 0.2
"""Share of the steps of a run that is left out on either side: the fastest, and the slowest."""
_QUIET: Final = ("WANDB_MODE=disabled", "COMET_MODE=disabled", "DISABLE_MLFLOW_INTEGRATION=true")
"""Trackers get none of these runs."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a configuration."""

    run: str
    """Its directory."""
    took: float
    """Seconds of the whole run."""
    seconds: float | None = None
    """Time of a step: the mean without the fastest and the slowest ones; None if the run failed."""
    num_steps: int = 0
    """Timed steps."""
    memory: int | None = None
    """Bytes of the rank that used most: on its GPU, or of the process if it trained on the CPU."""
    predicted_memory: int | None = None
    failure: str | None = None
    ran_out_of_memory: bool = False
    batch: int | None = None
    """The global batch of its engine."""


class _StepLimit:
    """A reporter that ends a run after its steps, or when its time is over; another one shows the rest."""

    def __init__(self, steps: int, seconds: float, reporter: Reporter) -> None:
        self._steps = steps
        self._reporter = reporter
        self._deadline = time.monotonic() + seconds
        self._layout: RunDir | None = None
        self.has_ended_job = self.is_late = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reporter, name)

    def starting(self, plan: LaunchPlan, shown_ranks: Sequence[int]) -> None:
        self._layout = plan.layout
        self._reporter.starting(plan, shown_ranks)

    def progressed(self, progress: Progress, world_size: int) -> None:
        self._reporter.progressed(progress, world_size)
        taken = progress.step - int(progress.first.get("first_step") or 0)
        is_late = time.monotonic() > self._deadline
        if self.has_ended_job or self._layout is None or not (taken >= self._steps or is_late):
            return
        self.has_ended_job, self.is_late = True, taken < self._steps
        with contextlib.suppress(OSError):
            write_stop(self._layout, signal.SIGTERM, MEASURE_COMMAND)


@dataclass
class TrialRunner:
    """Runs configurations one after the other, each in a directory of its own below one."""

    script: Script
    steps: int
    reporter: Reporter
    begins: Callable[[str], None]
    """Called before each run with what is run."""
    root: Path = field(default_factory=lambda: RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-measure")
    num_runs: int = 0

    def __call__(self, trial: TrialJob, seconds: float) -> Sample:
        """Run one for its steps, or until the seconds are over; raise KeyboardInterrupt if a user ends it."""
        self.num_runs += 1
        self.begins(trial.name)
        began, limit = time.monotonic(), _StepLimit(self.steps, seconds, self.reporter)
        reporter = cast("Reporter", limit)
        layout = RunDir((self.root / f"run-{self.num_runs}").absolute())
        saved = self.root.absolute() / "saved"
        options = LaunchOptions(run_dir=layout.root)
        try:
            with signals_noted() as has_come:
                facts = prepare(self._quiet(trial.job, saved), options, reporter)
                run(replace(facts, estimate=trial.estimate), options, reporter)
                is_interrupted = has_come()
        finally:
            shutil.rmtree(saved, ignore_errors=True)
        measured = Run(layout.root)
        heed_signals()
        if is_interrupted or (measured.state is State.STOPPED and not limit.has_ended_job):
            raise KeyboardInterrupt
        return sample_of(measured, time.monotonic() - began, limit)

    def _quiet(self, job: JobSpec, saved: Path) -> JobSpec:
        """Show and track nothing, restart nothing, and save where it is deleted."""
        flag = self.script.save_flag
        if self.script.takes_trainer_args and not flag:
            flag = OUTPUT
        args = job.args
        if flag:
            args = args.followed_by((flag, str(saved)))
        return replace(
            job,
            args=args,
            env=(*job.env, *_QUIET),
            run_options=RunOptions(show_ranks="none", on_stall="stop"),
        )


def sample_of(measured: Run, took: float, limit: _StepLimit) -> Sample:
    """Read from the records of a run what was measured."""
    lines = timed_lines(measured)
    pools = {pool.name: pool for pool in compare_with_forecast(measured).pools}
    pool = pools.get("GPU, reserved", pools.get("host, resident"))
    sample = Sample(
        os.path.relpath(measured.root),
        took,
        num_steps=len(lines),
        memory=None if pool is None else pool.measured,
        predicted_memory=None if pool is None else pool.predicted,
        batch=measured.program.get("engine", {}).get("train_batch_size"),
    )
    if not limit.has_ended_job and measured.state is not State.FINISHED:
        return replace(sample, **_failure(measured))
    if len(lines) < LEAST_STEPS:
        failure = f"it took too few steps: {len(lines)} after its first two"
        if limit.is_late:
            failure += ", when the budget was used up; a larger `--budget` gives more"
        return replace(sample, failure=failure)
    seconds = sorted(line.seconds for line in lines)
    left_out = int(EXTREME * len(seconds))
    return replace(sample, seconds=fmean(seconds[left_out : len(seconds) - left_out]))


def _failure(failed: Run) -> dict[str, Any]:
    """Say why a run failed, with the first evidence."""
    verdict = failed.verdict
    if verdict is None:
        return {"failure": failed.cause or str(failed.state.value)}
    words = [verdict.cause, *verdict.facts[:1]]
    return {"failure": ": ".join(words), "ran_out_of_memory": verdict.code in OUT_OF_MEMORY}
