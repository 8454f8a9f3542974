"""The contents of the page about a run: numbers over time, the plan beside what was, memory, ds_config."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from zlaunch import __version__
from zlaunch.dsconfig.text.document import dotted, leaves, value_at
from zlaunch.rundir.record import HeartbeatRecord, MetricsRecord, StepRecord
from zlaunch.rundir.run_files import RunFiles
from zlaunch.runs.history import NUMBERS, RunHistory, num_not_finite, span_of
from zlaunch.runs.memory import compare_with_forecast
from zlaunch.runs.state import RunSummary, State
from zlaunch.runs.what_ran import differences, program_of
from zlaunch.runs.why import headline, verdict_of
from zlaunch.secrets import hide_in, is_secret

MOST_RANKS: Final = 16
"""With more ranks, only the smallest and the largest memory of all is shown."""
MOST_SPANS: Final = 300
"""Spans of time for which the shares of phases are drawn."""
MOST_ROWS: Final = 64
"""Ranks in the table, failed ones first."""

_NO_PROMISE: Final = ("optimizer", "steps")
"""DeepSpeed has its own class for an optimizer, and a run may end early."""

Seen = tuple[int, int]
"""How often the lines were joined that a page has, and how many of them it has."""


def report_of(
    run: RunSummary, history: RunHistory, seen: tuple[Seen, Seen] = ((0, 0), (0, 0))
) -> dict[str, Any]:
    """Describe a run as JSON values; of steps and samples only those that a page has not `seen`."""
    files, memory = run.files, compare_with_forecast(run)
    verdict = verdict_of(run, time.time())
    return {
        "id": run.id,
        "state": run.state.value,
        "is_over": run.state.is_over,
        "headline": headline(run),
        "verdict": None if verdict is None else asdict(verdict),
        "written": time.time(),
        "zlaunch": __version__,
        "started": run.started,
        "seconds": run.seconds,
        "step": run.step,
        "steps": run.steps,
        "tokens": files.heartbeats.get(0, {}).get("tokens"),
        "first_loss": files.heartbeats.get(0, {}).get("first_loss"),
        "now": _now(run),
        "troubles": [*files.troubles, *history.troubles],
        "history": steps_since(run, history, seen[0]),
        "samples": samples_since(run, history, seen[1]),
        "phases": phase_seconds(history.steps.lines),
        "timeline": timeline(history.steps.lines, run.started or 0.0),
        "memory": {
            "pools": [asdict(pool) for pool in memory.pools],
            "remarks": list(memory.remarks),
            "phases": _predicted_phases(files),
        },
        "plan": [*_plan(run)],
        "differences": [_without_secret(one) for one in differences(files)],
        "config": [*_config(files)],
        "open": dict(files.provenance.get("left", {})),
        "ranks": _ranks(run),
        "num_ranks": run.world_size,
    }


def _now(run: RunSummary) -> dict[str, object] | None:
    """Say what the first rank is doing, and since when."""
    first = run.files.heartbeats.get(0)
    if first is None or run.state is not State.RUNNING:
        return None
    return {"phase": first.get("phase"), "since": first.get("since")}


def _last_step(files: RunFiles, lines: Sequence[StepRecord]) -> StepRecord | None:
    """Read the last step from the heartbeat: its line is written when the next one ends."""
    first: HeartbeatRecord = files.heartbeats.get(0, {})
    step, last = first.get("step"), max((one.get("step", 0) for one in lines[-1:]), default=0)
    if not step or step == last or "time" not in first:
        return None
    found: StepRecord = {"step": step, "time": first["time"]}
    if first.get("loss_step") == step and "loss" in first:
        found["loss"] = first["loss"]
    if first.get("seen_loss_step") == step and "step_loss" in first:
        found["step_loss"] = first["step_loss"]
    if "tokens" in first:
        found["tokens"] = first["tokens"]
    return found


def steps_since(run: RunSummary, history: RunHistory, seen: Seen) -> dict[str, Any]:
    """Return the columns of the steps after those that were seen, or of all if they were joined since."""
    lines, epoch = history.steps.lines, history.steps.epoch
    start = seen[1] if seen[0] == epoch and seen[1] <= len(lines) else 0
    new = lines[start:]
    began = run.started or (lines[0].get("time", 0.0) if lines else 0.0)
    unit, factor = _throughput_unit(run, lines)
    last = _last_step(run.files, lines) if run.state is not State.BROKEN else None
    return {
        "epoch": epoch,
        "start": start,
        "unit": unit,
        **_columns(new, began),
        "rate": _rates(lines, start, unit, factor),
        "last": None if last is None else _columns([last], began),
    }


def _columns(lines: Sequence[StepRecord], began: float) -> dict[str, Any]:
    names = [name for name in NUMBERS if any(name in line for line in lines)]
    return {
        "step": [line.get("step") for line in lines],
        "count": [line.get("count", 1) for line in lines],
        "time": [round(line.get("time", began) - began, 3) for line in lines],
        "numbers": {name: [_number(line, name) for line in lines] for name in names},
    }


def _number(line: StepRecord, name: str) -> object:
    """Write a value, or the lowest, the highest and the last one, or how many are not finite."""
    span, value = span_of(line, name), line.get(name)
    if span is None:
        lost = num_not_finite(line, name)
        return {"lost": lost} if lost else None
    if span[0] == span[1] and not num_not_finite(line, name):
        return span[0]
    return {"low": span[0], "high": span[1], "last": value, "lost": num_not_finite(line, name)}


def _throughput_unit(run: RunSummary, lines: Sequence[StepRecord]) -> tuple[str, float]:
    """Say what a second is measured in, and how many of it a step, or a token of one rank, is."""
    if any("tokens" in line for line in lines[-100:]):
        return "tokens/s", float(run.world_size or 1)
    engine = program_of(run.files).get("engine", {})
    batch = engine.get("train_batch_size") or run.files.job.get("train_batch_size")
    return ("samples/s", float(batch)) if batch else ("steps/s", 1.0)


def _rates(lines: Sequence[StepRecord], start: int, unit: str, factor: float) -> list[float | None]:
    """Compute the throughput of each line from the line before it."""
    before = next((one for one in reversed(lines[:start]) if one.get("count") != 0), None)
    found: list[float | None] = []
    for line in lines[start:]:
        if line.get("count") == 0:
            found.append(None)
            continue
        found.append(None if before is None else _rate(before, line, unit, factor))
        before = line
    return found


def _rate(before: StepRecord, line: StepRecord, unit: str, factor: float) -> float | None:
    if unit == "tokens/s":
        done = line.get("tokens", 0) - before.get("tokens", 0)
    else:
        done = line.get("step", 0) - before.get("step", 0)
    took = line.get("time", 0.0) - before.get("time", 0.0)
    return float(f"{done / took * factor:.5g}") if took > 0 and done > 0 else None


def phase_seconds(lines: Sequence[StepRecord]) -> dict[str, float]:
    """Add up the time that the first rank spent in each phase."""
    spent: dict[str, float] = {}
    for line in lines:
        for phase, seconds in line.get("phases", {}).items():
            spent[phase] = spent.get(phase, 0.0) + max(0.0, seconds)
    return spent


def timeline(lines: Sequence[StepRecord], began: float) -> list[tuple[float, dict[str, float]]]:
    """Return the end of at most `MOST_SPANS` spans of time, and the seconds that each phase took in it."""
    told = [line for line in lines if "phases" in line]
    size = max(1, -(-len(told) // MOST_SPANS))
    groups = (told[at : at + size] for at in range(0, len(told), size))
    return [
        (
            round(group[-1].get("time", began) - began, 2),
            {phase: round(seconds, 3) for phase, seconds in phase_seconds(group).items()},
        )
        for group in groups
    ]


def samples_since(run: RunSummary, history: RunHistory, seen: Seen) -> dict[str, Any]:
    """Return the memory of each rank in the samples after those that were seen."""
    lines, epoch = history.samples.lines, history.samples.epoch
    start = seen[1] if seen[0] == epoch and seen[1] <= len(lines) else 0
    new = lines[start:]
    began = run.started or (lines[0].get("time", 0.0) if lines else 0.0)
    return {
        "epoch": epoch,
        "start": start,
        "time": [round(line.get("time", began) - began, 3) for line in new],
        "host": _memory_columns(run, new, "rss_bytes"),
        "gpu": _memory_columns(run, new, "gpu_used_bytes"),
    }


def _memory_columns(run: RunSummary, lines: Sequence[MetricsRecord], name: str) -> dict[str, list[object]]:
    """Return a column for each rank, or one each for the smallest and the largest of many."""
    found = [
        {
            one.get("rank"): size
            for one in line.get("ranks", [])
            if isinstance(size := one.get(name), int) and size > 0
        }
        for line in lines
    ]
    if not any(found):
        return {}
    if (run.world_size or 1) > MOST_RANKS:
        smallest = [min(one.values(), default=None) for one in found]
        return {"smallest": [*smallest], "largest": [max(one.values(), default=None) for one in found]}
    ranks = sorted({rank for one in found for rank in one if isinstance(rank, int)})
    return {f"rank {rank}": [one.get(rank) for one in found] for rank in ranks}


def _predicted_phases(files: RunFiles) -> list[dict[str, object]]:
    pools = ("gpu", "reserved", "pageable", "pinned", "shm")
    return [
        {"name": phase.get("name", "?"), **{pool: phase.get("peak", {}).get(pool) for pool in pools}}
        for phase in files.forecast.get("phases", [])
    ]


def _plan(run: RunSummary) -> Iterator[dict[str, object]]:
    """Set the plan beside what the first rank's script trained with."""
    files = run.files
    job, engine = files.job, program_of(files).get("engine", {})
    real = engine.get("ds_config", {})
    used = [name for name in ("bf16", "fp16") if value_at(real, (name, "enabled")) is True]
    asked = value_at(files.config, ("optimizer", "type"))
    rows = (
        ("ranks", run.world_size, len(files.heartbeats) or None),
        ("ZeRO stage", job.get("stage"), engine.get("stage")),
        ("precision", job.get("precision"), next(iter(used), "fp32" if engine else None)),
        ("batch of one rank", job.get("micro_batch"), engine.get("micro_batch")),
        ("accumulated batches", job.get("grad_accum"), engine.get("grad_accum")),
        ("global batch", job.get("train_batch_size"), engine.get("train_batch_size")),
        ("optimizer", asked, engine.get("optimizer")),
        ("steps", run.steps, run.step),
    )
    for name, planned, was in rows:
        if planned is not None or was is not None:
            differs = None not in (planned, was) and planned != was and name not in _NO_PROMISE
            yield {"name": name, "planned": planned, "real": was, "differs": differs}


