"""The adapters that the arguments of a script ask for, as common training programs name them."""

from typing import Final, NamedTuple

from zlaunch.estimate.workload import DEFAULT_MODULES, Lora
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
_OTHERS: Final = ("use_dora", "use_rslora", "modules_to_save", "lora_modules_to_save", "additional_target")
"""Arguments that make other adapters, or train more than them."""


def adapters_of(args: ScriptArgs) -> Lora | None:
    """Read the adapters that are asked for; None if there are none, or none that can be counted."""
    if args.is_on("use_dora") or any(args.has(name) for name in _OTHERS[2:]):
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


def _value(args: ScriptArgs, name: str) -> str | None:
    flag = args.flag(name)
    if flag is None:
        return None
    return (flag.value or "true").lower()
