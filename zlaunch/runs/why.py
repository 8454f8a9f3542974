"""Explain why a run ended: the recorded or derived verdict, or else what is known."""

import time
from collections.abc import Iterator

from zlaunch.diagnosis.stall_text import rank_names
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.rundir.run_files import RunFiles
from zlaunch.runs.state import RunSummary, State
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


def headline(run: RunSummary) -> str:
    """Say in a few words how a run ended, and how long it took."""
    if run.state is State.BROKEN:
        return "no record of a run"
    took = "an unknown time" if run.seconds is None else duration(run.seconds)
    return f"{HEADS[run.state]} {took}"


def verdict_of(run: RunSummary, now: float) -> Verdict | None:
    """Take the verdict of a run; without one, say what is known and guess nothing."""
    if run.verdict is not None or run.state is State.FINISHED:
        return run.verdict
    if run.state is State.RUNNING:
        return Verdict("running", _doing(run.files) or "its ranks have not reported yet")
    return Verdict(
        code=f"{run.state.value}-without-verdict",
        cause=run.cause or run.state.value,
        facts=tuple(_facts(run, now))[:3],
    )


def _facts(run: RunSummary, now: float) -> Iterator[str]:
    files, out_of_sight = run.files, run.state in (State.LOST, State.UNKNOWN)
    if out_of_sight and 0 < files.changed < now:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(files.changed))
        yield f"last update: {at}, {duration(now - files.changed)} ago"
    if doing := _doing(files):
        yield f"last known: {doing}"
    if out_of_sight and run.world_size:
        ended = sum("returncode" in rank for rank in files.ranks.values())
        yield f"{ended or 'none'} of {plural(run.world_size, 'rank')} recorded an end"


def _doing(files: RunFiles) -> str:
    """Say which step the ranks are in, and the phase of each, if they differ."""
    phases: dict[str, list[int]] = {}
    for rank, heartbeat in files.heartbeats.items():
        phases.setdefault(heartbeat.get("phase") or "unknown", []).append(rank)
    steps = [heartbeat["step"] for heartbeat in files.heartbeats.values() if "step" in heartbeat]
    words = [f"step {max(steps)}"] if steps else []
    several = len(phases) > 1
    words += [f"{rank_names(ranks)} in {phase}" if several else phase for phase, ranks in phases.items()]
    return ", ".join(words)
