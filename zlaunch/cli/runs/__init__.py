"""`zlaunch runs`: look at recorded runs."""

import typer

from zlaunch.cli.runs.list import list_runs
from zlaunch.cli.runs.logs import logs
from zlaunch.cli.runs.rerun import rerun
from zlaunch.cli.runs.show import show
from zlaunch.cli.runs.stop import stop
from zlaunch.cli.runs.why import why

runs = typer.Typer(
    no_args_is_help=True,
    help="List, show, explain, stop and repeat runs.",
    rich_markup_mode=None,
)
runs.command("list")(list_runs)
runs.command()(show)
runs.command()(logs)
runs.command()(why)
runs.command()(stop)
runs.command()(rerun)
