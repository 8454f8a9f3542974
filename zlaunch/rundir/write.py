"""Write records. The script waits for the imports of this module, so it needs next to none."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from zlaunch.files import write_whole
from zlaunch.rundir.layout import RunDir

if TYPE_CHECKING:
    from zlaunch.rundir.record import EndingRecord

VERSION = 1
"""Format of the records, in each as `version`. Records without it were written before there were versions."""


def record_text(members: Mapping[str, object], indent: int | None = 2) -> str:
    """Write a record as JSON."""
    return json.dumps({"version": VERSION, **members}, indent=indent) + "\n"


def write_record(
    file: Path, members: Mapping[str, object], indent: int | None = 2, mode: int = 0o666
) -> None:
    """Write a record to its file; a reader sees all of it, or what was there before."""
    write_whole(file, record_text(members, indent), mode)


def write_ending(run_dir: RunDir, members: "EndingRecord") -> None:
    """Write how a run ended; on a full disk, in the space that was reserved for it."""
    run_dir.reserve.unlink(missing_ok=True)
    write_record(run_dir.ending, members)
