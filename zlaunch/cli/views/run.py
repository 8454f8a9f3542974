"""A run as JSON and in table cells, for all commands of `zlaunch runs`."""

import json
import math
import time
from collections.abc import Mapping
from typing import Any

from zlaunch.rundir.record import RunRecord


def members(record: RunRecord) -> dict[str, Any]:
    """List the JSON members that every command shares."""
    return {
        "id": record.id,
        "directory": str(record.found.root.absolute()),
        "state": record.state.value,
        "started": record.started,
        "seconds": record.seconds,
        "script": record.script,
        "stage": record.stage,
        "offload": dict(record.offload),
        "ranks": record.world_size,
        "step": record.step,
        "steps": record.steps,
        "exit_status": record.exit_status,
        "cause": record.cause,
        "troubles": list(record.found.troubles),
    }


def to_json(value: Any) -> str:
    """Write strict JSON, with NaN and infinity as strings."""
    return json.dumps(_strict(value), indent=2)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _strict(child) for key, child in value.items()}
    return [_strict(child) for child in value] if isinstance(value, list | tuple) else value


def zero(record: RunRecord) -> str:
    """Write stage and offload, optimizer first: `3`, `3 cpu`, `3 cpu/nvme`, `2 cpu/-`."""
    if record.stage is None:
        return "?"
    places = [record.offload.get(part, "-") for part in ("optimizer", "param")]
    if places == ["-", "-"]:
        return str(record.stage)
    return f"{record.stage} {places[0] if places[0] == places[1] else '/'.join(places)}"


def steps(record: RunRecord) -> str:
    """Write the progress of a run: `12/100`, `12`, or `-` if no step was reported."""
    if record.steps is None:
        return str(record.step) if record.step else "-"
    return f"{record.step or 0}/{record.steps}"


def moment(seconds: float | None, now: float) -> str:
    """Write a time in at most 7 columns: the time of day, the day or the month."""
    if seconds is None or not 0 <= seconds < 1e11:
        return "?"
    then, today = time.localtime(seconds), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M", then)
    return time.strftime("%b %d", then) if then.tm_year == today.tm_year else time.strftime("%Y-%m", then)


def long_moment(seconds: float | None) -> str:
    """Write a date and time, to the second."""
    if seconds is None or not 0 <= seconds < 1e11:
        return "unknown"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
