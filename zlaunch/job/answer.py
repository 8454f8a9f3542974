"""Complete what is known about a script by its own answer (`worker/hook/answer`)."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TypedDict

from zlaunch.job.args import ScriptArgs
from zlaunch.job.model import MODEL_FLAGS
from zlaunch.job.script import ConfigInterface, OwnConfig, Script
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.spec import JobSpec
from zlaunch.job.trainer_args import Argument
from zlaunch.job.trainer_releases import DEFAULTS


class AnswerRecord(TypedDict, total=False):
    """What a program told about itself when it was asked for its arguments."""

    reached: str
    """The point at which it was asked: `TrainingArguments`, `Accelerator`, `deepspeed.initialize`, …"""
    name: str
    """The class of its TrainingArguments."""
    arguments: dict[str, object]
    changed: list[str]
    """Arguments whose values are not the defaults of their class."""
    takes_flags: bool
    """Whether it reads TrainingArguments from its command line."""
    model: str | None
    ds_config: dict[str, object] | str | None
    """Its own ds_config, or the file of it."""
    config_flags: list[str]
    """Arguments by which it takes a ds_config."""
    local_rank_flag: str
    """The argument for its local rank, if it did not learn it from the environment."""
    rejected: list[str]
    """Words on its command line that its parser does not know."""
    options: list[str]
    """The flags that its parser knows, if it rejects others."""
    files: list[str]
    """Files of its own modules."""
    seq_len: int | None
    """Tokens in each sequence, by its own arguments."""


_PRECISIONS = ("bf16", "fp16")
"""Arguments whose values are the program's choice, even if they are defaults."""

_ALWAYS = ("output_dir", "max_length")
"""Arguments that estimates need, even if they are defaults."""

_FILLING = ("Accelerator", "DeepSpeedStrategy")
"""What fills in batch sizes when it creates the engine."""


def apply_answer(script: Script, answer: AnswerRecord, job: JobSpec) -> Script:
    """Return the script with what it told about itself, given the command line of a job."""
    reached, own = answer.get("reached", ""), answer.get("ds_config")
    told = replace(script, is_sure=True, seq_len=answer.get("seq_len") or script.seq_len)
    is_default = bool(answer.get("config_flags"))
    is_handed = script.config_flags or job.config_flags or (is_default and job.config_options)
    if own and own != str(job.ds_config) and not is_handed:
        told = replace(told, own_config=OwnConfig(reached, own))
    if reached == "TrainingArguments":
        return _with_trainer_args(told, answer, job)
    if reached in _FILLING:
        return replace(told, interface=ConfigInterface.ACCELERATE)
    if reached == "deepspeed.initialize":
        flags = job.config_flags or script.config_flags or tuple(answer.get("config_flags", []))
        rank_flag = script.local_rank_flag or answer.get("local_rank_flag", "")
        return replace(
            told, interface=ConfigInterface.DEEPSPEED, config_flags=flags, local_rank_flag=rank_flag
        )
    return replace(told, interface=ConfigInterface.NONE, without_deepspeed=reached)


def _with_trainer_args(script: Script, answer: AnswerRecord, job: JobSpec) -> Script:
    values, name = answer.get("arguments", {}), answer.get("name", "TrainingArguments")
    chosen = {*answer.get("changed", []), *_PRECISIONS}
    arguments = {}
    for key, reported in values.items():
        value = reported
        if isinstance(reported, dict | list) and reported:  # such as `lr_scheduler_kwargs`
            value = json.dumps(reported)
        if key in DEFAULTS and isinstance(value, bool | int | float | str):
            source = Source(SourceKind.SCRIPT, f"`{key}` of {name}")
            arguments[key] = Argument(value, source, given=key in chosen)
    own, own_config = values.get("deepspeed"), None
    if isinstance(own, str | dict) and own and not script.config_flags:
        own_config = OwnConfig(f"`deepspeed` of {name}", own)
    return replace(
        script,
        interface=ConfigInterface.TRAINER,
        reported=ScriptArgs.of(_words_of_answer(answer)),
        defaults=arguments,
        config_flags=("--deepspeed",) if answer.get("takes_flags") else script.config_flags,
        own_config=own_config,
    )


def _words_of_answer(answer: AnswerRecord) -> Iterator[str]:
    """Write every argument that is not the default of the Trainer as a flag."""
    values = {**answer.get("arguments", {}), MODEL_FLAGS[0]: answer.get("model")}
    chosen = {*answer.get("changed", []), *DEFAULTS, MODEL_FLAGS[0], *_ALWAYS}
    for name in sorted(chosen & values.keys()):
        value = values[name]
        if (
            isinstance(value, bool | int | float | str)
            and value != DEFAULTS.get(name)
            and name != "deepspeed"
        ):
            yield from (f"--{name}", str(value))
