"""The contents of the page about a run: numbers over time, the plan beside what was, memory, ds_config."""

import os
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from zlaunch import __version__
from zlaunch.diagnosis.collect import tail
from zlaunch.dsconfig.precision import precision_of
from zlaunch.dsconfig.text.document import dotted, leaves, value_at
from zlaunch.rundir.record import (
    EngineRecord,
    ErrorRecord,
    ForecastRecord,
    HeartbeatRecord,
    MetricsRecord,
    RankRecord,
    SampleRecord,
    SlotRecord,
    StepRecord,
)
from zlaunch.runs.history import RunHistory, memory_of_ranks, num_not_finite, span_of
from zlaunch.runs.memory import compare_with_forecast
from zlaunch.runs.run import Run, State
from zlaunch.runs.what_ran import differences, unused
from zlaunch.runs.why import headline, verdict_of
from zlaunch.secrets import hide_in, hide_in_text
from zlaunch.worker.hook.step_history import NUMBERS

FEW_RANKS: Final = 4
"""With more ranks, the least, the median and the most memory of all is shown, and ranks that stand out."""
FAR_SHARE: Final = 0.03
FAR_SPREADS: Final = 4
"""A rank stands out if it is so far from the median: a share of it, and so many times the median distance."""
MOST_NAMED: Final = 3
"""Ranks that are named because they stand out."""
MOST_BARS: Final = 8
"""Ranks whose time of a step is shown, the slowest ones."""
MOST_SPANS: Final = 300
"""Spans of time for which the shares of phases are drawn."""
MOST_ROWS: Final = 64
"""Ranks in the table, failed ones first."""
LOG_LINES: Final = 30
"""Last lines of the log of the rank that failed first."""
LOG_BYTES: Final = 16 * 1024

_NO_PROMISE: Final = ("optimizer", "steps")
"""DeepSpeed has its own class for an optimizer, and a run may end early."""

