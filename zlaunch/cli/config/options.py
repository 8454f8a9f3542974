"""Options that several verbs of `zlaunch config` have, each with one meaning."""

from pathlib import Path
from typing import Annotated, Literal

import typer

A_CONFIG = "ds_config file, accelerate's YAML, - for stdin, or base64."

WorldSize = Annotated[int | None, typer.Option(min=1, metavar="N", help="Data-parallel ranks of the job.")]

Model = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Model directory or config.json, for buffer sizes.")
]

Runner = Annotated[
    Literal["trainer", "accelerate", "deepspeed"] | None,
    typer.Option("--for", help='Who reads the file and fills in "auto".', show_default="trainer"),
]

Release = Annotated[
    str | None,
    typer.Option("--deepspeed", metavar="RELEASE", help="Answer for this DeepSpeed release, such as 0.16."),
]

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Where to write it; stdout if left out."),
]

AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object.")]
