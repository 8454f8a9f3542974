"""`zlaunch nvme tune`: measure a drive, and write the fastest `aio` section for it."""

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli import options
from zlaunch.cli.views.dump import to_json
from zlaunch.dsconfig.read import read
from zlaunch.errors import WrongUsage
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.measured_speeds import keep_speed
from zlaunch.hosts.machine.probe import probe_machine
from zlaunch.launch.nvme import FILES, NUM_MEASUREMENTS, TuneRequest, check_drive, merge_aio
from zlaunch.launch.nvme import tune as tune_drive
from zlaunch.process import Stopped, end_like
from zlaunch.units import memory

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
DEFAULT_BYTES = 400 << 20
_PIECE = 16 << 20
"""Every setting can split a file of such pieces."""


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    num_bytes = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if num_bytes < _PIECE:
        raise typer.BadParameter(f"{text} is not a size of at least 16M, such as 400M or 1G")
    return num_bytes // _PIECE * _PIECE


class TuneView(console.LineReporter):
    """Shows the build of `async_io`, and how much is measured."""

    def measured(self, count: int) -> None:
        """Show how many measurements were made."""
        self.busy("measuring", f"{count} of {NUM_MEASUREMENTS}")


def tune(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Directory on the drive.")],
    size: Annotated[
        int | None,
        typer.Option(
            parser=_size, metavar="SIZE", help="Size of each of the two test files (default: 400M)."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the section into this ds_config; keeps FILE.bak."
        ),
    ] = None,
    python: options.Python = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure a drive, and write the fastest `aio` section for it.

    DeepSpeed's `ds_nvme_tune` tries 64 settings, in files that are deleted in the end. It starts a process
    for each measurement, so this takes about ten minutes.
    """
    if output is not None:
        if str(output) == "-":
            raise WrongUsage("`--output -` is not possible", "leave it out: the section is printed anyway")
        read(output)  # before minutes of measuring
    interpreter = inspect_python(python)
    machine = probe_machine(os.environ, interpreter)
    request = TuneRequest(folder.absolute(), size or DEFAULT_BYTES, interpreter, machine)
    check_drive(request)
    view = TuneView()
    console.say(f"the test takes {memory(FILES * request.num_bytes)} in {folder}, and about ten minutes")
    try:
        tuned = tune_drive(request, view, view.measured)
    except Stopped as stop:
        view.clear()
        console.say(f"stopped by {stop.number.name}; the test files are deleted")
        end_like(-stop.number)
    view.clear()
    keep_speed("nvme", [machine.hostname], 2e9 / (1 / tuned.read + 1 / tuned.write), str(request.folder))
    if as_json:
        members = {"aio": tuned.aio, "unit": "GB/s", "read": tuned.read, "write": tuned.write}
        console.data(to_json(members))
    else:
        console.say(f"the fastest settings: {tuned.read:.2f} GB/s read, {tuned.write:.2f} GB/s written")
        console.data(to_json({"aio": tuned.aio}))
    if output is not None:
        kept = merge_aio(output, tuned.aio)
        if kept is None:
            console.say(f"{output} has it already")
        else:
            console.say(f"wrote `aio` to {output}; the old file is {kept}")
