"""`zlaunch runs why`: why a run ended, in at most ten lines, and what to resume from."""

from zlaunch import console
from zlaunch.cli.options import AsJson, LatestRun, RunsDir
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.run import members, saved_rows
from zlaunch.diagnosis.render import verdict_lines
from zlaunch.resume.saved_by_run import saved_by_run
from zlaunch.runs.run import Run
from zlaunch.runs.store import find_run, load_run
from zlaunch.runs.why import headline, verdict_of


def why(run: LatestRun = "latest", runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Explain why a run ended and what to change."""
    chosen = load_run(find_run(run, runs_dir))
    if as_json:
        console.data(to_json({**members(chosen), "verdict": verdict_of(chosen), "stall": chosen.stall}))
        return
    console.data(*explained(chosen))
    if chosen.state.is_over and (rows := list(saved_rows(saved_by_run(chosen)))):
        console.data(*console.table(rows))


def explained(run: Run) -> list[str]:
    """Say how a run ended, in at most ten lines."""
    verdict, head = verdict_of(run), f"{run.id} {headline(run)}"
    if verdict is None:
        return [head]
    return verdict_lines(verdict, head, console.width())
