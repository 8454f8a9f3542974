"""`zlaunch runs logs`: the log of a rank or of the launcher."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson, LatestRun, RunsDir
from zlaunch.cli.views.dump import to_json
from zlaunch.errors import WrongUsage
from zlaunch.files import read_from
from zlaunch.runs.logs import follow, log_of, start_of
from zlaunch.runs.stop import has_stopped
from zlaunch.runs.store import find_run


def logs(
    run: LatestRun = "latest",
    rank: Annotated[int | None, typer.Option(min=0, metavar="N", help="Rank to print (default: 0).")] = None,
    launcher: Annotated[
        bool, typer.Option("--launcher", help="Print the output of the launcher itself.")
    ] = False,
    tail: Annotated[int | None, typer.Option(min=0, metavar="N", help="Print only the last N lines.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep printing new output until the run ends.")
    ] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the output of a rank or the launcher."""
    if launcher and rank is not None:
        raise WrongUsage("`--launcher` and `--rank` name different logs", "keep one of them")
    if as_json and follow:
        raise WrongUsage("`--json` writes one object, but `--follow` has no end", "keep one of them")
    root = find_run(run, runs_dir)
    log = log_of(root, rank, launcher)
    offset = start_of(log, tail)
    if as_json:
        text = b"".join(read_from(log, offset)).decode("utf-8", "replace")
        console.data(to_json({"id": root.name, "log": str(log), "lines": text.splitlines()}))
    elif follow:
        _follow_log(root, log, offset)
    else:
        for chunk in read_from(log, offset):
            console.raw_data(chunk)


def _follow_log(root: Path, log: Path, offset: int) -> None:
    """Print what is added to a log; Ctrl-C stops the command, not the run."""
    try:
        for chunk in follow(log, offset, has_stopped(root)):
            console.raw_data(chunk)
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
