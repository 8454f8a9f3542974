"""`zlaunch runs report`: one HTML page about a run."""

import os
from pathlib import Path
from typing import Annotated
from zipfile import ZIP_DEFLATED, ZipFile

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson, LatestRun, RunsDir
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.run_bundle import bundle as bundle_of
from zlaunch.cli.views.run_page import MARK, page, page_data
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.files import check_new, shown, write_whole
from zlaunch.rundir.layout import RunDir
from zlaunch.runs.history import RunHistory
from zlaunch.runs.run import Run
from zlaunch.runs.store import open_run

Html = Annotated[
    str | None,
    typer.Option(
        "--html", metavar="FILE", help="Output file, - for stdout (default: report.html of the run)."
    ),
]
_HINT = "choose another file with `--html`"


def report(
    run: LatestRun = "latest",
    html: Html = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a zip without secrets instead, to attach to an issue."),
    ] = None,
) -> None:
    """Write a page about a run: charts, memory, ds_config, its end.

    The page is one HTML file that loads nothing. With --json, its data is printed instead. With --bundle,
    it is written into a zip with the records and the ends of the logs.
    """
    if as_json and html is not None:
        raise WrongUsage("`--json` prints data, and `--html` writes a page", "keep one of them")
    chosen = open_run(run, runs_dir)
    if bundle is not None:
        if html is not None or as_json:
            raise WrongUsage("`--bundle` has the page and the data in it", "leave out the other option")
        _write_bundle(bundle, chosen)
        return
    history = RunHistory(chosen.root)
    history.update()
    data = page_data(chosen, history)
    if as_json:
        console.data(to_json(data))
        return
    text = page(f"{chosen.id}: {chosen.state.value}", data)
    if html == "-":
        console.data(text)
        return
    file = RunDir(chosen.root).report if html is None else Path(html)
    write_page(file, text)
    console.data(shown(file.absolute()))


def _write_bundle(file: Path, run: Run) -> None:
    check_new(file)
    with ZipFile(file, "x", ZIP_DEFLATED) as archive:
        for name, text in bundle_of(run):
            archive.writestr(f"{run.id}/{name}", text)
    console.data(shown(file.absolute()))
    console.say("look through it before you send it: secrets are recognized by their names and forms")


def write_page(file: Path, text: str) -> None:
    """Write a page, also over an earlier one, but not over anything else."""
    name = os.path.relpath(file)
    if file.is_dir() or (file.exists() and not _is_page(file)):
        raise Unavailable(f"`{name}` already exists and is not a page about a run", _HINT)
    try:
        write_whole(file, text)
    except OSError as error:
        raise Unavailable(f"`{name}` cannot be written: {error.strerror}", _HINT) from None


def _is_page(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return MARK.encode() in opened.read(200)
    except OSError:
        return True  # writing it says what is wrong
