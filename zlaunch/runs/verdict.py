"""Why a run ended: the verdict that was written, or found again from what is left, or else what is known."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.diagnosis.evidence import Evidence, StallEvidence
from zlaunch.diagnosis.root_cause import Role, role_of, root_cause
from zlaunch.diagnosis.stall import rank_names
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.rundir.record import RunFiles, RunRecord, State, number, section, text
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


def headline(record: RunRecord) -> str:
    """Say in a few words what became of a run, and how long it took."""
    if record.state is State.BROKEN:
        return "no record of a run"
    took = "an unknown time" if record.seconds is None else duration(record.seconds)
    return f"{_HEADS[record.state]} {took}"


def verdict_of(record: RunRecord, now: float) -> Verdict | None:
    """Take the verdict that was written; without one, say what is known, and guess nothing."""
    found = record.found
    if text(found.told, "cause"):
        return _written(found.told)
    if record.state is State.FINISHED:
        return None
    if record.state is State.RUNNING:
        return Verdict("running", _doing(found) or "nothing is known of its ranks yet")
    return Verdict(
        code=f"{record.state.value}-without-verdict",
        cause=record.cause or record.state.value,
        facts=tuple(_facts(record, now))[:3],
    )


def rediagnose(evidence: Evidence, state: State) -> Verdict | None:
    """Find the verdict again that was not written; None where what is left does not suffice.

    Of a lost run it suffices if a rank failed of itself: else zlaunch was killed, and its ranks after it.
    """
    rank = root_cause(evidence)
    has_failed = rank is not None and role_of(rank, evidence) is Role.FAILED
    ended_known = state in (State.FAILED, State.STOPPED, State.STUMBLED)
    return diagnose(evidence) if has_failed or ended_known else None


def _written(written: Mapping[str, Any]) -> Verdict:
    facts, advice = (
        tuple(str(one) for one in said) if isinstance(said := written.get(name), list | tuple) else ()
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


def stall_of(found: RunFiles) -> StallEvidence | None:
    """Read where the ranks of a run stood still, if they did when it ended."""
    written = section(found.ending, "stall")
    seconds, odd = number(written, "seconds"), written.get("odd")
    if seconds is None:
        return None
    return StallEvidence(
        seconds,
        step=whole(written.get("step")) or 0,
        where={
            int(rank): str(place)
            for rank, place in section(written, "where").items()
            if str(rank).isdecimal()
        },
        odd=tuple(rank for rank in odd if isinstance(rank, int)) if isinstance(odd, list) else (),
        ended_job=written.get("ended_job") is True,
    )


def _facts(record: RunRecord, now: float) -> Iterator[str]:
    """Name what the ranks left: the last sign of life, and how many endings."""
    found = record.found
    if record.state in (State.LOST, State.UNKNOWN) and 0 < found.changed < now:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.changed))
        yield f"last sign of life: {at}, {duration(now - found.changed)} ago"
    if doing := _doing(found):
        yield f"last known: {doing}"
    if record.state in (State.LOST, State.UNKNOWN) and record.world_size:
        yield _endings(found, record.world_size)


def _doing(found: RunFiles) -> str:
    """Say which step the ranks are in, and what each of them does, if that is not the same."""
    phases: dict[str, list[int]] = {}
    for rank, pulse in found.pulses.items():
        phases.setdefault(text(pulse, "phase") or "unknown", []).append(rank)
    steps = [int(step) for pulse in found.pulses.values() if (step := number(pulse, "step")) is not None]
    told = [f"step {max(steps)}"] if steps else []
    if len(phases) == 1:
        told += list(phases)
    else:
        told += [f"{rank_names(ranks)} in {phase}" for phase, ranks in phases.items()]
    return ", ".join(told)


def _endings(found: RunFiles, world_size: int) -> str:
    left = [one for one in found.ranks.values() if whole(one.get("returncode")) is not None]
    return f"{len(left) or 'none'} of {plural(world_size, 'rank')} left an ending"
