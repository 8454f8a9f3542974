"""What was found out about one job: what it takes, or why it cannot work."""

from collections.abc import Sequence
from dataclasses import dataclass

from zlaunch.errors import Finding, Refused
from zlaunch.fit import Fit, Need, Verdict
from zlaunch.memory.forecast import Forecast
from zlaunch.memory.roofline import Roofline
from zlaunch.memory.traffic import Traffic
from zlaunch.memory.workload import Workload
from zlaunch.settlement import Settled
from zlaunch.workloads import Question


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a job is, by data sheets and by what published runs reach of them."""

    traffic: Traffic
    roofline: Roofline


@dataclass(frozen=True)
class Answer:
    """What was found out about one job that DeepSpeed accepts."""

    question: Question
    settled: Settled
    workload: Workload
    forecast: Forecast
    need: Need
    verdict: Verdict
    speed: Speed | None = None
    """None if nobody knows the speed of the GPU."""

    @property
    def seconds(self) -> float | None:
        """Say how long a step takes, in the middle of what is likely."""
        return None if self.speed is None else self.speed.roofline.middle

    @property
    def seconds_per_token(self) -> float | None:
        """Say the same for one token, so that steps of different lengths can be compared."""
        if self.speed is None or self.seconds is None:
            return None
        roofline = self.speed.roofline
        return self.seconds / (roofline.tokens_per_second * roofline.seconds)


@dataclass(frozen=True)
class Refusal:
    """Why a job cannot work at all."""

    question: Question
    findings: tuple[Finding, ...]


def is_fit(answer: Answer | Refusal) -> bool:
    """Whether a job fits for sure."""
    return isinstance(answer, Answer) and answer.verdict.fit is Fit.YES


def refuse_if_none_works(answers: Sequence[Answer | Refusal]) -> None:
    """Raise Refused, with the fewest reasons, if none of several jobs can work."""
    refusals = [one for one in answers if isinstance(one, Refusal)]
    if refusals and len(refusals) == len(answers):
        raise Refused(min(refusals, key=lambda one: len(one.findings)).findings)
