"""`zlaunch config translate`: translate another launcher's command line to zlaunch."""

import os
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.config import accelerate
from zlaunch.config import translate as translator
from zlaunch.config.translate.parts import Note


def translate(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND…",
            help="Command of deepspeed, torchrun or accelerate, or CONFIG.yaml [-- SCRIPT ARGS].",
        ),
    ],
) -> None:
    """Translate another launcher's command line to zlaunch.

    The command line goes to stdout, ready to paste. Notes about what changes or is lost go to stderr.
    """
    understood = translator.parse_command(command)
    named, notes = translator.config_file(understood), []
    default = accelerate.default_file(os.environ)
    if named is None and translator.reads_default_config(understood) and default.is_file():
        named = str(default)
        notes.append(Note("accelerate launch", f"reads {named}, and so does this"))
    config = None if named is None else accelerate.read(Path(named))
    hostfile = understood.launcher.hostfile
    found = hostfile if hostfile and Path(hostfile).is_file() else None
    translation = translator.translate(understood, config, found)
    console.say(*console.notes([(note.about, note.text) for note in (*notes, *translation.notes)], indent=""))
    console.data(translation.line)
