"""Numerical errors: NaN, overflow, gradients that are lost."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from zlaunch.diagnosis.advice import setting
from zlaunch.diagnosis.case import Case, Reading
from zlaunch.diagnosis.evidence import RankEvidence
from zlaunch.diagnosis.signature import quotes, signature
from zlaunch.rundir.record import HeartbeatRecord


@signature("loss-scale-collapsed", "`Current loss scale already at minimum`")
@quotes("Current loss scale already at minimum")
def loss_scale_collapsed(case: Case, line: str) -> Reading:
    """Gradients overflowed at every loss scale, down to the smallest."""
    numbers, facts = _numbers(case.rank), [line]
    if case.rank is not None and (skipped := numbers.get("skipped_steps")):
        facts.append(f"{skipped} of {case.rank.step} steps were skipped")
    facts += _in_words(numbers, "loss")
    cause = "the gradients overflow in fp16, even at the smallest loss scale"
    return Reading(cause, facts, _bf16(case))


def _bf16(case: Case) -> tuple[str, ...]:
    if not _is_fp16(case):
        return ()
    return ("`--precision bf16`: it has the range of fp32; models trained in bf16 overflow in fp16",)


@signature("loss-not-a-number", "the last loss or gradient norm is NaN or infinite")
def loss_not_a_number(case: Case) -> Reading | None:
    """The loss or the gradient norm is NaN or infinite, so all further steps are useless."""
    rank = case.rank or next(iter(case.evidence.ranks), None)
    # Gradients in fp16 overflow now and then: DeepSpeed skips the step, which is harmless.
    watched = ["loss"]
    if not _is_fp16(case):
        watched.append("grad_norm")
    numbers = _numbers(rank)
    numbers["loss"] = numbers.get("step_loss", numbers.get("loss", 0.0))  # a Trainer's logs leave NaN out
    lost = next((name for name in watched if not math.isfinite(numbers.get(name, 0.0))), None)
    is_ended = case.evidence.is_diverged
    if rank is None or lost is None:
        return None
    if not is_ended and case.rank is None and case.evidence.launcher_returncode != 0:
        return None
    about = re.search(r"\b(?:nan|inf|infinite|non-?finite|not finite)\b", case.words, re.IGNORECASE)
    if not is_ended and case.rank is not None and about is None:
        return None  # it died of something else
    word = "gradient norm" if lost == "grad_norm" else "loss"
    first, place = numbers.get(f"{lost}_lost"), f"at step {rank.step}"
    if first not in (None, rank.step):
        place = f"from step {first} on; last {place}"
    facts = [", ".join([place, *_in_words(numbers, lost)])]
    if skipped := numbers.get("skipped_steps"):
        facts.append(f"{skipped} steps were skipped")
    facts += _in_words(numbers, "learning_rate")
    return Reading(f"the {word} became {_word(numbers[lost])}", facts, _bf16(case), rank=rank)


@signature(
    "gradients-discarded",
    "at stage 1 or 2, several backward passes that end an accumulation before one step",
)
def gradients_discarded(case: Case) -> Reading | None:
    """The script accumulates gradients itself, but ZeRO keeps only those of the last backward pass."""
    ranks = case.evidence.ranks
    if not ranks or any(rank.returncode != 0 for rank in ranks):
        return None
    discarded = discarded_gradients(ranks[0].heartbeat)
    if discarded is None or case.evidence.launcher_returncode != 0 or case.evidence.stopped_by is not None:
        return None
    return Reading(discarded.cause, discarded.facts, discarded.advice, is_local=False)


class DiscardedGradients(NamedTuple):
    """Gradients that had no effect, and what to change."""

    cause: str
    facts: tuple[str, ...]
    advice: tuple[str, ...]


def discarded_gradients(heartbeat: HeartbeatRecord) -> DiscardedGradients | None:
    """Describe the gradients that a rank's engine has discarded so far; None if there are none."""
    discarded, each = heartbeat.get("discarded_backwards"), heartbeat.get("backwards_of_step")
    if not discarded or not each:
        return None
    replaced = (
        f"{each} backward passes before one `engine.step()`: at stages 1 and 2, each replaces the gradients"
        " of the one before, unless `gradient_accumulation_steps` counts it"
    )
    return DiscardedGradients(
        f"the gradients of {discarded} backward passes had no effect",
        (replaced,),
        (
            f"`--set gradient_accumulation_steps={each}`, and call `engine.step()` after each backward pass",
            "or `--set managed_gradient_accumulation=false`, if this DeepSpeed has it",
        ),
    )


def _is_fp16(case: Case) -> bool:
    return case.job.precision == "fp16" or setting(case.job.config, "fp16", "enabled") is True


def _numbers(rank: RankEvidence | None) -> dict[str, float]:
    if rank is None:
        return {}
    return {name: value for name, value in rank.heartbeat.items() if isinstance(value, int | float)}


def _in_words(numbers: Mapping[str, float], name: str) -> list[str]:
    if name not in numbers:
        return []
    return [f"{name}: {_word(numbers[name])}"]


def _word(value: float) -> str:
    return {"nan": "NaN", "inf": "infinite", "-inf": "infinite"}.get(str(value), str(value))
