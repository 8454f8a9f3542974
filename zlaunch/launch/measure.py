"""Measure the best few configurations of a script: run each for some steps on this machine, in turn.

All have the same global batch. They are run as by `zlaunch train`, and alternate, so that a machine that
becomes slower decides nothing. What was measured is kept, so that the same question continues where it
stopped.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, cast

from zlaunch import __version__
from zlaunch.config.resolve.autos import ACCUMULATION, MICRO
from zlaunch.errors import Refused, Unavailable, WrongUsage, ZlaunchError
from zlaunch.estimate.candidates import sizes
from zlaunch.estimate.changes import Options
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.forecast_cache import PACKAGES
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected
from zlaunch.estimate.strategies import Strategy, available, fastest_first, job_with
from zlaunch.files import cache_directory, write_whole
from zlaunch.hosts.adapters import adapter_of
from zlaunch.job.script import Handover, Script, setting_of
from zlaunch.job.spec import JobSpec, RunOptions
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan, refuse_without_deepspeed
from zlaunch.launch.memory import query_for
from zlaunch.launch.monitoring.progress import Progress
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.prepare import prepare
from zlaunch.launch.reporter import Reporter
from zlaunch.launch.run import run
from zlaunch.launch.rundir_writer import file_sha256
from zlaunch.process import heed_signals, signals_noted
from zlaunch.resume.restart import OUT_OF_MEMORY
from zlaunch.resume.save_plan import OUTPUT
from zlaunch.rundir.control import write_stop
from zlaunch.rundir.layout import RUNS, RunDir
from zlaunch.runs.memory import compare_with_forecast
from zlaunch.runs.run import Run, State
from zlaunch.runs.step_time import timed_lines
from zlaunch.units import brief, duration, measured_time, plural, whole

LEAST_STEPS: Final = 5
"""Timed steps without which a run says nothing; the first two are a warm-up."""
MOST_RUNS: Final = 3
"""Runs of each configuration."""
CONTENDERS: Final[Mapping[int, float]] = {1: 3.0, 2: 1.1}
"""Runs of a configuration → how many times the best time its fastest run may take, to be run again.

Other programs on a machine may slow down a whole run.
"""
EXTREME: Final = 0.2
"""Share of the steps of a run that is left out on either side: the fastest, and the slowest."""

MOST_FAILURES: Final = 3
"""If so many fail, and nothing else has run, the others are not tried."""

_CONTINUES: Final = "the same command continues"
_STOPPER: Final = "zlaunch plan --measure"
_QUIET: Final = ("WANDB_MODE=disabled", "COMET_MODE=disabled", "DISABLE_MLFLOW_INTEGRATION=true")
"""Trackers get none of these runs."""
_FEEDS: Final = ("train_micro_batch_size_per_gpu", "training_data")
"""Words of a script whose batches have the size that the ds_config names."""
_SUFFIX: Final = ".measured.json"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is measured."""

    top: int = 3
    """Configurations that run."""
    steps: int = 20
    seconds: float = 900.0
    """Time for all runs."""


@dataclass(frozen=True)
class TrialJob:
    """A configuration that can be run, and what is predicted of it."""

    strategy: Strategy
    options: Options
    """What it changes about the job."""
    job: JobSpec
    micro_batch: int | None = None
    """None if only the script knows."""
    grad_accum: int | None = None
    estimate: Estimate | None = None

    @property
    def name(self) -> str:
        """Its options, as they are typed."""
        return str(self.options)

    @property
    def seconds(self) -> float | None:
        """The predicted time of a step: the middle of the likely range."""
        if self.estimate is None:
            return None
        return self.estimate.seconds

    @property
    def least_seconds(self) -> float:
        """The predicted time of a step at best; 0 without a prediction."""
        if self.estimate is None or self.estimate.speed is None:
            return 0.0
        return self.estimate.speed.roofline.likely[0]


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


