"""What forecasts came to on this machine: a line for each run that had one."""

import contextlib
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zlaunch.rundir.record import RunRecord
from zlaunch.runs.memory import MemoryComparison
from zlaunch.units import plural


def accuracy_file(environ: Mapping[str, str]) -> Path:
    """Where it is kept, as the XDG base directories say."""
    state = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "zlaunch" / "forecasts.jsonl"


def record_accuracy(file: Path | None, record: RunRecord, comparison: MemoryComparison) -> None:
    """Add a run's differences, if there are any; a place that cannot be written is left alone."""
    percents = {pool.name.strip(): pool.percent for pool in comparison.pools if pool.percent is not None}
    if file is None or not percents:
        return
    facts = {
        "run": str(record.found.root),
        "started": record.started,
        "script": record.script,
        "stage": record.stage,
        "offload": dict(record.offload),
        "ranks": record.world_size,
        "percent": percents,
    }
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as lines:
            lines.write(json.dumps(facts) + "\n")


def read_accuracy(file: Path | None) -> list[Mapping[str, Any]]:
    """Read all lines that can be read."""
    if file is None:
        return []
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    found: list[Mapping[str, Any]] = []
    for line in lines:
        with contextlib.suppress(ValueError):
            facts = json.loads(line)
            if isinstance(facts, dict) and isinstance(facts.get("percent"), dict):
                found.append(facts)
    return found


def forecast_errors(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Say for each pool by how much forecasts were off; below zero they were too low."""
    pools: dict[str, list[float]] = {}
    for run in runs:
        for pool, percent in run["percent"].items():
            if isinstance(percent, int | float):
                pools.setdefault(str(pool), []).append(float(percent))
    return [(pool, _spread(off)) for pool, off in pools.items()]


def _spread(percents: Sequence[float]) -> str:
    mean, worst = statistics.fmean(percents), max(percents, key=abs)
    return f"{mean:+.1f} % on average, {worst:+.1f} % at worst, {plural(len(percents), 'run')}"


def default_accuracy_file() -> Path | None:
    """Where the experience of this user on this machine is; None for a user without a home."""
    try:
        return accuracy_file(os.environ)
    except RuntimeError:  # no HOME, and no entry in the password file, as in containers
        return None
