"""What is meant by a value that an option does not take, as other tools and people spell it."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

LLAMA_FACTORY: Final = "zlaunch train -m llamafactory.launcher --"
"""The command that trains with it, before its arguments."""

_STAGE: Final = (
    r"(?:deepspeed|ds)?(?:zero|z)?(?:stage)?(?P<stage>[0-3])(?:offload)?"
    r"(?P<device>cpu|nvme)?(?P<offload>offload)?"
)
"""`zero3`, `stage_3`, `deepspeed_stage_3_offload`, as in Lightning."""
_AT_ONCE: Final = "kill abort exit fail end raise"
_GOES_ON: Final = "warn warning log print ignore continue none"

MEANT: Final[Mapping[str, Mapping[str, str]]] = {
    "stage": {"0": "ddp none no off false", "2": "shardgradop", "3": "fsdp fullshard"},
    "precision": {
        "bf16": "mixed amp auto bfloat16 bf bf16mixed bf16true",
        "fp16": "half float16 f16 16 16mixed 16true 16bit fp16mixed",
        "fp32": "no none off false full single float float32 f32 32 32true 32bit",
    },
    "offload": {
        "none": "gpu cuda device no off false",
        "cpu": "ram host dram memory yes on true all both optimizerparam optimizercpuparamcpu",
        "nvme": "disk ssd drive storage",
        "optimizer:cpu": "optimizer optim optimizers optimizerstates optimizercpu",
        "param:cpu": "param params parameter parameters weights model paramcpu paramscpu",
    },
    "launcher": {
        "torchrun": "accelerate torch pytorch ddp distributed distributed.run elastic local none",
        "deepspeed": "ds pdsh",
        "openmpi": "mpi mpirun mpiexec ompi",
    },
    "submit": {"slurm": "sbatch srun", "kubernetes": "k8s kube kubectl kubeflow", "ray": "kuberay"},
    "on-stall": {"stop": _AT_ONCE, "report": _GOES_ON},
    "on-oom": {"retry": "restart reduce auto", "stop": f"{_AT_ONCE} report"},
    "on-nan": {"rollback": "resume reload restore restart", "stop": _AT_ONCE, "report": _GOES_ON},
    "on-preempt": {"save": "checkpoint ckpt saveandstop", "stop": _AT_ONCE},
    "attention": {
        "flash_attention_2": "flash flash2 flashattn flashattn2 flashattention fa fa2",
        "sdpa": "torch sdp",
        "eager": "naive default none",
    },
    "runner": {"trainer": "hf transformers huggingface hftrainer", "deepspeed": "ds plain loop torchrun"},
    "format": {"text": "txt plain human", "github": "gha actions githubactions"},
    "resume": {"latest": "last newest recent auto true yes"},
    "sort": {"started": "date time newest", "speed": "tokens throughput fastest"},
}
"""Option → the value that it takes → what people write for it, in small letters, without `-` and `_`."""

_SAME_VALUES: Final[Mapping[str, str]] = {"dtype": "precision"}
"""Option → the one that takes the same values."""

_OF_SCRIPTS: Final[Mapping[str, str]] = {
    "fp8": "FP8 layers are up to the script: train them with `--precision bf16`",
    "tf32": "TF32 is a setting of torch, with which fp32 computes: `--precision fp32`",
    **dict.fromkeys(
        ("int8", "8bit", "int4", "4bit", "nf4", "fp4"),
        "quantized weights are up to the script: train with `--precision bf16`",
    ),
}
"""A precision that no option sets → what to type."""


_LLAMA_FACTORY_STAGES = ("pt", "sft", "rm", "ppo", "dpo", "kto")


def of_llama_factory(name: str, value: str | None) -> str | None:
    """Say what to type for `--stage sft` or `--finetuning_type lora`; None for other names without dashes."""
    is_its_stage = name == "stage" and value in _LLAMA_FACTORY_STAGES
    if not is_its_stage and name != "finetuning_type":
        return None
    typed = f"--{name} {value or '…'}"
    return f"`{typed}` is an argument of LLaMA-Factory: `{LLAMA_FACTORY} {typed} …`"


def hint_for_value(option: str, value: str, choices: Sequence[str] = ()) -> str | None:
    """Say what is meant by a value that an option, without dashes, does not take; None if nothing is known.

    `choices` are all values that it takes, if they are known.
    """
    meant = _meant(option, value, choices)
    if meant:
        return f"did you mean `{' '.join(f'--{name} {text}' for name, text in meant.items())}`?"
    if option == "precision":
        return _OF_SCRIPTS.get(plain_value(value))
    return None


def line_for_value(option: str, value: str, choices: Sequence[str] = ()) -> str | None:
    """Say the same for a key of a `zlaunch.yaml`."""
    meant = _meant(option.replace("_", "-"), value, choices)
    if not meant:
        return None
    lines = (f"`{name.replace('-', '_')}: {text}`" for name, text in meant.items())
    return f"did you mean {' and '.join(lines)}?"


def value_meant(option: str, value: str, choices: Sequence[str]) -> str | None:
    """Return the choice that is meant, without options that go with it; None if none is known."""
    return _meant(option, value, choices).get(option)


def _meant(option: str, value: str, choices: Sequence[str]) -> Mapping[str, str]:
    """Return the options that are meant, each with its value."""
    plain = plain_value(value)
    for choice in choices:
        if plain_value(choice) == plain:
            return {option: choice}
    if option == "stage" and (found := re.fullmatch(_STAGE, plain)):
        return _of_stage(found)
    for taken, words in MEANT.get(_SAME_VALUES.get(option, option), {}).items():
        if plain in words.split() and (not choices or taken in choices):
            return {option: taken}
    if option == "launcher":
        return _meant("submit", value, tuple(MEANT["submit"]))
    return {}


def _of_stage(found: re.Match[str]) -> Mapping[str, str]:
    meant = {"stage": found["stage"]}
    if found["device"] or "offload" in found[0]:
        meant["offload"] = found["device"] or "cpu"
    if found["device"] == "nvme":
        meant["nvme"] = "DIR"
    return meant


def plain_value(value: str) -> str:
    """Write a value as `MEANT` does."""
    return re.sub(r"[-_\s:=,+]", "", value.lower()).removeprefix("torch.")