@dataclass(frozen=True)
class MeasuredTrial:
    """A configuration that ran."""

    trial: TrialJob
    samples: Sequence[Sample]

    @property
    def seconds(self) -> float:
        """The median of all runs."""
        return median(sample.seconds for sample in self.samples if sample.seconds is not None)

    @property
    def fastest(self) -> float:
        """The fastest run, which was disturbed least."""
        return min(sample.seconds for sample in self.samples if sample.seconds is not None)

    @property
    def spread(self) -> float:
        """How much longer a step took in the slowest run than in the fastest, as a fraction of that."""
        return max(sample.seconds for sample in self.samples if sample.seconds is not None) / self.fastest - 1

    @property
    def memory(self) -> int | None:
        """The most of all runs."""
        return max((sample.memory for sample in self.samples if sample.memory is not None), default=None)

    @property
    def predicted_memory(self) -> int | None:
        """What was predicted of the same."""
        return self.samples[-1].predicted_memory

    @property
    def provenance(self) -> str:
        """How it is known."""
        return f"measured: {measured_time(self.seconds)} a step, {plural(len(self.samples), 'run')}"


@dataclass(frozen=True)
class Measurement:
    """What ran, the fastest first, and what did not."""

    measured: Sequence[MeasuredTrial]
    passed_over: Sequence[tuple[str, str]]
    """Options, and why they cannot be used, or did not run."""
    why_ended: str
    is_interrupted: bool
    num_kept: int
    """Runs of an earlier measurement."""
    num_left: int
    """Configurations that were not run."""
    limits: Limits

    @property
    def spread(self) -> float:
        """The largest spread of the runs of a configuration."""
        return max((one.spread for one in self.measured), default=0.0)

    @property
    def is_close(self) -> bool:
        """Whether the runs differ too much to tell which of the first two is faster."""
        if len(self.measured) < 2:
            return False
        first, second, *_ = self.measured
        return second.fastest < max(sample.seconds or 0.0 for sample in first.samples)


Runner = Callable[[TrialJob, float], Sample]
"""Runs a configuration for at most some seconds."""


