"""The run computes nothing sensible any more: NaN, overflow."""

import math
import re
from collections.abc import Mapping

from zlaunch.diagnosis.advice import setting
from zlaunch.diagnosis.case import Case, Reading
from zlaunch.diagnosis.evidence import RankEvidence
from zlaunch.diagnosis.signature import quotes, signature


@signature("loss-scale-collapsed", "`Current loss scale already at minimum`")
@quotes("Current loss scale already at minimum")
def loss_scale_collapsed(case: Case, line: str) -> Reading:
    """Gradients overflowed at every loss scale, down to the smallest."""
    rank = case.rank
    skipped = _number(rank, "skipped_steps")
    facts = (
        line,
        f"{skipped:.0f} steps were skipped, of {rank.step}" if rank is not None and skipped else None,
        _in_words(rank, "loss"),
    )
    return Reading(
        "fp16 cannot hold the gradients: they overflow at the smallest loss scale", facts, _bf16(case)
    )


def _bf16(case: Case) -> tuple[str, ...]:
    """Offer bf16, whose numbers reach as far as those of fp32, to a job that has fp16."""
    if not _is_fp16(case):
        return ()
    return ("`--precision bf16`: it reaches as far as fp32; a model trained in bf16 overflows in fp16",)


@signature("loss-not-a-number", "the last loss or norm of the gradients is NaN or infinite")
def loss_not_a_number(case: Case) -> Reading | None:
    """The loss, or the norm of the gradients, is no number any more; every further step is lost."""
    rank = case.rank or next(iter(case.evidence.ranks), None)
    # Gradients in fp16 overflow now and then: the step is skipped, and all is well.
    watched = ("loss",) if _is_fp16(case) else ("loss", "grad_norm")
    lost = next((name for name in watched if _is_lost(rank, name)), None)
    if rank is None or lost is None or (case.rank is None and case.evidence.launcher_returncode != 0):
        return None
    about = re.search(r"\b(?:nan|inf|infinite|non-?finite|not finite)\b", case.words, re.IGNORECASE)
    if case.rank is not None and about is None:
        return None  # it died of something else
    word = "norm of the gradients" if lost == "grad_norm" else "loss"
    skipped = _number(rank, "skipped_steps")
    facts = (
        f"{_since(rank, lost)} step {rank.step}, {_in_words(rank, lost)}",
        f"{skipped:.0f} steps were skipped" if skipped else None,
        _in_words(rank, "learning_rate"),
    )
    return Reading(f"the {word} became {_word(_fact(rank, lost))}", facts, _bf16(case), rank=rank)


def _is_fp16(case: Case) -> bool:
    return case.job.precision == "fp16" or setting(case.job.config, "fp16", "enabled") is True


def _fact(rank: RankEvidence | None, name: str) -> object:
    facts: Mapping[str, object] = {} if rank is None else rank.heartbeat
    return facts.get(name)


def _is_lost(rank: RankEvidence | None, name: str) -> bool:
    value = _fact(rank, name)
    return isinstance(value, float) and not math.isfinite(value)


def _since(rank: RankEvidence, name: str) -> str:
    """Say from when on a number was lost, if that was not the last step only."""
    first = _number(rank, f"{name}_lost")
    return "at" if first is None or first == rank.step else f"from step {first:.0f} on; last at"


def _number(rank: RankEvidence | None, name: str) -> float | None:
    value = _fact(rank, name)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _in_words(rank: RankEvidence | None, name: str) -> str | None:
    value = _fact(rank, name)
    return f"{name}: {_word(value)}" if isinstance(value, int | float) else None


def _word(value: object) -> str:
    return {"nan": "NaN", "inf": "infinite", "-inf": "infinite"}.get(str(value), str(value))
