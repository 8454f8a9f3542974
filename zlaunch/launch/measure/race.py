"""Run configurations in turn, and those again that may still win.

They alternate, so that a machine that becomes slower decides nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Final

from zlaunch.errors import Refused, ZlaunchError
from zlaunch.frozen import dataclass
from zlaunch.launch.measure.runner import Sample
from zlaunch.launch.measure.trials import TrialJob
from zlaunch.units import brief, duration, measured_time, plural

MOST_RUNS: Final = 3
"""Runs of each configuration."""
CONTENDERS: Final[Mapping[int, float]] = {1: 3.0, 2: 1.1}
"""Runs of a configuration → how many times the best time its fastest run may take, to be run again.

Other programs on a machine may slow down a whole run.
"""
MOST_FAILURES: Final = 3
"""If so many fail, and nothing else has run, the others are not tried."""
_CONTINUES: Final = "the same command continues"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is measured."""

    top: int = 3
    """Configurations that run, before the micro-batches beside the fastest."""
    steps: int = 20
    seconds: float = 900.0
    """Time for all runs."""


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
    why_not_predicted: str = ""
    """Why configurations have no estimate."""

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
        self._failed_again: dict[str, str] = {}
        """What ran once, and why it failed when it was repeated: it is not tried a third time."""
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
        passed += [(name, f"it ran, but not again: {why}") for name, why in self._failed_again.items()]
        return Measurement(measured, passed, why, is_interrupted, self._num_kept, left, self._limits)

    def _all_samples(self) -> list[Sample]:
        return [*chain.from_iterable(self._samples.values())]

    def _fails_anyway(self) -> bool:
        """Whether the script seems to fail with every configuration."""
        samples = self._all_samples()
        failed = [sample for sample in samples if sample.failure is not None and not sample.ran_out_of_memory]
        return len(failed) >= MOST_FAILURES and len(failed) == len(samples)

    def _try(self, trial: TrialJob) -> None:
        self._round = [other for other in self._round if other is not trial]
        left = self._limits.seconds - (self._clock() - self._began)
        sample = self._sample(trial, left)
        if sample.failure is not None and not sample.ran_out_of_memory and self._succeeded(trial):
            self._failed_again[trial.name] = sample.failure
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
        """Pass over a configuration that failed, or trained something other than the others did."""
        samples = self._samples[trial.name]
        batches = [sample.batch for sample in self._all_samples() if sample.batch]
        own = [sample.batch for sample in samples if sample.batch]
        is_too_large = any(sample.ran_out_of_memory for sample in samples)
        if is_too_large or (samples and not self._succeeded(trial)):
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
        """Choose: the best configurations, the micro-batches beside the fastest, then contenders again."""
        measured = self._measured()
        best = min(measured, key=lambda one: one.seconds, default=None)
        proposed: list[TrialJob] = []
        if best is not None:
            proposed = self._beside(best.trial)
        if len(measured) < self._limits.top:
            proposed = [*self._trials]
        for trial in proposed:
            if not self._samples[trial.name] and self._may_win(trial, best):
                return trial
        if best is None:
            return None
        if not self._round:
            self._round = self._contenders(measured, best.seconds)
        return next(iter(self._round), None)

    def _beside(self, fastest: TrialJob) -> list[TrialJob]:
        """List the next larger and the next smaller micro-batch of a stage and offload."""
        same = [trial for trial in self._trials if trial.strategy == fastest.strategy]
        same.sort(key=lambda trial: trial.micro_batch or 0)
        place = same.index(fastest)
        return [*same[max(0, place - 1) : place], *same[place + 1 : place + 2]]

    def _contenders(self, measured: Sequence[MeasuredTrial], best: float) -> list[TrialJob]:
        """List what another round runs; those that an interrupted round has left come first."""
        contenders = [one for one in measured if one.fastest <= best * CONTENDERS[min(len(one.samples), 2)]]
        if len(contenders) < 2:
            return []
        contenders = [one for one in contenders if one.trial.name not in self._failed_again]
        fewest = min((len(one.samples) for one in contenders), default=MOST_RUNS)
        if fewest >= MOST_RUNS:
            return []
        return [one.trial for one in contenders if len(one.samples) == fewest]

    def _may_win(self, trial: TrialJob, best: MeasuredTrial | None) -> bool:
        """Whether it may run, and be faster than the best; otherwise say why not."""
        if trial.name in self._passed:
            return False
        if best is not None and trial.least_seconds > best.seconds:
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
        took = [sample.took for sample in self._all_samples()]
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
