"""Numerical errors: NaN, overflow, gradients that are lost."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from zlaunch.diagnosis.advice import setting
from zlaunch.diagnosis.case import Case, Reading
from zlaunch.diagnosis.evidence import RankEvidence
from zlaunch.diagnosis.signature import quotes, signature
from zlaunch.rundir.record import HeartbeatRecord, loss_of_step
from zlaunch.units import plural


class LostWork(NamedTuple):
    """Steps or gradients that had no effect, and what to change."""

    cause: str
    facts: tuple[str, ...]
    advice: tuple[str, ...]


DEFAULT_LOSS_SCALE = 2.0**16
MOST_IDLE = 3
"""Steps at a learning rate of 0 that a schedule may have at its end."""
_RANGE = "it has the range of fp32; models trained in bf16 overflow in fp16"
BF16 = f"`--precision bf16`: {_RANGE}"
_OWN_BF16 = f"write `bf16` in place of `fp16` in the script's own ds_config: {_RANGE}"


@signature("loss-scale-collapsed", "`Current loss scale already at minimum`")
@quotes("Current loss scale already at minimum")
def loss_scale_collapsed(case: Case, line: str) -> Reading:
    """Gradients overflowed at every loss scale, down to the smallest."""
    numbers, facts = _numbers(case.rank), [line]
    facts += _skipped_in_words(numbers)
    facts += _in_words(numbers, "loss")
    cause = "the gradients overflow in fp16, even at the smallest loss scale"
    return Reading(cause, facts, _bf16(case))


def _bf16(case: Case) -> tuple[str, ...]:
    if not _is_fp16(case):
        return ()
    if not case.job.takes_ds_config:
        return (_OWN_BF16,)
    return (BF16,)


@signature("loss-not-a-number", "the last loss or gradient norm is NaN or infinite")
def loss_not_a_number(case: Case) -> Reading | None:
    """The loss or the gradient norm is NaN or infinite, so all further steps are useless."""
    rank = case.rank or next(iter(case.evidence.ranks), None)
    # Gradients in fp16 overflow now and then: DeepSpeed skips the step, which is harmless.
    watched = ["loss"]
    if not _is_fp16(case):
        watched.append("grad_norm")
    numbers = _numbers(rank)
    if rank is not None and (loss := loss_of_step(rank.heartbeat)) is not None:
        numbers["loss"] = loss
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
    facts += _skipped_in_words(numbers)
    facts += _in_words(numbers, "learning_rate")
    return Reading(f"the {word} became {_word(numbers[lost])}", facts, _bf16(case), rank=rank)


@signature("steps-skipped", "DeepSpeed skipped all steps, or most, as their gradients were not finite")
def steps_skipped(case: Case) -> Reading | None:
    """DeepSpeed skipped the steps, because their gradients were not finite, so nothing was learned."""
    if not _has_succeeded(case):
        return None
    skipped = skipped_steps(case.evidence.ranks[0].heartbeat, has_ended=True)
    if skipped is None:
        return None
    advice = skipped.advice
    if BF16 in advice:
        advice = _bf16(case)
    return Reading(skipped.cause, skipped.facts, advice, is_local=False)


def _has_succeeded(case: Case) -> bool:
    ranks = case.evidence.ranks
    if not ranks or any(rank.returncode != 0 for rank in ranks):
        return False
    return case.evidence.launcher_returncode == 0 and case.evidence.stopped_by is None


def skipped_steps(heartbeat: HeartbeatRecord, *, has_ended: bool = False) -> LostWork | None:
    """Describe the steps that a rank's engine has skipped; None if weights were learned all the same."""
    taken, skipped = heartbeat.get("taken_steps") or 0, heartbeat.get("skipped_steps") or 0
    usual = _usually_skipped(heartbeat)
    is_most = skipped > usual and 2 * skipped >= taken
    if not (is_most or (has_ended and 0 < taken == skipped)):
        return None
    cause = f"{skipped} of {taken} steps were skipped, and changed no weight"
    if taken == skipped:
        cause = f"all {plural(taken, 'step')} were skipped, so no weight has changed"
        if taken == 1:
            cause = "the only step was skipped, so no weight has changed"
    facts = ["DeepSpeed skips a step whose gradients are NaN or infinite"]
    advice = "`torch.autograd.set_detect_anomaly(True)` in the script: it stops at the first NaN gradient"
    if "loss_scale" in heartbeat:  # only in fp16
        facts.append(f"loss scale: {heartbeat['loss_scale']}")
        advice = BF16
        if skipped <= usual:
            advice = "train longer: the loss scale of fp16 first falls until the gradients are finite"
    return LostWork(cause, tuple(facts), (advice,))


