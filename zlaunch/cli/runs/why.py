"""`zlaunch runs why`: why a run ended, in at most ten lines, what to resume from, and what made it slow."""

from collections.abc import Sequence
from typing import Final, TextIO

from zlaunch import console
from zlaunch.cli.options import AsJson, LatestRun, RunsDir
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.run import headed, members, saved_rows
from zlaunch.diagnosis.render import loss_lines, verdict_lines
from zlaunch.diagnosis.speed import SpeedLoss
from zlaunch.resume.saved_by_run import saved_by_run
from zlaunch.runs.run import Run
from zlaunch.runs.store import open_run
from zlaunch.runs.why import headline, verdict_of

MOST_LOSSES: Final = 2


def why(run: LatestRun = "latest", runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Explain how a run ended, and what limited its speed."""
    chosen = open_run(run, runs_dir)
    if as_json:
        members_of = {**members(chosen), "verdict": verdict_of(chosen), "stall": chosen.stall}
        console.data(to_json({**members_of, "speed": _losses(chosen)}))
        return
    console.data(*explained(chosen))
    if chosen.state.is_over and (rows := list(saved_rows(saved_by_run(chosen)))):
        console.data(*console.table(rows))
    losses = _losses(chosen)
    for loss in losses[:MOST_LOSSES]:
        console.data(*loss_lines(loss, console.width()))
    if len(losses) > MOST_LOSSES:
        console.data(f"  {len(losses) - MOST_LOSSES} more: `zlaunch runs show {chosen.id}`")


def _losses(run: Run) -> Sequence[SpeedLoss]:
    time = run.step_time
    if time is None:
        return ()
    return time.losses


def explained(run: Run, stream: TextIO | None = None) -> list[str]:
    """Say how a run ended, in at most ten lines for a stream, by default stdout."""
    verdict, head = verdict_of(run), f"{run.id} {headline(run)}"
    if verdict is None:
        return headed([head], head, run.state, stream)
    return headed(verdict_lines(verdict, head, console.width()), head, run.state, stream)
