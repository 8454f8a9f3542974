"""Why a run ended, as far as its files tell: the verdict that was written, or else what is known."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from zlaunch.diagnosis.verdict import Verdict
from zlaunch.record import Found, RunRecord, State, ended, first_failure, number, section, text
from zlaunch.units import duration, plural, whole

_HEADS = {
    State.RUNNING: "running for",
    State.FINISHED: "finished in",
    State.STUMBLED: "trained to the end in",
    State.FAILED: "failed after",
    State.STOPPED: "stopped after",
    State.STALLED: "ended for its stall after",
    State.LOST: "lost after",
    State.UNKNOWN: "out of sight after",
}


def head(record: RunRecord) -> str:
    """Say in a few words what became of a run, and how long it took."""
    if record.state is State.BROKEN:
        return "no record of a run"
    took = "an unknown time" if record.seconds is None else duration(record.seconds)
    return f"{_HEADS[record.state]} {took}"


def verdict_of(record: RunRecord, now: float) -> Verdict | None:
    """Take the verdict that was written; without one, say what is known, and guess nothing."""
    found = record.found
    written = section(found.ending, "verdict")
    if text(written, "cause"):
        return _written(written)
    if record.state is State.FINISHED:
        return None
    if record.state is State.RUNNING:
        return Verdict("running", _doing(found) or "nothing is known of its ranks yet")
    first = first_failure(found.ranks.values()) or {}
    rank = whole(first.get("rank"))
    error = {} if rank is None else found.errors.get(rank, {})
    pulse = {} if rank is None else found.pulses.get(rank, {})
    return Verdict(
        code=f"{record.state.value}-without-verdict",
        cause=record.cause or record.state.value,
        rank=rank,
        host=text(first, "host"),
        phase=text(error, "phase") or text(pulse, "phase"),
        facts=tuple(_facts(record, error, now))[:3],
    )


def _written(written: Mapping[str, Any]) -> Verdict:
    facts, advice = (
        tuple(str(one) for one in said) if isinstance(said := written.get(name), list) else ()
        for name in ("facts", "advice")
    )
    return Verdict(
        code=text(written, "code") or "",
        cause=text(written, "cause") or "",
        rank=whole(written.get("rank")),
        host=text(written, "host"),
        phase=text(written, "phase"),
        facts=facts,
        advice=advice,
    )


def _facts(record: RunRecord, error: Mapping[str, Any], now: float) -> Iterator[str]:
    """Name what the ranks left: where an exception came from, the last sign of life, who ended how."""
    found, frame = record.found, section(error, "frame")
    if text(frame, "file"):
        yield f"{frame['file']}:{frame.get('line')} in {frame.get('function')}"
    if record.state in (State.LOST, State.UNKNOWN) and 0 < found.changed < now:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.changed))
        yield f"last sign of life: {at}, {duration(now - found.changed)} ago"
    if doing := _doing(found):
        yield f"last known: {doing}"
    if record.state in (State.LOST, State.UNKNOWN) and record.world_size:
        yield _endings(found, record.world_size)


def _doing(found: Found) -> str:
    """Say which step the ranks are in, and what each of them does, if that is not the same."""
    phases: dict[str, list[int]] = {}
    for rank, pulse in found.pulses.items():
        phases.setdefault(text(pulse, "phase") or "unknown", []).append(rank)
    steps = [int(step) for pulse in found.pulses.values() if (step := number(pulse, "step")) is not None]
    told = [f"step {max(steps)}"] if steps else []
    if len(phases) == 1:
        told += list(phases)
    else:
        told += [
            f"{'rank' if len(ranks) == 1 else 'ranks'} {_some(ranks)} in {phase}"
            for phase, ranks in phases.items()
        ]
    return ", ".join(told)


def _some(ranks: list[int]) -> str:
    listed = ", ".join(map(str, ranks[:4]))
    return listed if len(ranks) <= 4 else f"{listed} and {len(ranks) - 4} more"


def _endings(found: Found, world_size: int) -> str:
    returncodes = [code for one in found.ranks.values() if (code := whole(one.get("returncode"))) is not None]
    if not returncodes:
        return f"none of {plural(world_size, 'rank')} left an ending"
    how = ", ".join(sorted({ended(code) for code in returncodes}))
    return f"{len(returncodes)} of {plural(world_size, 'rank')} left an ending: {how}"
