"""Options shared by the commands of `zlaunch config`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

A_CONFIG = "ds_config file, accelerate YAML, - for stdin, or base64."

WorldSize = Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of data-parallel ranks.")]

Model = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Model directory or config.json, for buffer sizes.")
]

Runner = Annotated[
    Literal["trainer", "accelerate", "deepspeed"] | None,
    typer.Option("--for", help='Program that reads the file and fills in "auto".', show_default="trainer"),
]

Release = Annotated[
    str | None,
    typer.Option("--deepspeed", metavar="RELEASE", help="DeepSpeed release, such as 0.16 (default: newest)."),
]

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Output file (default: stdout)."),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
