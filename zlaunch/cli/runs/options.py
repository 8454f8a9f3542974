"""Options that the commands of `zlaunch runs` share."""

from pathlib import Path
from typing import Annotated

import typer

LatestRun = Annotated[
    str,
    typer.Argument(
        metavar="[ID]", help="Name of the run, its beginning, or its directory.", show_default=True
    ),
]

Run = Annotated[
    str, typer.Argument(metavar="ID", help="Name of the run, its beginning, its directory, or `latest`.")
]

RunsDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Directory of the runs (default: runs).")]

AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object.")]
