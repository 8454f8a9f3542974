"""The profile that was asked for: what it holds, or why it is not there."""

import re
import shlex
from pathlib import Path
from typing import Final

from zlaunch.rundir.read import read_rank_records
from zlaunch.rundir.record import OperationsRecord
from zlaunch.rundir.run_files import RunFiles
from zlaunch.units import plural, steps_text

_OPTION: Final = "--profile"
NSYS_REPORTS: Final = "*.nsys-rep"


def nsys_reports(run: RunFiles) -> list[Path]:
    """List the reports of Nsight Systems, of each rank one."""
    return sorted(run.paths.ranks.glob(NSYS_REPORTS))


def profile_note(run: RunFiles) -> str | None:
    """Say what of a profile is not there, and why; None if it is, or none was asked for."""
    profile, began = run.job.get("profile"), run.heartbeats.get(0, {}).get("first_step", 0)
    if not profile or nsys_reports(run):
        return None
    first, last = profile.get("first"), profile.get("last")
    for record in read_rank_records(run.paths, OperationsRecord).values():
        if first is None or last is None:
            return None
        begun = record.get("first", first)
        whole = record.get("whole_steps", last - begun + 1)
        if begun + whole <= last:
            has = f"{plural(whole, 'whole step')} of {steps_text(first, last)}"
            return f"the profile has {has}: the script ended before step {begun + whole} did"
        if begun <= first:
            return None
        return f"the profile has {steps_text(begun, last)}: the run began at step {began}"
    if run.previous is not None and (nsys_reports(run.previous) or _has_operations(run.previous)):
        return None
    if first is None:
        return "nsys wrote no report: `zlaunch runs logs` shows what it printed"
    return done_before(run) or _not_reached(run, first)


def _not_reached(run: RunFiles, first: int) -> str:
    """Say how far a run came that wrote no profile: a rank that was killed may have been in the steps."""
    reached = max((beat.get("step", 0) for beat in run.heartbeats.values()), default=0)
    why = "and the rank ended without writing one"
    if reached + 1 < first:
        why = f"before step {first}"
    return f"no profile was written: the last step that the run reported is {reached}, {why}"


def done_before(run: RunFiles) -> str | None:
    """Say that a run began after the steps of its profile, and what to type; None if it did not."""
    profile, began = run.job.get("profile"), run.heartbeats.get(0, {}).get("first_step")
    first, last = (profile or {}).get("first"), (profile or {}).get("last")
    if first is None or last is None or began is None or began < last:
        return None
    steps = f"{began + 1}-{began + 1 + last - first}".removesuffix(f"-{began + 1}")
    typed = _typed(run.job.get("asked", []), steps)
    return f"{steps_text(first, last)} to profile were done before this run began at step {began}: `{typed}`"


def _has_operations(run: RunFiles) -> bool:
    return any(run.paths.ranks.glob("*.operations.json"))


def _typed(asked: list[str], steps: str) -> str:
    """Write the command line with other steps; the option alone if it was set elsewhere."""
    words = ["zlaunch", *asked[1:]]
    for number, word in enumerate(words):
        if word == "--":
            break
        if word.startswith(f"{_OPTION}="):
            words[number] = f"{_OPTION}={_other(word.partition('=')[2], steps)}"
            return shlex.join(words)
        if word == _OPTION and number + 1 < len(words):
            words[number + 1] = _other(words[number + 1], steps)
            return shlex.join(words)
    return f"{_OPTION} {steps}"


def _other(value: str, steps: str) -> str:
    return re.sub(r"[0-9]+(-[0-9]+)?", steps, value, count=1)
