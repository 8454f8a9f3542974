"""What a job has that an estimate leaves out, and whether the job then takes more memory or less.

A number that leaves out a second model is a lower bound: a job that does not fit by it cannot fit. A number
that leaves out frozen weights is an upper bound: a job that fits by it does fit.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import Flag, auto
from typing import Final

from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs, TypedFlag
from zlaunch.job.script import ConfigInterface, Script


class Effect(Flag):
    """How a job differs from what is counted."""

    MORE = auto()
    """It takes more memory."""
    LESS = auto()
    """It takes less."""
    EITHER = MORE | LESS


@dataclass(frozen=True, slots=True)
class Uncounted:
    """A setting that an estimate leaves out."""

    setting: str
    does: str
    effect: Effect
    is_undecided: bool = False
    """Whether it depends on what is only known in training, such as a value."""

    def __str__(self) -> str:
        """Say it in a sentence without a full stop."""
        return f"not counted: {self.setting} {self.does}"


LIGER_FLAGS: Final = ("use_liger_kernel", "enable_liger_kernel", "use_liger", "enable_liger")
"""Names of the Trainer, of LLaMA-Factory and of older releases for the switch of Liger's kernels."""

_ON: Final = r"(?!(false|no|off|none|0)$).*"
"""Any value but these."""
ADAPTED: Final = "trains adapters instead of the model"
FROZEN: Final = "trains no vision encoder"
QUANTIZED: Final = "loads quantized weights"
RECOMPUTES: Final = "changes what is kept"
GENERATES: Final = "generates with a second copy of the model"
_REFERENCE = "keeps a second model to compare with"

_ATTENTION, _OTHER_KERNELS = "attn_implementation", r"(paged\|)?flex_attention|sage\w*|xformers"
_ARGUMENTS: Final[Sequence[tuple[Effect, str, Mapping[str, str]]]] = (
    (Effect.LESS, "computes the loss in parts", {"loss_type": "chunked_nll"}),
    (
        Effect.LESS,
        QUANTIZED,
        {
            r"(load_)?(in_)?[48]_?bit|use_[48]bit|q_?lora": _ON,
            r"(quantization_|quant_)?bits?": "[2-8]",
            r"quant(ization)?_(method|type)": _ON,
        },
    ),
    (
        Effect.LESS,
        FROZEN,
        {r"freeze_(vit|vision_tower|vision_encoder)": _ON},
    ),
    (
        Effect.LESS,
        "trains a part of the model",
        {
            r"freeze\w*|\w+_frozen": _ON,
            r"(tune|train|unfreeze)_(vision|vit|llm|mm|projector|mlp|language)\w*": "false|no|0",
            r"(finetuning|train|tuner|sft|tuning)_type": r"(?!(full|lora)$).*",
        },
    ),
    (Effect.LESS, ADAPTED, {r"\w*(lora|peft|adapter)\w*": _ON, r"(finetuning|train|tuner|sft)_type": "lora"}),
    (Effect.LESS, "keeps less of the training", {r"use_(galore|badam|apollo|unsloth)\w*": _ON}),
    (Effect.EITHER, "computes attention with kernels that are not counted", {_ATTENTION: _OTHER_KERNELS}),
    (Effect.EITHER, RECOMPUTES, {r"activation_offloading|torch_compile|compile": _ON}),
    (Effect.MORE, GENERATES, {"use_vllm|vllm": _ON}),
    (
        Effect.MORE,
        _REFERENCE,
        {
            "rlhf_type|rl_type": r"(?!(cpo|simpo|orpo|rm)$).*",
            "stage|finetuning_stage": "dpo|kto|ppo|grpo|bco|rlhf",
        },
    ),
    (
        Effect.MORE,
        "loads a second model",
        {r"(ref|reference|teacher|reward|critic|draft|judge)_(model|policy)\w*": _ON},
    ),
)
"""What an argument does to the memory of a job, and its name and value; the first match counts."""

_ADAPTING: Final = ("get_peft_model", "peft_config", "LoraConfig")
_SHRINKING: Final = ("requires_grad", "requires_grad_", "BitsAndBytesConfig", "load_in_4bit", "load_in_8bit")
"""Words of scripts that train adapters, and of those that freeze a part of a model or quantize it."""
_REFERRING: Final = (
    *("DPOTrainer", "KTOTrainer", "PPOTrainer", "GRPOTrainer", "RLOOTrainer", "BCOTrainer", "GKDTrainer"),
    *("OnlineDPOTrainer", "NashMDTrainer", "XPOTrainer"),
)
"""Trainers of `trl` that may keep another model beside the one they train."""


def in_arguments(args: ScriptArgs, counted: Container[str] = ()) -> list[Uncounted]:
    """Find what the arguments of a script ask for, once each, except for what is counted."""
    found: dict[str, Uncounted] = {}
    is_elsewhere = args.value("vllm_mode") == "server"
    for flag in args.flags:
        one = _of_flag(flag)
        if one is not None and not (is_elsewhere and "vllm" in flag.name):
            found.setdefault(one.does, one)
    return [one for does, one in found.items() if does not in counted]


def _of_flag(flag: TypedFlag) -> Uncounted | None:
    value = "true" if flag.value is None else flag.value.lower()
    setting = " ".join(filter(None, (f"--{flag.name}", flag.value)))
    for effect, does, arguments in _ARGUMENTS:
        if any(re.fullmatch(name, flag.name) and re.fullmatch(on, value) for name, on in arguments.items()):
            return Uncounted(f"`{setting}`", does, effect)
    return None


def in_script(script: Script) -> Iterator[Uncounted]:
    """Find what the source of a script may do; none of it is certain, so nothing is counted on."""
    steps = script.mentions("backward") or script.mentions("train_batch") or script.has_other_modules
    if script.interface is ConfigInterface.DEEPSPEED and not steps:
        yield Uncounted("the script", "may not train: its engine only computes", Effect.LESS)
    for words, effect, does in _IN_SOURCE:
        if words is _ADAPTING and script.adapts_by_option:
            continue
        if word := next(filter(script.mentions, words), None):
            yield Uncounted(f"`{word}` in the script", does, effect)


_IN_SOURCE: Final = (
    (_ADAPTING, Effect.LESS, ADAPTED),
    (_SHRINKING, Effect.LESS, "freezes weights or quantizes them"),
    (_REFERRING, Effect.MORE, _REFERENCE),
)


def takes_less(uncounted: Iterable[Uncounted]) -> bool:
    """Whether a job may take less memory than is counted."""
    return any(Effect.LESS in one.effect for one in uncounted)
