"""Show an estimate: a job under every strategy, or one job in all its phases."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from zlaunch import console
from zlaunch.cli.views import estimate_json, estimate_strategies, estimate_text
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.memory_plot import phases_picture, strategies_picture
from zlaunch.cli.views.picture import Picture, check_plot, render
from zlaunch.errors import ExitStatus
from zlaunch.estimate.effects import ChangeEffect, expect_changes, find_remedies, try_changes, worth_saying
from zlaunch.estimate.estimator import Estimator, RehearsalProgress
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected
from zlaunch.estimate.strategies import STRATEGIES, compare_strategies
from zlaunch.files import write_new
from zlaunch.frozen import dataclass
from zlaunch.units import duration, plural

NAME_A_GPU = "no GPU found to compare with; name the target GPUs: `--on 8xH100-80GB`"

_COMPARED: Final = re.compile(r"zero_optimization(\.(stage|offload_(optimizer|param)(\.device)?))?")
"""Keys that a comparison sets; `--set` of one of them chooses one job, as `--stage` and `--offload` do."""

PIPED_AFTER: Final = 30.0
"""Seconds of a search after which a pipe gets a line, too, so that nobody takes it for stuck."""

Rows = Callable[[Mapping[int, Estimate | Rejected]], list[str]]
"""Writes the estimates that are known, by the places of their queries."""


def no_rows(known: Mapping[int, Estimate | Rejected]) -> list[str]:
    """Write nothing of what is known."""
    return []


@dataclass(frozen=True)
class EstimateView:
    """How to show an estimate."""

    as_json: bool = False
    levers: bool = True
    """Whether to try changes to the job."""
    plot: Path | None = None


class RehearsalLine:
    """The progress of rehearsals on a terminal, below what is known; of a search, now and then in a pipe."""

    def __init__(self, milestone: str | None = None) -> None:
        """Without a milestone, name the number of jobs."""
        self.noun = "job"
        self._rows: Rows = no_rows
        self._milestone = milestone
        self._line = console.ProgressLine(in_pipes=False)
        self._began = self._said = time.monotonic()
        self._ended = 0
        """Jobs of earlier batches."""

    def __call__(self, progress: RehearsalProgress) -> None:
        """Show the progress; remove the line at the end."""
        rows = self._rows(progress.known)
        if progress.done == progress.total:
            self._ended += progress.jobs
            self._line.clear()
            self._say_in_pipe()
            return
        total = str(progress.total)
        if progress.jobs == 1:
            total = plural(progress.total, "rank")
        milestone = self._milestone or f"rehearsing {plural(progress.jobs, self.noun)}"
        lines = [*rows, f"{milestone} ({progress.done} of {total} done)"]
        self._line.draw(lines if console.has_room(lines) else lines[-1:])

    def _say_in_pipe(self) -> None:
        now = time.monotonic()
        if self._milestone is not None and now - self._said >= PIPED_AFTER:
            self._line.say_in_pipe(
                f"{self._milestone}: {self._ended} done after {duration(now - self._began)}"
            )
            self._said = now

    @contextmanager
    def showing(self, rows: Rows) -> Iterator[None]:
        """Write rows of what is known above the line."""
        self._rows = rows
        yield
        self._rows = no_rows

    def __enter__(self) -> "RehearsalLine":
        return self

    def __exit__(self, *_: object) -> None:
        self._line.clear()


def report(query: EstimateQuery, view: EstimateView) -> ExitStatus:
    """Estimate, show the result, and return the exit status."""
    job = query.job
    is_one = not (job.stage is None and job.offload is None and job.ds_config is None)
    is_one |= any(_COMPARED.fullmatch(key) for key, _ in job.overrides)
    if view.plot is not None:
        check_plot(view.plot)
    with RehearsalLine() as line, Estimator(line, python=query.job.python) as estimator:
        if is_one:
            status = _one(query, estimator, view, line)
        else:
            status = _strategies(query, estimator, view, line)
    if query.cluster.gpu is None:
        console.say(NAME_A_GPU)
    return status


def _strategies(
    query: EstimateQuery, estimator: Estimator, view: EstimateView, line: RehearsalLine
) -> ExitStatus:
    with line.showing(estimate_strategies.known_rows):
        table = compare_strategies(query, estimator)
    if view.as_json:
        console.data(to_json(estimate_json.of_strategies(query, table)))
    else:
        console.data(*estimate_strategies.table_lines(table))
    if view.plot is not None:
        write_picture(strategies_picture(table), view.plot)
    if view.as_json:
        return table.fit.status
    if query.cluster.gpu is not None and table.fit in (Fit.NO, Fit.TIGHT):
        remedies = find_remedies(query, STRATEGIES, estimator) if view.levers else None
        checks_host, has_lora = query.cluster.host_bytes is not None, query.training.lora is not None
        lines = estimate_strategies.nothing_fits(
            remedies, is_close=table.fit is Fit.TIGHT, checks_host=checks_host, has_lora=has_lora
        )
        console.data(*lines)
    remarks = dict.fromkeys(query.remarks)
    for _, estimate in table.estimates:
        remarks |= dict.fromkeys(estimate.remarks)
    console.say_findings(remarks)
    return table.fit.status


def _one(query: EstimateQuery, estimator: Estimator, view: EstimateView, line: RehearsalLine) -> ExitStatus:
    if view.levers:
        expect_changes(query, estimator)
    (estimate,) = estimator.rehearse([query])
    if isinstance(estimate, Rejected):
        raise estimate.error
    line.noun = "change"
    if view.as_json:
        effects = _effects(estimate, estimator) if view.levers else None
        console.data(to_json(estimate_json.of_one(estimate, effects)))
    else:
        console.data(*estimate_text.estimate_lines(estimate))
        console.say_findings(estimate_text.further_findings(estimate))
    if view.plot is not None:
        write_picture(phases_picture(estimate), view.plot)
    if view.levers and not view.as_json:
        console.data(*estimate_text.change_lines(estimate, _effects(estimate, estimator)))
    return estimate.fit.status


def write_picture(picture: Picture, file: Path) -> None:
    """Draw a picture into a new file, and say so."""
    write_new(file, render(picture, file))
    console.say(f"wrote {file}")


def _effects(estimate: Estimate, estimator: Estimator) -> list[ChangeEffect]:
    return worth_saying(try_changes(estimate, estimator), estimate.need.allocated)
