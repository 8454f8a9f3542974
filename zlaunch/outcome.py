"""How a job ended: the launcher's status and the ranks' own records → one exit status, one cause."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended."""

    how: str
    """`finished`, `failed` or `stopped`."""
    exit_status: int
    first_failure: Mapping[str, Any] | None = None
    """The record of the rank that failed first, of itself."""


def judge_end(launcher_status: int, stop_signal: int | None, ranks: Sequence[Mapping[str, Any]]) -> Outcome:
    """Decide how a job ended.

    A rank that was told to stop did not fail: another one, or the person, ended the job.
    """
    failed = [record for record in ranks if record.get("returncode") and record.get("stopped_by") is None]
    first = min(failed, key=lambda record: float(record["ended"]), default=None)
    if stop_signal is not None:
        return Outcome("stopped", 128 + stop_signal)
    if first is not None:
        returncode = int(first["returncode"])
        return Outcome("failed", 128 - returncode if returncode < 0 else returncode, first)
    lost = [record for record in ranks if "returncode" not in record]
    if lost:
        return Outcome("failed", launcher_status or 137, lost[0])
    return Outcome("finished" if launcher_status == 0 else "failed", launcher_status)
