"""Ranks that finish before others, which then wait for them in a collective."""

from typing import NamedTuple

from zlaunch.diagnosis.evidence import Evidence, RankEvidence
from zlaunch.diagnosis.stall import rank_names
from zlaunch.rundir import phases
from zlaunch.units import plural


class Unevenness(NamedTuple):
    """Who finished when, and what to change."""

    cause: str
    advice: str
    rank: RankEvidence
    """The first rank that finished."""


def unevenness(evidence: Evidence) -> Unevenness | None:
    """Find ranks that finished while another one went on; None if there are none, or without steps."""
    finished = [rank for rank in evidence.ranks if rank.finished]
    going = [rank for rank in evidence.ranks if not rank.finished and not rank.never_started]
    if not finished or not going:
        return None
    first, last = min(finished, key=lambda rank: rank.step), max(going, key=lambda rank: rank.step)
    if not 0 < first.step <= last.step:
        return None
    early = rank_names([rank.rank for rank in finished if rank.step == first.step])
    early = f"{early} had ended with status 0 after {plural(first.step, 'step')}"
    cause = f"{early} while rank {last.rank} was"
    if _is_training(last):
        return Unevenness(
            f"{cause} in step {last.step + 1}, and communicated with it",
            "have all ranks take as many steps; usually one has fewer batches, which `drop_last=True` in the "
            "sampler and the DataLoader prevents, or has left the loop, as by `sys.exit`",
            first,
        )
    place = "not at its end"
    if phase := last.last_phase:
        place = f"in `{phase}`"
    return Unevenness(
        f"{cause} {place}, and communicated with it",
        "have all ranks make the same calls after the training, or wait at a `barrier()` before they end",
        first,
    )


def _is_training(rank: RankEvidence) -> bool:
    is_over = rank.heartbeat.get("trained") or rank.heartbeat.get("steps") == rank.step
    return rank.last_phase in phases.STEPS and not is_over