_OF_TORCH: Final = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""What torch.distributed writes before each line of a traceback."""
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

Seen = tuple[int, int]
"""How often the lines were joined that a page has, and how many of them it has."""


def report_of(run: Run, history: RunHistory, seen: tuple[Seen, Seen] = ((0, 0), (0, 0))) -> dict[str, Any]:
    """Describe a run as JSON values; of steps and samples only those that a page has not `seen`."""
    memory, verdict = compare_with_forecast(run), verdict_of(run)
    first = run.heartbeats.get(0, HeartbeatRecord())
    return {
        "id": run.id,
        "state": run.state.value,
        "is_over": run.state.is_over,
        "headline": headline(run),
        "verdict": None if verdict is None else {**asdict(verdict), "beginning": verdict.beginning},
        "written": time.time(),
        "zlaunch": __version__,
        "started": run.started,
        "seconds": run.seconds,
        "step": run.step,
        "steps": run.steps,
        "tokens": first.get("tokens"),
        "first_loss": first.get("first_loss"),
        "end_loss": first.get("end_loss"),
        "now": _now(run),
        "log": failed_log(run),
        "troubles": [*run.troubles, *history.troubles],
        "history": steps_since(run, history, seen[0]),
        "samples": samples_since(run, history, seen[1]),
        "step_time": _step_time(run),
        "phases": phase_seconds(history.steps.lines),
        "timeline": timeline(history.steps.lines, run.started or 0.0),
        "memory": {
            "pools": [asdict(pool) for pool in memory.pools],
            "remarks": list(memory.remarks),
            "phases": _predicted_phases(run.forecast),
        },
        "plan": _plan_rows(run),
        "differences": list(differences(run)),
        "ignored": unused(run),
        "config": list(_config(run)),
        "open": dict(run.provenance.get("left", {})),
        "ranks": _rank_rows(run),
        "num_ranks": run.world_size,
    }


def _step_time(run: Run) -> dict[str, Any] | None:
    """Describe the time of a step; of many ranks, the slowest ones."""
    found = run.step_time
    if found is None:
        return None
    ranks = sorted(found.ranks, key=lambda rank: -rank.own)[:MOST_BARS]
    return {
        "seconds": found.seconds,
        "parts": found.parts,
        "ranks": [{"rank": rank.rank, "seconds": rank.seconds, "parts": rank.parts} for rank in ranks],
        "num_ranks": len(found.ranks),
        "throughput": str(found.throughput),
        "predicted": found.predicted,
        "predicted_parts": found.predicted_parts,
        "losses": [asdict(loss.verdict) for loss in found.losses],
    }


def _now(run: Run) -> dict[str, object] | None:
    first = run.heartbeats.get(0)
    if first is None or run.state is not State.RUNNING:
        return None
    metrics = run.last_metrics
    figures = ("seconds_left", "seconds_per_step", "tokens_per_second")
    return {
        "phase": first.get("phase"),
        "since": first.get("since"),
        **{name: metrics.get(name) for name in figures},
    }


def failed_log(run: Run) -> dict[str, object] | None:
    """Return the end of the log of the rank that failed first, and its traceback if that is not in it."""
    if not run.state.is_over or run.state is State.FINISHED or run.verdict is None:
        return None
    rank, log, error = run.verdict.rank, run.paths.launcher_log, ErrorRecord()
    if rank is not None:
        log, error = run.paths.rank_log(rank), run.errors.get(rank, error)
    lines = _printed_lines(tail(log, LOG_BYTES))[-LOG_LINES:]
    traceback = _printed_lines(error.get("traceback", ""))
    if "\n".join(traceback) in _OF_TORCH.sub("", "\n".join(lines)):
        traceback = []
    if not lines and not traceback:
        return None
    return {
        "rank": rank,
        "file": str(log.relative_to(run.root)),
        "lines": hide_in_text("\n".join(lines)),
        "traceback": hide_in_text("\n".join(traceback)),
    }


def _printed_lines(text: str) -> list[str]:
    """Return the lines as a terminal shows them: without colours, and bars that were drawn over."""
    lines = _ESCAPES.sub("", text).split("\n")
    return [line.rstrip().rpartition("\r")[2] for line in lines if line.strip()]


def _last_step(run: Run, lines: Sequence[StepRecord]) -> StepRecord | None:
    """Read the last step from the heartbeat: its line is written when the next one ends."""
    first = run.heartbeats.get(0, HeartbeatRecord())
    step, known = first.get("step"), 0
    if lines:
        known = lines[-1].get("step", 0)
    if not step or step == known or "time" not in first:
        return None
    last: StepRecord = {"step": step, "time": first["time"]}
    if first.get("loss_step") == step and "loss" in first:
        last["loss"] = first["loss"]
    if first.get("seen_loss_step") == step and "step_loss" in first:
        last["step_loss"] = first["step_loss"]
    if "tokens" in first:
        last["tokens"] = first["tokens"]
    return last


def _start_of_new(num_lines: int, epoch: int, seen: Seen) -> int:
    """Where the lines begin that a page has not seen; all are new to it if they were joined since."""
    seen_epoch, num_seen = seen
    if seen_epoch == epoch and num_seen <= num_lines:
        return num_seen
    return 0


def _start_time(run: Run, lines: Sequence[StepRecord] | Sequence[MetricsRecord]) -> float:
    if run.started or not lines:
        return run.started or 0.0
    return lines[0].get("time", 0.0)


def steps_since(run: Run, history: RunHistory, seen: Seen) -> dict[str, Any]:
    """Return the columns of the steps after those that were seen, or of all if they were joined since."""
    lines, epoch = history.steps.lines, history.steps.epoch
    start, began = _start_of_new(len(lines), epoch, seen), _start_time(run, lines)
    unit, factor = _throughput_unit(run, lines)
    last = None if run.state is State.BROKEN else _last_step(run, lines)
    return {
        "epoch": epoch,
        "start": start,
        "unit": unit,
        **_columns(lines[start:], began),
        "rate": _rates(lines, start, unit, factor),
        "last": None if last is None else _columns([last], began),
    }


def _columns(lines: Sequence[StepRecord], began: float) -> dict[str, Any]:
    names = [name for name in NUMBERS if any(name in line for line in lines)]
    return {
        "step": [line.get("step") for line in lines],
        "count": [line.get("count", 1) for line in lines],
        "time": [round(line.get("time", began) - began, 3) for line in lines],
        "numbers": {name: [_number_of_line(line, name) for line in lines] for name in names},
    }


def _number_of_line(line: StepRecord, name: str) -> object:
    """Write a value, or the lowest, the highest and the last one, or how many are not finite."""
    span, lost = span_of(line, name), num_not_finite(line, name)
    if span is None:
        if lost:
            return {"lost": lost}
        return None
    low, high = span
    if low == high and not lost:
        return low
    return {"low": low, "high": high, "last": line.get(name), "lost": lost}


def _throughput_unit(run: Run, lines: Sequence[StepRecord]) -> tuple[str, float]:
    """Say what a second is measured in, and how many of it a step, or a token of one rank, is."""
    if any("tokens" in line for line in lines[-100:]):
        return "tokens/s", float(run.world_size or 1)
    engine = run.program.get("engine", {})
    batch = engine.get("train_batch_size") or run.job.get("train_batch_size")
    if batch:
        return ("samples/s", float(batch))
    return ("steps/s", 1.0)


def _rates(lines: Sequence[StepRecord], start: int, unit: str, factor: float) -> list[float | None]:
    before = next((line for line in reversed(lines[:start]) if line.get("count") != 0), None)
    rates: list[float | None] = []
    for line in lines[start:]:
        if line.get("count") == 0:
            rates.append(None)
            continue
        rates.append(None if before is None else _rate(before, line, unit, factor))
        before = line
    return rates


def _rate(before: StepRecord, line: StepRecord, unit: str, factor: float) -> float | None:
    if unit == "tokens/s":
        done = line.get("tokens", 0) - before.get("tokens", 0)
    else:
        done = line.get("step", 0) - before.get("step", 0)
    seconds = line.get("time", 0.0) - before.get("time", 0.0)
    if seconds <= 0 or done <= 0:
        return None
    return float(f"{done / seconds * factor:.5g}")


def phase_seconds(lines: Sequence[StepRecord]) -> dict[str, float]:
    """Add up the time that the first rank spent in each phase."""
    spent: dict[str, float] = {}
    for line in lines:
        for phase, seconds in line.get("phases", {}).items():
            spent[phase] = spent.get(phase, 0.0) + max(0.0, seconds)
    return spent


def timeline(lines: Sequence[StepRecord], began: float) -> list[tuple[float, dict[str, float]]]:
    """Return the end of at most `MOST_SPANS` spans of time, and the seconds that each phase took in it."""
    timed = [line for line in lines if "phases" in line]
    size = max(1, -(-len(timed) // MOST_SPANS))
    spans = []
    for start in range(0, len(timed), size):
        group = timed[start : start + size]
        seconds = {phase: round(spent, 3) for phase, spent in phase_seconds(group).items()}
        spans.append((round(group[-1].get("time", began) - began, 2), seconds))
    return spans


def samples_since(run: Run, history: RunHistory, seen: Seen) -> dict[str, Any]:
    """Return the memory of each rank in the samples after those that were seen."""
    lines, epoch = history.samples.lines, history.samples.epoch
    start, began = _start_of_new(len(lines), epoch, seen), _start_time(run, lines)
    new = lines[start:]
    return {
        "epoch": epoch,
        "start": start,
        "time": [round(line.get("time", began) - began, 3) for line in new],
        "host": _memory_columns(run, new, "rss_bytes", history.peaks("rss_bytes")),
        "gpu": _memory_columns(run, new, "gpu_used_bytes", history.peaks("gpu_used_bytes")),
    }


def _memory_columns(
    run: Run, lines: Sequence[MetricsRecord], name: str, peaks: Mapping[int, int]
) -> dict[str, Any]:
    """Return a column for each of few ranks; of many, a band and the ranks that stand out of it."""
    sizes = [memory_of_ranks(line, name) for line in lines]
    if not any(sizes):
        return {"band": {}, "ranks": {}}
    band, named = {}, sorted(peaks)
    if len(peaks) > FEW_RANKS:
        named = standing_out(peaks)
        spans = [_span_of_ranks(of_ranks) for of_ranks in sizes]
        band = {part: [span[at] for span in spans] for at, part in enumerate(("least", "median", "most"))}
    hosts = _hosts(run)
    columns = {_rank_name(rank, hosts): [of_ranks.get(rank) for of_ranks in sizes] for rank in named}
    return {"band": band, "ranks": columns}


def _span_of_ranks(sizes: Mapping[int, int]) -> tuple[int | None, int | None, int | None]:
    if not sizes:
        return None, None, None
    return min(sizes.values()), int(statistics.median(sizes.values())), max(sizes.values())


def standing_out(peaks: Mapping[int, int]) -> list[int]:
    """List the ranks whose memory is far from that of the others, the farthest first."""
    middle = statistics.median(peaks.values())
    distances = {rank: abs(size - middle) for rank, size in peaks.items()}
    far = max(FAR_SHARE * middle, FAR_SPREADS * statistics.median(distances.values()))
    ranks = [rank for rank, distance in distances.items() if distance > far]
    return sorted(ranks, key=lambda rank: -distances[rank])[:MOST_NAMED]


def _hosts(run: Run) -> dict[int, str]:
    """Return the host of each rank; nothing if there is but one."""
    hosts = {slot["rank"]: slot.get("host", "") for slot in run.job.get("ranks", []) if "rank" in slot}
    if len(set(hosts.values())) < 2:
        return {}
    return hosts


def _rank_name(rank: int, hosts: Mapping[int, str]) -> str:
    if host := hosts.get(rank):
        return f"rank {rank} ({host})"
    return f"rank {rank}"


def _predicted_phases(forecast: ForecastRecord) -> list[dict[str, object]]:
    pools = ("gpu", "reserved", "pageable", "pinned", "shm")
    rows: list[dict[str, object]] = []
    for phase in forecast.get("phases", []):
        peak = phase.get("peak", {})
        rows.append({"name": phase.get("name", "?"), **{pool: peak.get(pool) for pool in pools}})
    return rows


def _plan_rows(run: Run) -> list[dict[str, object]]:
    job, engine = run.job, run.program.get("engine")
    real = engine or EngineRecord()
    rows = (
        ("ranks", run.world_size, len(run.heartbeats) or None),
        ("ZeRO stage", job.get("stage"), real.get("stage")),
        ("precision", job.get("precision"), precision_of(engine.get("ds_config", {})) if engine else None),
        ("batch of one rank", job.get("micro_batch"), real.get("micro_batch")),
        ("accumulated batches", job.get("grad_accum"), real.get("grad_accum")),
        ("global batch", job.get("train_batch_size"), real.get("train_batch_size")),
        ("optimizer", value_at(run.config, ("optimizer", "type")), real.get("optimizer")),
        ("steps", run.steps, run.step),
    )
    return [_plan_row(name, planned, was) for name, planned, was in rows if (planned, was) != (None, None)]


def _plan_row(name: str, planned: object, was: object) -> dict[str, object]:
    is_known = planned is not None and was is not None
    differs = is_known and planned != was and name not in _NO_PROMISE
    return {"name": name, "planned": planned, "real": was, "differs": differs}


def _config(run: Run) -> Iterator[dict[str, object]]:
    sources, expected = run.provenance.get("set", {}), run.provenance.get("expected", run.config)
    real = run.program.get("engine", {}).get("ds_config", {})
    for path, value in leaves(run.config):
        name, used = dotted(path), value_at(real, path)
        row = {"name": name, "value": hide_in(value, name), "source": sources.get(name, "")}
        if used not in (None, value):
            row["used"] = hide_in(used, name)
            row["differs"] = value_at(expected, path) not in ("auto", None, used)
        yield row
    if not run.config:
        for path, value in leaves(real):
            yield {"name": dotted(path), "value": hide_in(value, dotted(path)), "source": "the script"}


def _rank_rows(run: Run) -> list[dict[str, object]]:
    first = None if run.verdict is None else run.verdict.rank
    slots = {slot["rank"]: slot for slot in run.job.get("ranks", []) if "rank" in slot}
    numbers = sorted({*slots, *run.ranks, *run.heartbeats})
    rows = [_rank(run, number, slots.get(number, SlotRecord())) for number in numbers]
    rows.sort(key=lambda row: (row["rank"] != first, row["returncode"] in (None, 0)))
    return rows[:MOST_ROWS]


def _rank(run: Run, number: int, slot: SlotRecord) -> dict[str, object]:
    rank = run.ranks.get(number, RankRecord())
    heartbeat = run.heartbeats.get(number, HeartbeatRecord())
    sample = run.samples.get(number, SampleRecord())
    return {
        "rank": number,
        "host": rank.get("host", slot.get("host")),
        "device": slot.get("device"),
        "phase": heartbeat.get("phase"),
        "step": heartbeat.get("step"),
        "returncode": rank.get("returncode"),
        "resident": rank.get("peak_rss_bytes") or sample.get("peak_rss_bytes") or sample.get("rss_bytes"),
        "gpu": heartbeat.get("gpu_reserved_bytes"),
        "log": os.path.join("logs", f"rank-{number}.log"),  # noqa: PTH118 - as the page shows it
    }
