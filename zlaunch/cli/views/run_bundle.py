"""What someone needs to understand a run elsewhere, as texts without secrets."""

from collections.abc import Iterator
from typing import Final

from zlaunch.cli.runs.show import run_members
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.run_page import page, page_data
from zlaunch.diagnosis.collect import tail
from zlaunch.runs.history import RunHistory
from zlaunch.runs.run import Run
from zlaunch.secrets import hide_in_text

MOST_LOGS: Final = 16
LOG_BYTES: Final = 64 * 1024
"""How much of the end of each log is taken."""


def bundle(run: Run) -> Iterator[tuple[str, str]]:
    """List the files of a bundle: name and text."""
    history = RunHistory(run.root)
    history.update()
    yield "page.html", page(f"{run.id}: {run.state.value}", page_data(run, history))
    yield "run.json", to_json(run_members(run))
    for name in ("config", "provenance", "forecast"):
        if members := getattr(run, name):
            yield f"{name}.json", to_json(members)
    logs = sorted(run.paths.logs.glob("*.log"), key=lambda file: (len(file.name), file.name))
    for log in logs[:MOST_LOGS]:
        yield f"logs/{log.name}", hide_in_text(tail(log, LOG_BYTES))
