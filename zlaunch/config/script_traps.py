"""With which ds_configs the traps of a script are ones."""

from collections.abc import Iterator, Mapping
from typing import Final

from zlaunch.config.rules.rule import Subject
from zlaunch.errors import Finding, Severity
from zlaunch.frozen import dataclass
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.script_traps import Trap, TrapKind
from zlaunch.job.trainer_releases import is_before


@dataclass(frozen=True)
class ZeroSettings:
    """What of a ds_config decides whether something is a trap; None if it is unknown."""

    stage: int | None
    accumulation: int | None = None
    is_managed: bool = True
    """Whether DeepSpeed counts the micro-batches of a step."""
    transformers: str | None = None


def settings_of(subject: Subject) -> ZeroSettings:
    """Read the settings of a ds_config."""
    return ZeroSettings(
        stage=subject.stage,
        accumulation=subject.accumulation,
        is_managed=subject.config.managed_gradient_accumulation,
        transformers=subject.context.packages.get("transformers"),
    )


@dataclass(frozen=True)
class _Effect:
    """What happens, and what to do about it."""

    stages: tuple[int, ...]
    message: str
    hint: str


_ALL: Final = (0, 1, 2, 3)
_PARTITIONED: Final = (1, 2, 3)
_EFFECTS: Final[Mapping[TrapKind, _Effect]] = {
    TrapKind.DEVICE_MAP: _Effect(
        (3,), "transformers refuses `device_map` at stage 3: a ValueError", "leave `device_map` out"
    ),
    TrapKind.LOW_MEMORY: _Effect(
        (3,),
        "transformers before 4.51 refuses `low_cpu_mem_usage=True` at stage 3: a ValueError",
        "leave `low_cpu_mem_usage` out: stage 3 shards the weights while it loads them",
    ),
    TrapKind.FOUR_BITS: _Effect(
        (3,),
        "weights in 4 bits are not sharded at stage 3 while they are loaded, and were seen to train "
        "something else: https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1451",
        "use stage 2; or store them in the precision of the model: `bnb_4bit_quant_storage=torch.bfloat16`",
    ),
    TrapKind.EARLY_MODEL: _Effect(
        (3,),
        "the model is loaded before the TrainingArguments exist, so that stage 3 does not shard it: "
        "each rank loads all of it",
        "create the TrainingArguments first",
    ),
    TrapKind.LONE_SAVE: _Effect(
        _ALL,
        "`{call}` is called on one rank only, and waits for the others: the job hangs",
        "call it on all ranks",
    ),
    TrapKind.LONE_GATHERING_SAVE: _Effect(
        (3,),
        "`{call}` gathers the weights from all ranks at stage 3, but is called on one only: the job hangs",
        "call it on all ranks; only one of them writes",
    ),
    TrapKind.LONE_GENERATION: _Effect(
        (3,),
        "`generate` gathers the weights from all ranks at stage 3, but is called on one only: the job hangs",
        "call it on all ranks, with `synced_gpus=True`",
    ),
    TrapKind.PARTIAL_WEIGHTS: _Effect(
        (3,),
        "at stage 3 a rank holds only parts of the weights: the file gets empty tensors",
        "save with `engine.save_16bit_model(DIR)` or `accelerator.get_state_dict(model)` on all ranks",
    ),
    TrapKind.UNMARKED_MUON: _Effect(
        _PARTITIONED,
        "DeepSpeed applies Muon only to parameters with `use_muon = True`, and the script marks none",
        'name Muon in the ds_config: `"optimizer": {{"type": "Muon"}}`; or set `parameter.use_muon`',
    ),
}


def script_traps(script: Script, zero: ZeroSettings) -> Iterator[Finding]:
    """Find what DeepSpeed does not do as the script expects, under a ds_config."""
    if script.interface is ConfigInterface.NONE:
        return
    for trap in script.traps:
        effect = _effect(trap, zero)
        if effect is not None and zero.stage in effect.stages:
            severity = Severity.WARNING
            if trap.kind is TrapKind.DEVICE_MAP and trap.is_reached and _is_trainers(script):
                severity = Severity.FAILS_LATER
            message = effect.message.format(call=trap.call)
            yield Finding(trap.kind.value, message, effect.hint, severity=severity, place=trap.place)


def _is_trainers(script: Script) -> bool:
    return script.interface is ConfigInterface.TRAINER and script.is_sure


def _effect(trap: Trap, zero: ZeroSettings) -> _Effect | None:
    match trap.kind:
        case TrapKind.OWN_ACCUMULATION:
            return _own_accumulation(zero)
        case TrapKind.LOSS_DIVIDED:
            return _loss_divided(zero)
        case TrapKind.LOW_MEMORY if not is_before(zero.transformers or "5.0", "4.51"):
            return None
    return _EFFECTS[trap.kind]


def _own_accumulation(zero: ZeroSettings) -> _Effect | None:
    number = zero.accumulation
    if number is None or not zero.is_managed:
        return None
    if number > 1:
        text = (
            "the script steps the engine only after some micro-batches, and the engine counts "
            f"`gradient_accumulation_steps` = {number} of these steps: it updates that much less often"
        )
        return _Effect(_ALL, text, "call `engine.step()` after each `engine.backward(loss)`")
    text = (
        "the script calls `backward` several times before `step`: without "
        "`gradient_accumulation_steps`, only the gradients of the last one count"
    )
    hint = "set `gradient_accumulation_steps`, and call `engine.step()` after each `engine.backward(loss)`"
    return _Effect((1, 2), text, hint)


def _loss_divided(zero: ZeroSettings) -> _Effect | None:
    if zero.accumulation is None or zero.accumulation < 2 or not zero.is_managed:
        return None
    text = (
        "the script divides the loss by the accumulated micro-batches, and DeepSpeed divides it by "
        f"`gradient_accumulation_steps` = {zero.accumulation} again: gradients are too small, unless the "
        "script counts one"
    )
    return _Effect(_ALL, text, "leave the division to DeepSpeed")
