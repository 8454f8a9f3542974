"""The configurations of a job that can be measured: all have the same global batch."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO
from zlaunch.config.resolve.compose import compose
from zlaunch.dsconfig.batch import RankGroups, rank_groups
from zlaunch.errors import Refused, Unavailable, WrongUsage
from zlaunch.estimate.candidates import sizes
from zlaunch.estimate.changes import Options
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.query import Estimate, Rejected, Training
from zlaunch.estimate.search import shared_batch
from zlaunch.estimate.strategies import Strategy, available, fastest_first, job_with
from zlaunch.frozen import dataclass
from zlaunch.job.script import Handover, Script, setting_of
from zlaunch.job.spec import JobSpec
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan, refuse_without_deepspeed
from zlaunch.launch.memory import query_for
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.prepare import prepare
from zlaunch.launch.reporter import Reporter
from zlaunch.units import whole

_FEEDS: Final = ("train_micro_batch_size_per_gpu", "training_data")
"""Words of a script whose batches have the size that the ds_config names."""
_Result = Estimate | Rejected | None
"""What is predicted of a configuration; None if nothing is."""


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
        """The predicted time of a step at best, whatever another job took here; 0 without a prediction."""
        if self.estimate is None or self.estimate.speed is None:
            return 0.0
        roofline = self.estimate.speed.roofline
        return roofline.likely[0] / roofline.correction


@dataclass(frozen=True)
class TrialJobs:
    """The configurations of a job, the best first, and those that DeepSpeed or the memory does not allow."""

    facts: JobFacts
    listed: Sequence[TrialJob]
    refused: Sequence[tuple[str, str]]
    per_rank: int | None
    """Samples of a rank in a step."""
    why_not_predicted: str = ""
    """Why configurations have no estimate."""


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
    results, why_not_predicted = _estimated(facts, listed)
    for trial, result in zip(listed, results, strict=True):
        if (why := _cannot_work(result)) is not None:
            refused.append((trial.name, why))
        elif isinstance(result, Estimate):
            trials.append(replace(trial, estimate=result))
        else:
            trials.append(trial)
    pieces = [trial.micro_batch * (trial.grad_accum or 1) for trial in listed if trial.micro_batch]
    return TrialJobs(facts, _best_first(trials), refused, next(iter(pieces), None), why_not_predicted)


def _shared(global_batch: int, facts: JobFacts) -> int:
    if not _can_split(facts.script):
        message = f"`--global-batch`: {facts.script.path.name} decides its batches itself"
        raise WrongUsage(message, "give it its own argument after `--`")
    return shared_batch(global_batch, _groups(facts))


def _groups(facts: JobFacts) -> RankGroups:
    return rank_groups(compose(facts.job, facts.ds_config).config(), facts.topology.world_size)


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


def _estimated(facts: JobFacts, trials: Sequence[TrialJob]) -> tuple[Sequence[_Result], str]:
    """Predict all in closed form, or say why some are not; none are if one has an unknown part."""
    queries = []
    for trial in trials:
        query = query_for(replace(facts, job=trial.job))
        if query is None:
            return [None] * len(trials), "the model of the script is unknown"
        if why := _unknown_part(query.training):
            return [None] * len(trials), why
        queries.append(query)
    with Estimator(python=facts.job.python) as estimator:
        results = estimator.closed_form(queries)
    rejected = [result.error for result in results if isinstance(result, Rejected)]
    return results, next((error.message for error in rejected if not isinstance(error, Refused)), "")


def _unknown_part(training: Training) -> str:
    """Name what an estimate would leave out or assume; empty if it is about this very job."""
    if training.assumes_length:
        return "the length of the sequences is unknown"
    for setting in (training.split, *training.uncounted):
        if setting is not None:
            return f"{setting.setting} {setting.does}"
    return ""


def _cannot_work(result: _Result) -> str | None:
    if isinstance(result, Estimate) and result.fit is Fit.NO:
        return f"it does not fit: {'; '.join(result.verdict.reasons)}"
    if isinstance(result, Rejected) and isinstance(result.error, Refused):
        return result.findings[0].message
    return None


def _best_first(trials: Sequence[TrialJob]) -> list[TrialJob]:
    order = [trials[number] for number in fastest_first({n: t.seconds for n, t in enumerate(trials)})]
    first_of = {trial.strategy: trial for trial in reversed(order)}
    return [
        *(trial for trial in order if first_of[trial.strategy] is trial),
        *(trial for trial in order if first_of[trial.strategy] is not trial),
    ]
