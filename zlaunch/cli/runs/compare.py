"""`zlaunch runs compare`: two runs side by side."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.config.diff import difference_table
from zlaunch.cli.options import RUN_HELP, AsJson, RunsDir, completed
from zlaunch.cli.runs.report import write_page
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.run_comparison import RunComparison, compare_runs, comparison_data
from zlaunch.cli.views.run_page import page
from zlaunch.errors import WrongUsage
from zlaunch.files import shown
from zlaunch.runs.store import open_run


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help=RUN_HELP, autocompletion=completed("runs"))],
    second: Annotated[str, typer.Argument(metavar="B", help=RUN_HELP, autocompletion=completed("runs"))],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with the curves of both.")
    ] = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: loss, speed, memory, ds_config.

    The ds_configs are compared as DeepSpeed read them. With --html, a page also has the curves of both.
    """
    if as_json and html is not None:
        raise WrongUsage("`--json` prints data, and `--html` writes a page", "keep one of them")
    runs = [open_run(name, runs_dir) for name in (first, second)]
    if html is not None:
        names = " and ".join(run.id for run in runs)
        write_page(html, page(names, comparison_data(runs[0], runs[1])))
        console.data(shown(html.absolute()))
        return
    comparison = compare_runs(runs[0], runs[1])
    if as_json:
        console.data(to_json({"runs": [run.id for run in runs], **vars(comparison)}))
        return
    console.data(*_lines(comparison, (runs[0].id, runs[1].id)))


def _lines(comparison: RunComparison, names: tuple[str, str]) -> Iterator[str]:
    yield from console.table([("", *names), *comparison.figures], indent="")
    for name, *texts in comparison.facts:
        yield ""
        yield name
        yield from console.table([*zip("AB", texts, strict=True)])
    yield ""
    if not comparison.config:
        yield "the ds_configs have the same meaning"
        return
    yield from difference_table(comparison.config, ("A", "B"))
