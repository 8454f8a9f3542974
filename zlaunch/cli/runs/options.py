"""Options that the verbs of `zlaunch runs` share, each with one meaning."""

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

RunsDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where the runs are recorded; runs if left out.")
]

AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object.")]
