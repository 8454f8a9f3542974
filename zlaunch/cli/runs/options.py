"""Options shared by the commands of `zlaunch runs`."""

from pathlib import Path
from typing import Annotated

import typer

LatestRun = Annotated[
    str,
    typer.Argument(metavar="[ID]", help="Run ID or prefix, or a run directory.", show_default=True),
]

Run = Annotated[str, typer.Argument(metavar="ID", help="Run ID or prefix, a run directory, or `latest`.")]

RunsDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Directory of the runs (default: runs).")]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
