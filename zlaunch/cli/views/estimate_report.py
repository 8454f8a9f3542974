"""An estimate, asked for and shown: the ladder of a job, or one job in all its phases."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from zlaunch import console
from zlaunch.cli.views import estimate_json, estimate_text, strategies
from zlaunch.cli.views.memory_plot import draw, refuse_without_matplotlib
from zlaunch.errors import ExitStatus, WrongUsage
from zlaunch.estimate.changes import ChangeEffect, try_changes, worth_saying
from zlaunch.estimate.fit import Cluster, Fit
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected, refuse_if_none_works
from zlaunch.estimate.remedies import Remedy, remedies
from zlaunch.estimate.run import estimate_by_rehearsal, estimate_closed_form, rehearser
from zlaunch.estimate.strategies import STRATEGIES, apply_strategy, fastest_that_fits
from zlaunch.files import check_new, write_new
from zlaunch.units import plural

NAME_A_GPU = "no GPU is here to compare with; name those you mean: `--on 8xH100-80GB`"


@dataclass(frozen=True)
class EstimateView:
    """How an estimate is to be shown."""

    as_json: bool = False
    levers: bool = True
    """Whether changes to one job are tried."""
    plot: Path | None = None


def report(question: EstimateQuery, site: Cluster, wishes: EstimateView) -> ExitStatus:
    """Answer the question, show the answer, and say what the program exits with."""
    job = question.job
    is_one = not (job.stage is None and job.offload is None and job.ds_config is None)
    if wishes.plot is not None:
        _refuse_plot(wishes.plot, is_one)
    with Asking(site) as ask:
        status = (_one if is_one else _ladder)(question, ask, wishes)
    if site.gpu is None:
        console.say(NAME_A_GPU)
    return status


def _refuse_plot(file: Path, is_one: bool) -> None:
    """Raise what keeps a picture from being drawn before anything is worked out for it."""
    if not is_one:
        raise WrongUsage("`--plot` draws one job, and this asks for all of them", "add `--stage 2`")
    refuse_without_matplotlib()
    check_new(file)


class Asking:
    """Asks about jobs on a site, one after the other, and lets the person see how many are left."""

    def __init__(self, site: Cluster) -> None:
        """Start nothing before the first question."""
        self.site = site
        self._rehearser = rehearser()

    def __enter__(self) -> "Asking":
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the program that rehearses."""
        self._rehearser.close()

    def __call__(self, questions: Sequence[EstimateQuery], what: str = "job") -> list[Estimate | Rejected]:
        """Rehearse jobs; `what` they are is shown meanwhile."""
        is_one = len(questions) == 1  # of which two ranks may be rehearsed
        progress, milestone = console.ProgressLine(), f"rehearsing {plural(len(questions), what)}"

        def show(done: int, total: int) -> None:
            if done < total:
                progress.show(milestone, f"({done} of {plural(total, 'rank') if is_one else total} done)")

        try:
            return estimate_by_rehearsal(questions, self.site, show, self._rehearser)
        finally:
            progress.clear()


def _ladder(question: EstimateQuery, ask: Asking, wishes: EstimateView) -> ExitStatus:
    site = ask.site
    answers = ask([apply_strategy(question, rung) for rung in STRATEGIES])
    refuse_if_none_works(answers)
    known = [one for one in answers if isinstance(one, Estimate)]
    chosen = fastest_that_fits(answers)
    if wishes.as_json:
        console.data(json.dumps(estimate_json.of_ladder(question, site, answers, chosen), indent=2))
    else:
        _show(strategies.ladder_lines(known[0], answers, chosen, site))
        if site.gpu is not None and all(answer.verdict.fit is Fit.NO for answer in known):
            _show(strategies.nothing_fits(_remedies(question, ask) if wishes.levers else None))
        console.say_findings(
            dict.fromkeys([*question.remarks, *(remark for one in known for remark in one.remarks)])
        )
    fits = {answer.verdict.fit for answer in known}
    return next(fit for fit in (Fit.YES, Fit.TIGHT, Fit.UNKNOWN, Fit.NO) if fit in fits).status


def _remedies(question: EstimateQuery, ask: Asking) -> list[Remedy]:
    """Look for changes that let a job fit on one rung or another."""
    return remedies(question, STRATEGIES, lambda some: estimate_closed_form(some, ask.site), ask)


def _one(question: EstimateQuery, ask: Asking, wishes: EstimateView) -> ExitStatus:
    """Show the answer as soon as it is there, and then what each change does."""
    (answer,) = ask([question])
    if isinstance(answer, Rejected):
        raise answer.error
    if wishes.as_json:
        effects = _effects(answer, ask) if wishes.levers else None
        console.data(json.dumps(estimate_json.of_one(answer, ask.site, effects), indent=2))
    else:
        _show(estimate_text.answer_lines(answer, ask.site))
        console.say_findings(answer.findings)
    if wishes.plot is not None:
        _plot(answer, ask.site, wishes.plot)
    if wishes.levers and not wishes.as_json:
        _show(estimate_text.change_lines(answer, _effects(answer, ask)))
    return answer.verdict.fit.status


def _effects(answer: Estimate, ask: Asking) -> list[ChangeEffect]:
    """Try every lever."""
    effects = try_changes(answer, lambda questions: ask(questions, "change"))
    return worth_saying(effects, answer.need.allocated)


def _plot(answer: Estimate, site: Cluster, file: Path) -> None:
    limit = None if site.gpu is None else site.gpu.total_bytes
    write_new(file, draw(answer.forecast.curve, estimate_text.title(answer), limit))
    console.say(f"wrote {file}")


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        console.data(line)
