"""`zlaunch runs logs`: the log of a rank or of the launcher."""

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from zlaunch.cli.runs.options import AsJson, LatestRun, RunsDir

if TYPE_CHECKING:
    from pathlib import Path


def logs(
    run: LatestRun = "latest",
    rank: Annotated[int | None, typer.Option(min=0, metavar="N", help="Rank (default: 0).")] = None,
    launcher: Annotated[bool, typer.Option("--launcher", help="Show the log of the launcher.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only the last lines.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Follow the log until the run is over.")] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the log of a rank, byte for byte."""
    from zlaunch import console
    from zlaunch.cli.views.run import to_json
    from zlaunch.errors import WrongUsage
    from zlaunch.runs.logs import log_of, read_log
    from zlaunch.runs.store import find_run

    if launcher and rank is not None:
        raise WrongUsage("`--launcher` and `--rank` name different logs", "keep one of them")
    if as_json and follow:
        raise WrongUsage("`--json` writes one object, but `--follow` has no end", "keep one of them")
    root = find_run(run, runs_dir)
    log = log_of(root, rank, launcher)
    text = read_log(log, tail)
    if as_json:
        lines = text.decode("utf-8", "replace").splitlines()
        console.data(to_json({"id": root.name, "log": str(log), "lines": lines}))
        return
    size = log.stat().st_size if tail is not None else len(text)
    console.raw_data(text)
    if follow:
        _follow(root, log, size)


def _follow(root: "Path", log: "Path", offset: int) -> None:
    """Print what is added to a log; Ctrl-C ends the following, not the run."""
    from zlaunch import console
    from zlaunch.runs.logs import follow
    from zlaunch.runs.stop import has_stopped

    try:
        for chunk in follow(log, offset, has_stopped(root)):
            console.raw_data(chunk)
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
