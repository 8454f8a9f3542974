"""Show configurations that were measured, beside what was predicted of them; write the fastest."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from zlaunch import console
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.series import SeriesView
from zlaunch.cli.views.training_command import training_command
from zlaunch.config.resolve.compose import compose
from zlaunch.config.resolve.compose import to_json as config_text
from zlaunch.diagnosis.outcome import Outcome
from zlaunch.diagnosis.speed import SpeedLoss
from zlaunch.errors import Finding
from zlaunch.estimate.calibration import CALIBRATED
from zlaunch.files import check_new, write_new
from zlaunch.job.recipes import recipe_of
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.measure.race import MeasuredTrial, Measurement
from zlaunch.launch.monitoring.progress import Progress, phase_shown
from zlaunch.launch.plan import LaunchPlan
from zlaunch.resume.saved_by_run import SavedByRun
from zlaunch.runs.run import Run
from zlaunch.units import brief, listed, measured_time, memory, plural

UNKNOWN: Final = "-"
MOST_NAMES: Final = 4
"""Configurations to name with the same reason."""
NOISY: Final = 0.2
"""Runs on an idle machine differ by less."""
_NO_SPEED: Final = "no step time was predicted: there is no GPU whose speed is known"
_HEADERS: Final = (
    ("", "step time", "", "memory", "of a rank", ""),
    ("stage offload        batch", "predicted", "measured", "predicted", "measured", "runs"),
)


class MeasureView(SeriesView):
    """Shows the runs in one line that changes."""

    def __init__(self) -> None:
        """Nothing has run yet."""
        super().__init__()
        self._num_runs = 0

    def begin(self, name: str) -> None:
        """Show a run that starts."""
        self._num_runs += 1
        self.show_title(f"run {self._num_runs}: {name}")

    def warn(self, findings: Sequence[Finding]) -> None:
        """Say nothing: `zlaunch train` does, for the one that is chosen."""

    def progressed(self, progress: Progress, world_size: int) -> None:
        """Show the step of the first rank, or its phase before the first."""
        doing = phase_shown(progress.first)
        if progress.step:
            doing = f"step {progress.step}"
        self._line.show(self._title, f"({doing})")

    def ignored(self, arguments: Sequence[str]) -> None:
        """Say nothing."""

    def slowed(self, losses: Sequence[SpeedLoss]) -> None:
        """Say nothing."""

    def saved(self, saved: SavedByRun) -> None:
        """Say nothing: it is deleted."""

    def tracked(self, trackers: Mapping[str, Mapping[str, str]]) -> None:
        """Say nothing."""

    def ended(self, plan: LaunchPlan, outcome: Outcome, seconds: float, run: Run) -> None:
        """Say nothing."""


def measured_lines(result: Measurement, facts: JobFacts) -> Iterator[str]:
    """Write the table, which is the fastest, what was passed over and why it ended."""
    if result.measured:
        ranks = facts.topology.world_size
        where = plural(ranks, "GPU") if facts.machine.gpus else f"{plural(ranks, 'rank')} on the CPU"
        yield f"{facts.job.shown_name} on {where}, {_same_batch(result, ranks)}"
        yield ""
        yield from console.figures([*_HEADERS, *map(_row, result.measured)])
        yield from console.paragraph(_not_predicted(result))
        yield ""
        best = result.measured[0]
        yield from console.paragraph(f"fastest: `{best.trial.name}`; {best.provenance}")
        yield from console.paragraph(_calibration(result))
        if result.is_close:
            yield from console.paragraph(_how_close(result))
    by_reason: dict[str, list[str]] = {}
    for name, why in result.passed_over:
        by_reason.setdefault(why, []).append(f"`{name}`")
    for why, names in by_reason.items():
        yield from console.paragraph(f"not measured: {listed(names, MOST_NAMES)}: {why}")
    yield from map(str, _ending(result))


def _not_predicted(result: Measurement) -> str:
    """Say why columns of the table have no values; empty if they have some."""
    trials = [one.trial for one in result.measured]
    if all(trial.estimate is None for trial in trials):
        return f"nothing was predicted: {result.why_not_predicted}"
    if all(trial.seconds is None for trial in trials):
        return _NO_SPEED
    return ""


def _calibration(result: Measurement) -> str:
    """Say what the predictions were calibrated by; empty if by nothing."""
    estimates = [one.trial.estimate for one in result.measured if one.trial.estimate is not None]
    remarks = [
        finding for estimate in estimates for finding in estimate.remarks if finding.code == CALIBRATED
    ]
    return remarks[0].message if remarks else ""


def _same_batch(result: Measurement, ranks: int) -> str:
    batch = next((sample.batch for one in result.measured for sample in one.samples if sample.batch), None)
    if batch is None:
        return "all with the same global batch"
    return f"global batch {batch}"


def _how_close(result: Measurement) -> str:
    """Say that the first two cannot be told apart, and what may be the reason."""
    second = result.measured[1].trial
    differed = f"runs of the same configuration differed by up to {result.spread:.0%}"
    text = f"`{second.name}` may be as fast: {differed}"
    if result.spread > NOISY:
        text += "; other programs seem to use this machine, so measure again when it is idle"
    return text


def _row(one: MeasuredTrial) -> tuple[str, ...]:
    trial, strategy = one.trial, one.trial.strategy
    batch = UNKNOWN
    if trial.micro_batch is not None:
        batch = f"{trial.micro_batch} x {trial.grad_accum}"
    predicted = UNKNOWN
    if trial.seconds is not None:
        predicted = brief(trial.seconds)
    return (
        f"{strategy.stage:<5} {strategy.label:<13}  {batch}",
        predicted,
        measured_time(one.seconds),
        _bytes(one.predicted_memory),
        _bytes(one.memory),
        str(len(one.samples)),
    )


def _bytes(number: int | None) -> str:
    if number is None:
        return UNKNOWN
    return memory(number)


def _ending(result: Measurement) -> Iterator[str]:
    if result.why_ended:
        yield from console.paragraph(f"ended early: {result.why_ended}")
    elif result.num_left:
        left = plural(result.num_left, "more configuration")
        yield from console.paragraph(f"{left} not run; `--top N` runs more of them")
    if result.num_kept:
        text = (
            f"{plural(result.num_kept, 'run')} of an earlier measurement; `ZLAUNCH_CACHE=off` measures anew"
        )
        yield from console.paragraph(text)


def measured_json(result: Measurement, ds_config: Mapping[str, Any] | None = None) -> str:
    """Write everything as JSON; `ds_config` is that of the fastest if it was written to a file."""
    written = {} if ds_config is None else {"ds_config": ds_config}
    return to_json(
        {
            **written,
            "measured": [_record(one) for one in result.measured],
            "not_measured": [{"options": name, "why": why} for name, why in result.passed_over],
            "ended_early": result.why_ended or None,
            "not_run": result.num_left,
            "kept_runs": result.num_kept,
            "steps": result.limits.steps,
        }
    )


def _record(one: MeasuredTrial) -> dict[str, Any]:
    trial = one.trial
    return {
        "options": trial.name,
        "stage": trial.strategy.stage,
        "offload": trial.strategy.label,
        "micro_batch": trial.micro_batch,
        "grad_accum": trial.grad_accum,
        "predicted_seconds": trial.seconds,
        "seconds": one.seconds,
        "predicted_memory": one.predicted_memory,
        "memory": one.memory,
        "provenance": one.provenance,
        "runs": [asdict(sample) for sample in one.samples],
    }


def record_beside(output: Path) -> Path:
    """Name the file with what was measured, beside the ds_config."""
    return output.with_name(f"{output.stem}.measured.json")


def check_output(output: Path) -> None:
    """Raise Unavailable if a file is there that no measurement wrote, or that was changed since."""
    record = record_beside(output)
    try:
        written = json.loads(record.read_bytes())["ds_config"] == json.loads(output.read_bytes())
    except (OSError, ValueError, TypeError, KeyError):
        written = False
    if not written:
        check_new(output)
        check_new(record)


def write_measured(result: Measurement, facts: JobFacts, output: Path | None) -> None:
    """Write the ds_config of the fastest, and the measurement beside it; say how to train with it."""
    if output is None:
        console.say("add `-o FILE` to write the ds_config")
        return
    best = result.measured[0]
    job, record = best.trial.job, record_beside(output)
    config = compose(job, None).config()
    for file, text in ((output, config_text(config)), (record, measured_json(result, config))):
        if file.exists():  # by an earlier part of this measurement
            file.unlink()
        write_new(file, text)
    program, recipe = job.program, recipe_of(job.script)
    if recipe is not None:
        program = (recipe.name,)
    console.say(f"wrote {output} ({best.provenance}) and {record}; to train with it:")
    console.say(*training_command(job, program, output, job.args.words))
