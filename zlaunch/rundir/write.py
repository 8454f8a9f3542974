"""Write records. The script waits for the imports of this module, so it needs next to none."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from zlaunch.files import write_whole
from zlaunch.rundir.layout import RunDir

if TYPE_CHECKING:
    from zlaunch.rundir.record import EndingRecord

PRIVATE_DIRECTORY = 0o700

VERSION = 1
"""Format of the records, in each as `version`. Records without it were written before there were versions."""


def record_text(members: Mapping[str, object], indent: int | None = 2) -> str:
    """Write a record as JSON."""
    return json.dumps({"version": VERSION, **members}, indent=indent) + "\n"


def create_root(run_dir: RunDir, *, is_shared: bool) -> None:
    """Create a run directory that only its user may enter, unless it is shared; raise OSError.

    Everything in it may have secrets: arguments, variables, the ds_config, exceptions, logs. Much of it is
    written by other programs, so no file has permissions of its own. A directory that exists is made
    private as well if it is the user's.
    """
    run_dir.root.parent.mkdir(parents=True, exist_ok=True)
    if is_shared:
        run_dir.root.mkdir(exist_ok=True)
        return
    run_dir.root.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
    if run_dir.root.stat().st_uid == os.geteuid():
        run_dir.root.chmod(PRIVATE_DIRECTORY)


def write_record(file: Path, members: Mapping[str, object], indent: int | None = 2) -> None:
    """Write a record to its file; a reader sees all of it, or what was there before."""
    write_whole(file, record_text(members, indent))


def write_ending(run_dir: RunDir, members: "EndingRecord") -> None:
    """Write how a run ended; on a full disk, in the space that was reserved for it."""
    run_dir.reserve.unlink(missing_ok=True)
    write_record(run_dir.ending, members)
