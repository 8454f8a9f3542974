"""Arguments of the Trainer that have no effect, because the ds_config decides instead of them.

`transformers.integrations.deepspeed` takes no optimizer of its own beside an `optimizer` section, no schedule
beside a `scheduler` section, and passes an argument on only where its key says "auto".
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from zlaunch.dsconfig.keys.lookup import field_at
from zlaunch.dsconfig.text.document import KeyPath, dotted, leaves, put
from zlaunch.errors import Finding, Severity
from zlaunch.job.script import OwnSetting
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.trainer_args import Argument, TrainerArgs
from zlaunch.job.trainer_releases import DEFAULTS, OLDER_DEFAULTS
from zlaunch.units import plural

CODE = "argument-without-effect"

OPTIMIZER_ARGUMENTS = ("optim", "optim_args", "optim_target_modules")
SCHEDULE_ARGUMENTS = ("lr_scheduler_type", "lr_scheduler_kwargs")
WARMUP_ARGUMENTS = ("warmup_steps", "warmup_ratio")
DDP_ARGUMENTS = (
    *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph"),
)

_OPTIMIZER: KeyPath = ("optimizer", "params")
_SCHEDULER: KeyPath = ("scheduler", "params")
_CLIPPING: KeyPath = ("gradient_clipping",)
_PEAK: KeyPath = (*_SCHEDULER, "warmup_max_lr")
_WARMUP: KeyPath = (*_SCHEDULER, "warmup_num_steps")
_BY_KEY: Mapping[KeyPath, tuple[str, ...]] = {
    (*_OPTIMIZER, "betas"): ("adam_beta1", "adam_beta2"),
    (*_OPTIMIZER, "eps"): ("adam_epsilon",),
    (*_OPTIMIZER, "weight_decay"): ("weight_decay",),
}
"""Key of the optimizer → the arguments that reach it through an "auto"."""
_SETS_THE_RATE = ("OneCycle", "LRRangeTest")
_WARMS_UP = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")


class _Unused(NamedTuple):
    """Arguments without effect for one reason."""

    names: tuple[str, ...]
    why: str
    remedy: str
    where: str


def unused_arguments(written: Mapping[KeyPath, object], args: TrainerArgs) -> Iterator[Finding]:
    """Find the chosen arguments that a ds_config makes dead; `written` has its values, "auto" included."""
    for unused in _unused(written):
        if effect := _without_effect(unused.names, args):
            hint = f"{unused.remedy}, or leave out the argument"
            yield Finding(CODE, f"{effect}: {unused.why}", hint, unused.where, Severity.IGNORED)


def unused_settings(
    settings: Iterable[OwnSetting], written: Mapping[KeyPath, object], clipping: object
) -> Iterator[Finding]:
    """Find what a script gives accelerate in vain, because the ds_config has a value for the same.

    `clipping` is what DeepSpeed clips at: accelerate's own `clip_grad_norm_` never clips.
    """
    for setting in settings:
        path: KeyPath = setting.path
        value = written.get(path)
        hint = f'write it there, or `"{path[-1]}": "auto"`'
        if setting.name == "mixed_precision":
            path = _decided_format(str(setting.value), written)
            value, hint = written.get(path), 'write "auto" there, or the same in the script'
        elif setting.call == "clip_grad_norm_":
            value, hint = clipping, "write it there, or give `--set gradient_clipping=…`"
        given, key, decides = setting.name, dotted(path), f"is {json.dumps(value)}"
        if setting.value is not None:
            given += f"={setting.value}"
        if value is None and _lacks(path, written):
            decides, hint = "is missing, so DeepSpeed uses its own default", _add(path)
        elif value in (None, "auto", setting.value):
            continue
        effect = f"`{given}` of {setting.call} ({setting.where}) has no effect"
        message = f"{effect}: `{key}` of the ds_config {decides}"
        yield Finding("setting-without-effect", message, hint, key, Severity.IGNORED)


def _lacks(path: KeyPath, written: Mapping[KeyPath, object]) -> bool:
    """Whether a ds_config has a section for an optimizer or a schedule, without this key."""
    is_argument = path[:2] in (_OPTIMIZER, _SCHEDULER) and path not in written
    return is_argument and any(leaf[0] == path[0] for leaf in written)


def _decided_format(precision: str, written: Mapping[KeyPath, object]) -> KeyPath:
    """Return the switch by which a ds_config decides on another precision; empty if it does not."""
    for name in ("bf16", "fp16"):
        switch = written.get((name, "enabled"))
        if (precision == "no" and switch is True) or (precision == name and switch is False):
            return (name, "enabled")
    return ()


def unused_in_training(ds_config: Mapping[str, object], reported: Mapping[str, object]) -> list[str]:
    """Say which arguments an engine did not use, from its ds_config and the Trainer's final arguments."""
    arguments = {}
    for name, value in reported.items():
        defaults = (DEFAULTS.get(name), OLDER_DEFAULTS.get(name, ({}, None))[1])
        if name not in DEFAULTS or value in (
            *defaults,
            "None",
            "{}",
        ):  # the Trainer writes most values as text
            continue
        if isinstance(value, bool | int | float | str):
            arguments[name] = Argument(value, Source.argument(name))
    findings = unused_arguments(dict(leaves(ds_config)), TrainerArgs(arguments))
    return [f"{finding.message}; {finding.hint}" for finding in findings]