def _config(files: RunFiles) -> Iterator[dict[str, object]]:
    """List the keys of the ds_config, their sources, and what the engine read instead."""
    sources = files.provenance.get("set", {})
    real = program_of(files).get("engine", {}).get("ds_config", {})
    for path, value in leaves(files.config):
        name, used = dotted(path), value_at(real, path)
        row = {"name": name, "value": hide_in(value, name), "source": sources.get(name, "")}
        yield {**row, "used": hide_in(used, name)} if used not in (None, value) else row
    if not files.config:
        for path, value in leaves(real):
            yield {"name": dotted(path), "value": hide_in(value, dotted(path)), "source": "the script"}


def _without_secret(difference: str) -> str:
    """Leave the values out of a difference between two values of a key that may be secret."""
    before, _, rest = difference.partition("`")
    key, _, _ = rest.partition("`")
    return f"`{key}` differs" if not before and is_secret(key) else difference


def _ranks(run: RunSummary) -> list[dict[str, object]]:
    """List the ranks: the one that failed first, others that failed, then the rest."""
    files, first = run.files, None if run.verdict is None else run.verdict.rank
    slots = {slot["rank"]: slot for slot in files.job.get("ranks", []) if "rank" in slot}
    numbers = sorted({*slots, *files.ranks, *files.heartbeats})
    rows = [_rank(files, number, slots.get(number, {})) for number in numbers]
    rows.sort(key=lambda row: (row["rank"] != first, row["returncode"] in (None, 0)))
    return rows[:MOST_ROWS]


def _rank(files: RunFiles, number: int, slot: Mapping[str, object]) -> dict[str, object]:
    own, beat, sample = (
        files.ranks.get(number, {}),
        files.heartbeats.get(number, {}),
        files.samples.get(number, {}),
    )
    return {
        "rank": number,
        "host": own.get("host", slot.get("host")),
        "device": slot.get("device"),
        "phase": beat.get("phase"),
        "step": beat.get("step"),
        "returncode": own.get("returncode"),
        "resident": own.get("peak_rss_bytes") or sample.get("peak_rss_bytes") or sample.get("rss_bytes"),
        "gpu": beat.get("gpu_reserved_bytes"),
        "log": os.path.join("logs", f"rank-{number}.log"),  # noqa: PTH118 - as the page shows it
    }
