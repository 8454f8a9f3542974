"""Records that a rank prints because its run directory is gone or cannot be written.

They pass through the launcher to its log, which zlaunch has opened before the ranks start: it stays readable
if the directory is deleted or moved.
"""

import json
import re

from zlaunch.rundir.read import parse_record
from zlaunch.rundir.record import PrintedRecord, RankRecord

_MARK = "zlaunch has no other place for this record: "
_LINE = re.compile(f"^.*{_MARK}(.*)\n?", re.MULTILINE)
"""A line of the launcher, which may begin with the name of a host."""


def printed_line(record: RankRecord, log: str) -> str:
    """Write the record of a rank, and the end of its log, as one line."""
    return _MARK + json.dumps({"record": record, "log": log})


def printed_records(launcher_log: str) -> dict[int, PrintedRecord]:
    """Read the records that ranks have printed: rank → record."""
    parsed = [parse_record(text, PrintedRecord) for text in _LINE.findall(launcher_log)]
    return {printed["record"]["rank"]: printed for printed in parsed if "rank" in printed.get("record", {})}


def without_records(launcher_log: str) -> str:
    """Return what the launcher itself has printed."""
    return _LINE.sub("", launcher_log)
