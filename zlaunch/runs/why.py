"""Explain why a run ended: the recorded or derived verdict, or else what is known."""

import time
from collections.abc import Iterator

from zlaunch.diagnosis.stall import rank_names
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.runs.run import Run, State
from zlaunch.units import duration, plural

HEADS = {
    State.RUNNING: "running for",
    State.FINISHED: "finished in",
    State.STUMBLED: "finished training in",
    State.FAILED: "failed after",
    State.STOPPED: "stopped after",
    State.PREEMPTED: "preempted after",
    State.STALLED: "stalled; stopped after",
    State.LOST: "lost after",
    State.UNKNOWN: "state unknown after",
}


def headline(run: Run) -> str:
    """Say in a few words how a run ended, and how long it took."""
    if run.state is State.BROKEN:
        return "no record of a run"
    took = "an unknown time" if run.seconds is None else duration(run.seconds)
    return f"{HEADS[run.state]} {took}"


def verdict_of(run: Run) -> Verdict | None:
    """Take the verdict of a run; without one, say what is known and guess nothing."""
    if run.verdict is not None or run.state is State.FINISHED:
        return run.verdict
    if run.state is State.RUNNING:
        return Verdict("running", _doing(run) or "its ranks have not reported yet")
    return Verdict(
        code=f"{run.state.value}-without-verdict",
        cause=run.cause or run.state.value,
        facts=tuple(_facts(run))[:3],
    )


def _facts(run: Run) -> Iterator[str]:
    is_out_of_sight = run.state in (State.LOST, State.UNKNOWN)
    if is_out_of_sight and 0 < run.changed < run.now:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.changed))
        yield f"last update: {moment}, {duration(run.now - run.changed)} ago"
    if doing := _doing(run):
        yield f"last known: {doing}"
    if is_out_of_sight and run.world_size:
        ended = sum("returncode" in rank for rank in run.ranks.values())
        yield f"{ended or 'none'} of {plural(run.world_size, 'rank')} recorded an end"


def _doing(run: Run) -> str:
    phases: dict[str, list[int]] = {}
    for rank, heartbeat in run.heartbeats.items():
        phases.setdefault(heartbeat.get("phase") or "unknown", []).append(rank)
    parts = []
    if steps := [heartbeat["step"] for heartbeat in run.heartbeats.values() if "step" in heartbeat]:
        parts.append(f"step {max(steps)}")
    if len(phases) == 1:
        parts += phases
    else:
        parts += [f"{rank_names(ranks)} in {phase}" for phase, ranks in phases.items()]
    return ", ".join(parts)
