"""What was found out about one job: what it takes, or why it cannot work."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zlaunch.errors import Finding, Refused, Severity, Unavailable, ZlaunchError
from zlaunch.fit import Fit, Need, Site, Verdict, judge
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
    remarks: tuple[Finding, ...] = ()
    """What the numbers leave out, and what they say of a run that resumes this one."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Gather what is to be said besides the numbers."""
        return (*self.question.remarks, *self.settled.warnings, *self.remarks)

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
    """Why a job cannot work at all, or why nobody can tell."""

    question: Question
    findings: tuple[Finding, ...]
    unknown: Unavailable | None = None
    """What keeps us from knowing."""

    @property
    def error(self) -> ZlaunchError:
        """Say what the program ends with if this is all that it was asked for."""
        return self.unknown or Refused(self.findings)


def refusal(question: Question, error: ZlaunchError) -> Refusal:
    """Make an answer of an error."""
    if isinstance(error, Refused):
        return Refusal(question, error.findings)
    unknown = error if isinstance(error, Unavailable) else Unavailable(error.message, error.hint)
    return Refusal(
        question, (Finding("cannot-tell", error.message, error.hint, severity=Severity.ADVICE),), unknown
    )


def remarks_on(forecast: Forecast, site: Site) -> Iterator[Finding]:
    """Say what a forecast does not count, and whether the run could be resumed from its checkpoint."""
    for note in forecast.notes:
        yield Finding("counted-otherwise", note, severity=Severity.ADVICE)
    resume = forecast.resume
    if resume is None:
        return
    if resume.error is not None:
        message = f"its checkpoint could not be resumed: DeepSpeed gives up: {resume.error}"
        yield Finding("cannot-resume", message, "train to the end in one run", severity=Severity.ADVICE)
    elif resume.why_not_rehearsed is not None:
        message = f"resuming its checkpoint could not be rehearsed: {resume.why_not_rehearsed}"
        yield Finding("counted-otherwise", message, severity=Severity.ADVICE)
    elif judge(forecast, site).fit is not (resumed := judge(forecast.resumed(), site)).fit:
        message = f"resuming its checkpoint takes more: {resumed.fit.value}: {'; '.join(resumed.reasons)}"
        yield Finding("cannot-resume", message, severity=Severity.ADVICE)


def is_fit(answer: Answer | Refusal) -> bool:
    """Whether a job fits for sure."""
    return isinstance(answer, Answer) and answer.verdict.fit is Fit.YES


def refuse_if_none_works(answers: Sequence[Answer | Refusal]) -> None:
    """Raise Refused, with the fewest reasons, or Unavailable, if none of several jobs can work."""
    refusals = [one for one in answers if isinstance(one, Refusal)]
    if refusals and len(refusals) == len(answers):
        raise min(refusals, key=lambda one: len(one.findings)).error