def _usually_skipped(heartbeat: HeartbeatRecord) -> int:
    """Return how many steps are skipped in a training that works.

    In fp16, each halves the loss scale until it fits; DeepSpeed's `hysteresis` tolerates some before.
    """
    if "loss_scale" not in heartbeat:
        return 2
    scale = heartbeat.get("first_loss_scale") or DEFAULT_LOSS_SCALE
    return 4 + math.ceil(math.log2(max(scale, 1.0)))


@signature(
    "gradients-discarded",
    "at stage 1 or 2, several backward passes that end an accumulation before one step",
)
def gradients_discarded(case: Case) -> Reading | None:
    """The script accumulates gradients itself, but ZeRO keeps only those of the last backward pass."""
    if not _has_succeeded(case):
        return None
    discarded = discarded_gradients(case.evidence.ranks[0].heartbeat)
    if discarded is None:
        return None
    return Reading(discarded.cause, discarded.facts, discarded.advice, is_local=False)


def discarded_gradients(heartbeat: HeartbeatRecord) -> LostWork | None:
    """Describe the gradients that a rank's engine has discarded so far; None if there are none."""
    discarded, each = heartbeat.get("discarded_backwards"), heartbeat.get("backwards_of_step")
    if not discarded or not each:
        return None
    replaced = (
        f"{each} backward passes before one `engine.step()`: at stages 1 and 2, each replaces the gradients"
        " of the one before, unless `gradient_accumulation_steps` counts it"
    )
    return LostWork(
        f"the gradients of {discarded} backward passes had no effect",
        (replaced,),
        (
            f"`--set gradient_accumulation_steps={each}`, and call `engine.step()` after each backward pass",
            "or `--set managed_gradient_accumulation=false`, if this DeepSpeed has it",
        ),
    )


def idle_steps(heartbeat: HeartbeatRecord) -> LostWork | None:
    """Describe the steps since a schedule has reached 0; None if they are few."""
    idle, taken = heartbeat.get("idle_steps") or 0, heartbeat.get("taken_steps") or 0
    if idle < MOST_IDLE or idle * 20 < taken:
        return None
    advice = (
        "give the schedule all steps of the training; one that accelerate prepares steps once for each "
        "rank: multiply its steps by the ranks"
    )
    cause = f"the learning rate was 0 in the last {idle} of {plural(taken, 'step')}"
    return LostWork(cause, ("steps at that rate change no weight",), (advice,))


def _is_fp16(case: Case) -> bool:
    is_planned = case.job.precision == "fp16" or setting(case.job.config, "fp16", "enabled") is True
    return is_planned or any("loss_scale" in rank.heartbeat for rank in case.evidence.ranks)


def _numbers(rank: RankEvidence | None) -> dict[str, float]:
    if rank is None:
        return {}
    return {name: value for name, value in rank.heartbeat.items() if isinstance(value, int | float)}


def _skipped_in_words(numbers: Mapping[str, float]) -> list[str]:
    skipped, taken = numbers.get("skipped_steps"), numbers.get("taken_steps")
    if not skipped:
        return []
    if not taken:  # a run of an older zlaunch
        return [f"{plural(int(skipped), 'step')} were skipped"]
    return [f"{skipped} of {plural(int(taken), 'step')} were skipped"]


def _in_words(numbers: Mapping[str, float], name: str) -> list[str]:
    if name not in numbers:
        return []
    return [f"{name}: {_word(numbers[name])}"]


def _word(value: float) -> str:
    return {"nan": "NaN", "inf": "infinite", "-inf": "infinite"}.get(str(value), str(value))
