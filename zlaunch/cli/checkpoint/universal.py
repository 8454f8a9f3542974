"""`zlaunch checkpoint universal`: convert a checkpoint so that other ranks and stages can load it."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.checkpoint.find import CheckpointFolder, SavedBy
from zlaunch.checkpoint.universal import not_restored, plan_universal, write_universal
from zlaunch.cli.options import AsJson, CheckpointDir
from zlaunch.cli.views.checkpoint import shown, taken, typed
from zlaunch.cli.views.dump import to_json
from zlaunch.dsconfig.schema.storage import SET_LOAD_UNIVERSAL
from zlaunch.files import nearest
from zlaunch.resume.newest import checkpoint_of
from zlaunch.units import duration, plural, size


def universal(
    folder: CheckpointDir,
    out: Annotated[
        Path | None,
        typer.Argument(metavar="OUT", help="Directory to write to (default: beside the checkpoint)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert a checkpoint for any number of ranks.

    DeepSpeed's conversion runs in a directory of its own. The checkpoint is verified before it, and the
    result after it. Stages 1, 2 and 3 can load the result.
    """
    saved = checkpoint_of(folder)
    console.say(*taken(folder, saved))
    convert(saved.checkpoint, out, None, as_json=as_json)


def convert(checkpoint: CheckpointFolder, out: Path | None, int_steps: bool | None, *, as_json: bool) -> None:
    """Convert a checkpoint, and say how to load the result. Raise what `plan_universal` raises."""
    plan = plan_universal(checkpoint, out)
    line, started = console.ProgressLine(), time.monotonic()
    if not plan.is_done:
        free = shutil.disk_usage(nearest(plan.folder)).free
        console.say(f"disk: about {size(plan.disk.peak)} while it converts, of {size(free)} free")
    write_universal(plan, lambda: line.show("converting", duration(time.monotonic() - started)), int_steps)
    line.clear()
    if as_json:
        console.data(to_json(converted(plan.folder, is_written=not plan.is_done)))
        return
    took = f"written in {duration(time.monotonic() - started)}"
    if plan.is_done:
        took = "was converted before"
    console.say(f"{shown(plan.folder)}: {took}")
    for text in how_to_load(checkpoint, plan.folder):
        console.say(*console.paragraph(text))


def converted(folder: Path, *, is_written: bool, way: str = "universal") -> dict[str, object]:
    """List the JSON members about a checkpoint that a job can resume from."""
    return {"directory": str(folder.absolute()), "way": way, "written": is_written}


def how_to_load(checkpoint: CheckpointFolder, written: Path) -> Iterator[str]:
    """Say how a job resumes from the universal checkpoint of another one."""
    lost = not_restored(checkpoint)
    # Of several tags of an engine, their directory stands for the newest.
    named = typed(written if checkpoint.saved_by is SavedBy.ENGINE else written.parent)
    yield f"`zlaunch train --resume {named} {SET_LOAD_UNIVERSAL} …` resumes from it"
    yield "the checkpoints of that job are not universal: leave the key out to resume from them"
    if lost:
        count, names = plural(len(lost), "tensor"), ", ".join(f"`{name}`" for name in lost[:2])
        yield (
            f"DeepSpeed does not load its buffers and frozen parameters: {count}, such as {names}, keep the "
            "values that the script gives them"
        )
