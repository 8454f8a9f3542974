"""Which part of a model is trained, and on what weights, by the arguments of common training programs."""

from typing import Final, NamedTuple

from zlaunch.estimate.workload import DEFAULT_MODULES, FourBits, Lora
from zlaunch.job.args import ScriptArgs


class _Spelling(NamedTuple):
    """How a program spells its adapters, and what it does where nothing is given."""

    switch: str
    on: str
    rank: str
    usual_rank: int
    modules: str
    usual_modules: tuple[str, ...]


_SPELLINGS: Final = (
    # trl.ModelConfig
    _Spelling("use_peft", "true", "lora_r", 16, "lora_target_modules", DEFAULT_MODULES),
    # LLaMA-Factory's FinetuningArguments
    _Spelling("finetuning_type", "lora", "lora_rank", 8, "lora_target", ()),
    # ms-swift's TunerArguments, in its releases
    *(_Spelling(name, "lora", "lora_rank", 8, "target_modules", ()) for name in ("train_type", "tuner_type")),
    _Spelling("sft_type", "lora", "lora_rank", 8, "target_modules", ()),
    # LLaVA's TrainingArguments, and what followed it
    _Spelling("lora_enable", "true", "lora_r", 64, "lora_target_modules", ()),
)
_EVERY: Final = {"all", "all-linear", "all_linear"}
_MORE: Final = ("modules_to_save", "lora_modules_to_save", "additional_target")
"""Arguments that train more than adapters."""


def adapters_of(args: ScriptArgs) -> Lora | None:
    """Read the adapters that are asked for; None if there are none, or none that can be counted."""
    if args.is_on("use_dora") or any(map(args.has, _MORE)):
        return None
    for one in _SPELLINGS:
        if _value(args, one.switch) != one.on:
            continue
        rank = _value(args, one.rank) or str(one.usual_rank)
        if not rank.isdecimal() or int(rank) == 0:
            return None
        words = args.words_of(one.modules)
        modules = tuple(part for word in words for part in word.split(",") if part)
        if len(modules) == 1 and modules[0] in _EVERY:
            return Lora(int(rank))
        return Lora(int(rank), modules or one.usual_modules)
    return None


_FOUR_BITS: Final = (("load_in_4bit", "true"), ("quantization_bit", "4"), ("quant_bits", "4"), ("bits", "4"))
"""Arguments of trl, LLaMA-Factory, ms-swift and LLaVA for weights of four bits."""
_NESTED: Final = ("use_bnb_nested_quant", "double_quantization", "bnb_4bit_use_double_quant", "double_quant")


def four_bits_of(args: ScriptArgs) -> FourBits | None:
    """Read whether bitsandbytes keeps the weights below adapters in four bits."""
    if not any(_value(args, name) == on for name, on in _FOUR_BITS):
        return None
    method = _value(args, "quantization_method") or _value(args, "quant_method") or "bnb"
    if method not in ("bnb", "bitsandbytes"):
        return None
    # LLaMA-Factory, ms-swift and LLaVA do so by default, trl does not.
    is_nested = args.is_on(*_NESTED)
    if is_nested is None:
        is_nested = not args.has("load_in_4bit")
    return "nf4 nested" if is_nested else "nf4"


_VISION: Final = r"(^|\.)(visual|vision_tower|vision_model|vision_encoder)\."
"""The encoders of vision-language models in transformers."""


def frozen_by(args: ScriptArgs) -> str | None:
    """Return the pattern of the parameters that ms-swift or LLaMA-Factory is told not to train."""
    if args.is_on("freeze_vit", "freeze_vision_tower", "freeze_vision_encoder"):
        return _VISION
    return None


def _value(args: ScriptArgs, name: str) -> str | None:
    flag = args.flag(name)
    if flag is None:
        return None
    return (flag.value or "true").lower()
