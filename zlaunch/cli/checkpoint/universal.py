"""`zlaunch checkpoint universal`: convert a checkpoint so that other ranks can load it."""

import time
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.checkpoint.find import checkpoint_at
from zlaunch.checkpoint.universal import make_universal
from zlaunch.cli.options import CheckpointDir
from zlaunch.cli.views.checkpoint import shown
from zlaunch.units import duration


def universal(
    folder: CheckpointDir,
    out: Annotated[
        Path | None,
        typer.Argument(metavar="[OUT]", help="Directory to write to (default: beside the checkpoint)."),
    ] = None,
) -> None:
    """Convert a checkpoint so that any number of ranks can load it.

    DeepSpeed's conversion runs in a directory of its own. The checkpoint is verified before it, and the
    result after it.
    """
    checkpoint, line, began = checkpoint_at(folder), console.ProgressLine(), time.monotonic()
    written = make_universal(
        checkpoint, out, lambda: line.show("converting", duration(time.monotonic() - began))
    )
    line.clear()
    console.say(
        f"wrote {shown(written)} in {duration(time.monotonic() - began)}",
        "to go on from it, set `checkpoint.load_universal` to true in the ds_config, as with",
        "`--set checkpoint.load_universal=true`, and name the same checkpoint to the script",
    )
