"""`zlaunch config translate`: translate another launcher's command line to zlaunch."""

import os
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson
from zlaunch.cli.views.dump import to_json
from zlaunch.config.translate import translate_command


def translate(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND…",
            help="Command of deepspeed, torchrun or accelerate, or CONFIG.yaml [-- SCRIPT ARGS].",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Translate another launcher's command line to zlaunch.

    The command line goes to stdout, ready to paste. Notes about what changes or is lost go to stderr.
    """
    translation = translate_command(command, os.environ)
    if as_json:
        console.data(to_json({"command": translation.line, "notes": translation.notes}))
        return
    console.say(*console.notes([(note.about, note.text) for note in translation.notes], indent=""))
    console.data(translation.line)
