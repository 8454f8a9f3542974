"""How accurate forecasts were on this machine: one line for each run that had a forecast."""

import contextlib
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from zlaunch.files import read_regular
from zlaunch.rundir.read import parse_record
from zlaunch.rundir.record import Finite
from zlaunch.runs.memory import MemoryComparison
from zlaunch.runs.run import Run
from zlaunch.units import plural, signed_percent


class AccuracyRecord(TypedDict, total=False):
    """One run: pool → how many percent its forecast was too high."""

    run: str
    started: Finite | None
    script: str | None
    stage: int | None
    offload: dict[str, str]
    ranks: int | None
    percent: dict[str, Finite]


def accuracy_file() -> Path | None:
    """Find the file of this user, as the XDG base directories say; None for a user without a home."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:  # no HOME, and no entry in the password file, as in containers
        return None
    return Path(state) / "zlaunch" / "forecasts.jsonl"


def record_accuracy(file: Path | None, run: Run, comparison: MemoryComparison) -> None:
    """Add a run's differences, if any; a file that cannot be written is ignored."""
    percents = {pool.name.strip(): pool.percent for pool in comparison.pools if pool.percent is not None}
    if file is None or not percents:
        return
    record: AccuracyRecord = {
        "run": str(run.root),
        "started": run.started,
        "script": run.script,
        "stage": run.stage,
        "offload": dict(run.offload),
        "ranks": run.world_size,
        "percent": percents,
    }
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as lines:
            lines.write(json.dumps(record) + "\n")


def read_accuracy(file: Path | None) -> list[AccuracyRecord]:
    """Read all lines that can be read."""
    try:
        lines = [] if file is None else read_regular(file).splitlines()
    except OSError:
        return []
    records = (parse_record(line, AccuracyRecord) for line in lines)
    return [record for record in records if "percent" in record]


def forecast_errors(runs: Sequence[AccuracyRecord]) -> list[tuple[str, str]]:
    """Say for each pool how far forecasts were off; negative if they were too low."""
    pools: dict[str, list[float]] = {}
    for run in runs:
        for pool, percent in run["percent"].items():
            pools.setdefault(pool, []).append(percent)
    return [(pool, _spread(off)) for pool, off in pools.items()]


def _spread(percents: Sequence[float]) -> str:
    mean, worst = statistics.fmean(percents), max(percents, key=abs)
    spread = f"{signed_percent(mean, 1)} on average, {signed_percent(worst, 1)} at worst"
    return f"{spread}, {plural(len(percents), 'run')}"
