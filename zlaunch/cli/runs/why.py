"""`zlaunch runs why`: explain why a run ended, in at most ten lines."""

import time
from dataclasses import asdict

from zlaunch import console
from zlaunch.cli.runs.options import AsJson, LatestRun, RunsDir
from zlaunch.cli.views.run import members, to_json
from zlaunch.diagnosis.render import verdict_lines
from zlaunch.rundir.record import RunRecord
from zlaunch.runs.store import find_run, load_run
from zlaunch.runs.verdict import headline, stall_of, verdict_of


def why(run: LatestRun = "latest", runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Explain why a run ended and what to change."""
    record = load_run(find_run(run, runs_dir))
    if as_json:
        known = {"verdict": verdict_of(record, time.time()), "stall": stall_of(record.found)}
        told = {name: None if value is None else asdict(value) for name, value in known.items()}
        console.data(to_json({**members(record), **told}))
        return
    for line in explained(record):
        console.data(line)


def explained(record: RunRecord) -> list[str]:
    """Write how a run ended, in at most ten lines."""
    verdict, name = verdict_of(record, time.time()), f"{record.id} {headline(record)}"
    return [name] if verdict is None else verdict_lines(verdict, name, console.width())