class Race:
    """Runs configurations in the order of their number, and those that may still win again."""

    def __init__(
        self,
        trials: Sequence[TrialJob],
        limits: Limits,
        runner: Runner,
        kept: Mapping[str, Sequence[Sample]],
        keep: Callable[[Mapping[str, Sequence[Sample]]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`kept` are runs of an earlier measurement, by options; `keep` gets all runs after each one."""
        self._trials = trials
        self._limits = limits
        self._runner = runner
        self._keep = keep
        self._clock = clock
        self._began = clock()
        self._samples = {trial.name: list(kept.get(trial.name, ())) for trial in trials}
        self._num_kept = sum(map(len, self._samples.values()))
        self._passed: dict[str, str] = {}
        self._failed_again: set[str] = set()
        """What ran once, and failed when it was repeated: it is not tried a third time."""
        self._round: list[TrialJob] = []
        """What is run again, until each had its turn."""
        for trial in trials:
            self._judge(trial)

    def run(self) -> Measurement:
        """Run until nothing that is left can win, or the budget or the user's patience is at its end."""
        why, is_interrupted = "", False
        try:
            while (trial := self._next()) is not None:
                if self._is_too_late(trial):
                    budget = duration(self._limits.seconds)
                    why = f"one more run would exceed the budget of {budget}; {_CONTINUES}"
                    break
                if self._fails_anyway():
                    why = f"the first {MOST_FAILURES} that ran failed, for other reasons than their memory"
                    break
                self._try(trial)
        except KeyboardInterrupt:
            why, is_interrupted = f"it was interrupted; {_CONTINUES}", True
        measured = sorted(self._measured(), key=lambda one: one.seconds)
        done = {one.trial.name for one in measured} | {*self._passed}
        left = sum(trial.name not in done for trial in self._trials)
        passed = list(self._passed.items())
        return Measurement(measured, passed, why, is_interrupted, self._num_kept, left, self._limits)

    def _fails_anyway(self) -> bool:
        """Whether the script seems to fail with every configuration."""
        samples = [sample for samples in self._samples.values() for sample in samples]
        failed = [sample for sample in samples if sample.failure is not None and not sample.ran_out_of_memory]
        return len(failed) >= MOST_FAILURES and len(failed) == len(samples)

    def _try(self, trial: TrialJob) -> None:
        self._round = [other for other in self._round if other is not trial]
        left = self._limits.seconds - (self._clock() - self._began)
        sample = self._sample(trial, left)
        if sample.failure is not None and self._succeeded(trial):
            self._failed_again.add(trial.name)
            return
        self._samples[trial.name].append(sample)
        self._keep(
            {name: kept for name, samples in self._samples.items() if (kept := _worth_keeping(samples))}
        )
        self._judge(trial)

    def _sample(self, trial: TrialJob, seconds: float) -> Sample:
        began = self._clock()
        try:
            return self._runner(trial, seconds)
        except Refused as error:
            failure = error.findings[0].message
        except ZlaunchError as error:
            failure = error.message
        return Sample("", self._clock() - began, failure=failure)

    def _judge(self, trial: TrialJob) -> None:
        """Pass over a configuration that failed, or trained something else than the others."""
        samples = self._samples[trial.name]
        batches = [sample.batch for known in self._samples.values() for sample in known if sample.batch]
        own = [sample.batch for sample in samples if sample.batch]
        if samples and not self._succeeded(trial):
            self._passed[trial.name] = str(samples[-1].failure)
        elif own and own[0] != batches[0]:
            self._passed[trial.name] = f"it trained with a batch of {own[0]}, not of {batches[0]}"

    def _succeeded(self, trial: TrialJob) -> bool:
        return any(sample.seconds is not None for sample in self._samples[trial.name])

    def _measured(self) -> list[MeasuredTrial]:
        return [
            MeasuredTrial(trial, self._samples[trial.name])
            for trial in self._trials
            if self._succeeded(trial) and trial.name not in self._passed
        ]

    def _next(self) -> TrialJob | None:
        """Choose what to run: at first the best configurations, then those again that may be the fastest."""
        measured = self._measured()
        best = min((one.seconds for one in measured), default=None)
        if len(measured) < self._limits.top:
            for trial in self._trials:
                if not self._samples[trial.name] and self._may_win(trial, best):
                    return trial
        if best is None:
            return None
        if not self._round:
            self._round = self._contenders(measured, best)
        return next(iter(self._round), None)

    def _contenders(self, measured: Sequence[MeasuredTrial], best: float) -> list[TrialJob]:
        """List what another round runs; those that an interrupted round has left come first."""
        contenders = [one for one in measured if one.fastest <= best * CONTENDERS[min(len(one.samples), 2)]]
        fewest = min(len(one.samples) for one in contenders)
        if len(contenders) < 2 or fewest >= MOST_RUNS:
            return []
        return [
            one.trial
            for one in contenders
            if len(one.samples) == fewest and one.trial.name not in self._failed_again
        ]

    def _may_win(self, trial: TrialJob, best: float | None) -> bool:
        """Whether it may run, and be faster than the best; otherwise say why not."""
        if trial.name in self._passed:
            return False
        if best is not None and trial.least_seconds > best:
            at_best = brief(trial.least_seconds)
            self._passed[trial.name] = f"it cannot win: {at_best} a step are predicted at best"
            return False
        for other in self._trials:
            ran_out = any(sample.ran_out_of_memory for sample in self._samples[other.name])
            if ran_out and _needs_more(trial, other):
                self._passed[trial.name] = f"`{other.name}` ran out of memory, and this needs no less"
                return False
        return True

    def _is_too_late(self, trial: TrialJob) -> bool:
        took = [sample.took for samples in self._samples.values() for sample in samples]
        own = [sample.took for sample in self._samples[trial.name]]
        expected = max(own or took, default=0.0)
        return self._clock() - self._began + expected > self._limits.seconds


def _worth_keeping(samples: Sequence[Sample]) -> list[Sample]:
    """Leave out failures that may be different another time: only what ran out of memory will again."""
    return [sample for sample in samples if sample.failure is None or sample.ran_out_of_memory]


def _needs_more(trial: TrialJob, other: TrialJob) -> bool:
    if trial.micro_batch is None or other.micro_batch is None:
        return False
    return trial.strategy == other.strategy and trial.micro_batch >= other.micro_batch


@dataclass(frozen=True)
class TrialJobs:
    """The configurations of a job, the best first, and those that DeepSpeed or the memory does not allow."""

    facts: JobFacts
    listed: Sequence[TrialJob]
    refused: Sequence[tuple[str, str]]
    per_rank: int | None
    """Samples of a rank in a step."""


def find_trials(job: JobSpec, reporter: Reporter, global_batch: int | None) -> TrialJobs:
    """List the configurations of a job with one global batch; raise what makes the job impossible."""
    options = LaunchOptions(beside=Path(tempfile.gettempdir()), dry_run=True)
    facts = prepare(job, options, reporter)
    refuse_without_deepspeed(facts.job, facts.script, "measure")
    if facts.script.handover is Handover.NOT:
        message = f"{facts.job.shown_name} brings its own ds_config, so there is nothing to choose"
        raise Unavailable(message, "let it take the ds_config that it is given")
    return trials_of(facts, global_batch)


def trials_of(facts: JobFacts, global_batch: int | None) -> TrialJobs:
    """List the configurations of a job: those that are predicted to be faster first, the best of each stage.

    Raise WrongUsage for a batch that the script does not let zlaunch choose, Refused if none can work.
    """
    wanted = None
    if global_batch is not None:
        wanted = _shared(global_batch, facts)
    listed: list[TrialJob] = []
    refused: list[tuple[str, str]] = []
    errors: list[Refused] = []
    for strategy in available(facts.job):
        try:
            plan = make_plan(replace(facts, job=job_with(facts.job, strategy, has_base=False)))
        except Refused as error:
            refused.append((str(strategy.options), error.findings[0].message))
            errors.append(error)
            continue
        listed += _splits(plan, strategy, wanted)
    if not listed:
        raise errors[0]
    trials = []
    for trial, estimate in _estimated(facts, listed):
        if isinstance(estimate, str):
            refused.append((trial.name, estimate))
        else:
            trials.append(replace(trial, estimate=estimate))
    pieces = [trial.micro_batch * (trial.grad_accum or 1) for trial in listed if trial.micro_batch]
    return TrialJobs(facts, _best_first(trials), refused, next(iter(pieces), None))


def _shared(global_batch: int, facts: JobFacts) -> int:
    ranks = facts.topology.world_size
    if not _can_split(facts.script):
        message = f"`--global-batch`: {facts.script.path.name} decides its batches itself"
        raise WrongUsage(message, "give it its own argument after `--`")
    if global_batch % ranks:
        hint = f"`--global-batch {-(-global_batch // ranks) * ranks}` can"
        message = f"`--global-batch {global_batch}` cannot be shared among {plural(ranks, 'rank')}"
        raise WrongUsage(message, hint)
    return global_batch // ranks


def _can_split(script: Script) -> bool:
    """Whether zlaunch can change the micro-batches that are really fed."""
    setting = setting_of(script.interface, script.handover)
    return setting == "argument" or (setting == "key" and any(map(script.mentions, _FEEDS)))


def _splits(plan: LaunchPlan, strategy: Strategy, wanted: int | None) -> Iterator[TrialJob]:
    """Cut the batch of a rank into micro-batches, the largest first."""
    job, script = plan.facts.job, plan.script
    setting = setting_of(script.interface, script.handover)
    micro, pieces = whole(plan.values[MICRO]), whole(plan.values[ACCUMULATION])
    if micro is None or pieces is None or not _can_split(script):
        yield TrialJob(strategy, strategy.options, job, micro, pieces)
        return
    per_rank = wanted or micro * pieces
    for size in sizes(per_rank)[::-1]:
        batch = Options(micro_batch=size, grad_accum=per_rank // size)
        changed = batch.apply(job, setting)
        assert changed is not None, "the setting is known"
        yield TrialJob(strategy, strategy.options | batch, changed, size, per_rank // size)


def _estimated(
    facts: JobFacts, trials: Sequence[TrialJob]
) -> Iterator[tuple[TrialJob, Estimate | str | None]]:
    """Predict each in closed form; None if nothing is known, a reason if it cannot work."""
    queries = [query_for(replace(facts, job=trial.job)) for trial in trials]
    known = [query for query in queries if query is not None and _is_known(query)]
    if len(known) < len(queries):
        yield from ((trial, None) for trial in trials)
        return
    with Estimator(python=facts.job.python) as estimator:
        results = estimator.closed_form(known)
    for trial, result in zip(trials, results, strict=True):
        if isinstance(result, Estimate) and result.fit is not Fit.NO:
            yield trial, result
        elif isinstance(result, Estimate):
            yield trial, f"it does not fit: {'; '.join(result.verdict.reasons)}"
        elif isinstance(result, Rejected) and isinstance(result.error, Refused):
            yield trial, result.findings[0].message
        else:
            yield trial, None


def _is_known(query: EstimateQuery) -> bool:
    """Whether an estimate is about this job: the length of its sequences, and all that it does."""
    training = query.training
    return not (training.assumes_length or training.uncounted or training.split)


def _best_first(trials: Sequence[TrialJob]) -> list[TrialJob]:
    order = [trials[number] for number in fastest_first({n: t.seconds for n, t in enumerate(trials)})]
    first_of = {trial.strategy: trial for trial in reversed(order)}
    return [
        *(trial for trial in order if first_of[trial.strategy] is trial),
        *(trial for trial in order if first_of[trial.strategy] is not trial),
    ]


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

    def starting(self, plan: LaunchPlan, shows_output: bool) -> None:
        self._layout = plan.layout
        self._reporter.starting(plan, shows_output)

    def progressed(self, progress: Progress, world_size: int, rss_bytes: int | None) -> None:
        self._reporter.progressed(progress, world_size, rss_bytes)
        taken = progress.step - int(progress.first.get("first_step") or 0)
        is_late = time.monotonic() > self._deadline
        if self.has_ended_job or self._layout is None or not (taken >= self._steps or is_late):
            return
        self.has_ended_job, self.is_late = True, taken < self._steps
        with contextlib.suppress(OSError):
            write_stop(self._layout, signal.SIGTERM, _STOPPER)


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
            failure += ", when the budget was used up"
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


class KeptSamples:
    """A file with the runs of one question, in the cache of this user."""

    def __init__(self, trials: TrialJobs, limits: Limits) -> None:
        """Find the file; nothing is kept if the cache is off."""
        self._file: Path | None = None
        directory = cache_directory(os.environ)
        if directory is not None:
            self._file = directory / f"{_question(trials, limits)}{_SUFFIX}"

    def read(self) -> Mapping[str, Sequence[Sample]]:
        """Return the runs so far, by options."""
        kept: Mapping[str, Sequence[Sample]] = {}
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError):
                kept = adapter_of(dict[str, list[Sample]]).validate_json(self._file.read_bytes())
        return kept

    def keep(self, samples: Mapping[str, Sequence[Sample]]) -> None:
        """Write all runs."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            written = {name: [asdict(sample) for sample in runs] for name, runs in samples.items()}
            write_whole(self._file, json.dumps(written))


def _question(trials: TrialJobs, limits: Limits) -> str:
    """Hash everything that a measurement depends on."""
    facts, job = trials.facts, trials.facts.job
    depends = {
        "zlaunch": __version__,
        "program": [file_sha256(job.script), job.module, *job.args.words],
        "options": [job.precision, str(job.nvme_dir), list(job.overrides), list(job.env)],
        "packages": facts.python.versions(PACKAGES),
        "python": str(facts.python.executable),
        "machine": asdict(facts.machine),
        "ranks": facts.topology.world_size,
        "steps": limits.steps,
        "samples": trials.per_rank,
    }
    return hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()
