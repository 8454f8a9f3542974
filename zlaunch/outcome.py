"""How a job ended: the launcher's status and the ranks' own records → one exit status, one cause."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended."""

    how: str
    """`finished`, `failed` or `stopped`."""
    exit_status: int
    returncode: int
    """Of whatever decided that, as `subprocess` gives it: minus n for signal n."""
    first_failure: Mapping[str, Any] | None = None
    """The record of the rank that failed first, of itself."""


def judge_end(
    launcher: int, stopped_by: int | None, ranks: Sequence[Mapping[str, Any]], world_size: int
) -> Outcome:
    """Decide how a job ended, from return codes as `subprocess` gives them.

    A rank that was told to stop did not fail: another one, or the person, ended the job. A rank
    without a return code was lost together with what ran around it.
    """
    if stopped_by is not None:
        return _outcome("stopped", -stopped_by)
    if first := first_failure(ranks):
        return _outcome("failed", int(first["returncode"]), first)
    if launcher != 0:
        return _outcome("failed", launcher)
    if unfinished := [record for record in ranks if record.get("returncode") != 0]:
        return _outcome("failed", -signal.SIGKILL, unfinished[0])
    return _outcome("failed", 1) if len(ranks) < world_size else _outcome("finished", 0)


def _outcome(how: str, returncode: int, first: Mapping[str, Any] | None = None) -> Outcome:
    return Outcome(how, exit_status(returncode), returncode, first)


def first_failure(ranks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Find the rank that failed first, of itself."""
    failed = [record for record in ranks if record.get("returncode") and record.get("stopped_by") is None]
    return min(failed, key=lambda record: float(record["ended"]), default=None)


def exit_status(returncode: int) -> int:
    """Killed by signal n is 128+n, as in every shell; it never looks like success."""
    return 128 - returncode if returncode < 0 else returncode