def ddp_arguments(args: TrainerArgs) -> Iterator[Finding]:
    """Find the chosen arguments for DistributedDataParallel, which a job with DeepSpeed does not use."""
    if effect := _without_effect(DDP_ARGUMENTS, args):
        message = f"{effect}: DeepSpeed takes the place of DistributedDataParallel"
        yield Finding(CODE, message, "leave out the argument", severity=Severity.ADVICE)


def _without_effect(names: Iterable[str], args: TrainerArgs) -> str:
    """Say which of these arguments were chosen, and have no effect; nothing if none was."""
    chosen = [_described(name, args[name]) for name in names if _is_chosen(args, name)]
    match chosen:
        case []:
            return ""
        case [argument]:
            return f"{argument} has no effect"
    return f"{', '.join(chosen[:-1])} and {chosen[-1]} have no effect"


def _unused(written: Mapping[KeyPath, object]) -> Iterator[_Unused]:
    config: dict[str, object] = {}
    for path, value in written.items():
        put(config, path, value)
    optimizer, schedule = config.get("optimizer"), config.get("scheduler")
    if isinstance(optimizer, dict):
        section = f"the ds_config has an `optimizer` section, with {optimizer.get('type')}"
        yield _Unused(OPTIMIZER_ARGUMENTS, section, "delete that section", "optimizer")
        for path, names in _BY_KEY.items():
            if path not in written:
                yield _missing(path, names, "optimizer")
    if isinstance(schedule, dict):
        yield from _of_schedule(config, str(schedule.get("type")), written)
    if _CLIPPING not in written:
        yield _missing(_CLIPPING, ("max_grad_norm",), "")


def _of_schedule(
    config: Mapping[str, object], kind: str, written: Mapping[KeyPath, object]
) -> Iterator[_Unused]:
    section = f"the ds_config has a `scheduler` section, with {kind}"
    yield _Unused(SCHEDULE_ARGUMENTS, section, "delete that section", "scheduler")
    if kind in _SETS_THE_RATE:
        why = f"{kind} of the ds_config sets the learning rate itself"
        yield _Unused(("learning_rate",), why, "delete the `scheduler` section", "scheduler")
    if kind not in _WARMS_UP:
        yield _Unused(WARMUP_ARGUMENTS, section, "delete that section", "scheduler")
        return
    if _WARMUP not in written:
        steps = int(str(_default(config, _WARMUP)))
        why = f"without `{_WARMUP[-1]}`, {kind} warms up for {plural(steps, 'step')}"
        yield _Unused(WARMUP_ARGUMENTS, why, _add(_WARMUP), "scheduler")
    has_rate = (*_OPTIMIZER, "lr") in written  # with which `two_learning_rates` compares the schedule's
    if kind == "WarmupDecayLR" and _PEAK not in written and not has_rate:
        why = f"without `{_PEAK[-1]}`, {kind} warms up to {_default(config, _PEAK)}"
        yield _Unused(("learning_rate",), why, _add(_PEAK), "scheduler")


def _missing(path: KeyPath, names: tuple[str, ...], where: str) -> _Unused:
    why = f"the ds_config has no `{dotted(path)}`, so DeepSpeed uses its own default"
    return _Unused(names, why, _add(path), where)


def _add(path: KeyPath) -> str:
    above = ""
    if path[:-1]:
        above = f" to `{dotted(path[:-1])}`"
    return f'add `"{path[-1]}": "auto"`{above}'


def _default(config: Mapping[str, object], path: KeyPath) -> object:
    field = field_at(config, path)
    assert field is not None, "the schedule has the key"
    return field.default


def _is_chosen(args: TrainerArgs, name: str) -> bool:
    """Whether somebody set an argument: on the command line, or in the program to another value."""
    argument = args.arguments.get(name)
    if argument is None or argument.source.kind not in (SourceKind.ARGUMENT, SourceKind.SCRIPT):
        return False
    return argument.given or argument.value != args.release.defaults.get(name)


def _described(name: str, argument: Argument) -> str:
    if argument.source.kind is SourceKind.ARGUMENT:
        return f"`--{name} {argument.value}`"
    return f"`{name}={argument.value}` ({argument.source})"
