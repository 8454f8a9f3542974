"""The Trainer arguments that affect the ds_config.

They come from the script's command line, and from defaults in its source. Names and defaults are those of the
installed `transformers.TrainingArguments`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple

from zlaunch.errors import Finding
from zlaunch.frozen import dataclass
from zlaunch.job.args import FALSE, TRUE, ScriptArgs
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.trainer_releases import DEFAULTS, TrainerRelease, Value


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument: its value, what set it, and whether the user gave it on the command line."""

    value: Value
    source: Source
    given: bool = False


@dataclass(frozen=True)
class TrainerArgs:
    """Trainer arguments, with the Trainer's defaults for those that are not set."""

    arguments: Mapping[str, Argument] = field(default_factory=dict)
    release: TrainerRelease = field(default_factory=TrainerRelease)

    def __getitem__(self, name: str) -> Argument:
        """Return an argument by its name in TrainingArguments."""
        return self.arguments.get(name) or Argument(
            self.release.defaults.get(name, DEFAULTS[name]),
            Source(SourceKind.TRAINER_DEFAULT, f"default of `--{name}`"),
        )

    def over(self, name: str, argument: Argument) -> "TrainerArgs":
        """Return a copy with one argument replaced."""
        return replace(self, arguments={**self.arguments, name: argument})

    @property
    def warmup(self) -> Argument:
        """The argument that sets the warmup: a number of steps, or below 1 a fraction of all steps."""
        steps, ratio = self["warmup_steps"], self["warmup_ratio"]
        if self.release.takes_warmup_fraction and "warmup_ratio" in self.arguments:
            return ratio
        if self.release.takes_warmup_fraction:
            return steps
        if float(steps.value) > 0 or float(ratio.value) <= 0:
            return steps
        return replace(ratio, value=min(float(ratio.value), math.nextafter(1, 0)))

    def is_on(self, *names: str) -> bool:
        """Whether any of these booleans is true."""
        return any(bool(self[name].value) for name in names)


class Match(NamedTuple):
    """The arguments that the Trainer compares with a ds_config key."""

    names: tuple[str, ...]
    expected: Callable[[TrainerArgs], Any]
    """Computes the value that the Trainer expects; None if it depends on the dataset."""


class Mismatch(NamedTuple):
    """A ds_config key that differs from the Trainer's arguments."""

    path: tuple[str, ...]
    value: object
    said: str
    """The arguments and their sources."""
    remedy: str
    """The hint."""


def num_warmup_steps(args: TrainerArgs) -> int | None:
    """Return the warmup steps like `TrainingArguments.get_warmup_steps`: a number or a fraction of all.

    None if the number of all steps is unknown.
    """
    warmup, steps = float(args.warmup.value), float(args["max_steps"].value)
    if warmup >= 1 or warmup == 0:
        return max(args.release.least_warmup, int(warmup))
    share = steps * warmup
    if steps <= 0 or not math.isfinite(share):
        return None
    return max(args.release.least_warmup, math.ceil(share))


def num_total_steps(args: TrainerArgs) -> Value | None:
    """Return `max_steps`; None if it is not set."""
    steps = args["max_steps"].value
    if float(steps) <= 0:
        return None
    return steps


def _same(name: str) -> Match:
    return Match((name,), lambda args: args[name].value)


def _switch_match(name: str) -> Match:
    return Match((name, f"{name}_full_eval"), lambda args: args.is_on(name, f"{name}_full_eval"))


MATCHED: Mapping[tuple[str, ...], Match] = {
    ("train_micro_batch_size_per_gpu",): _same("per_device_train_batch_size"),
    ("gradient_accumulation_steps",): _same("gradient_accumulation_steps"),
    ("gradient_clipping",): _same("max_grad_norm"),
    ("optimizer", "params", "lr"): _same("learning_rate"),
    ("optimizer", "params", "betas"): Match(
        ("adam_beta1", "adam_beta2"), lambda args: [args["adam_beta1"].value, args["adam_beta2"].value]
    ),
    ("optimizer", "params", "eps"): _same("adam_epsilon"),
    ("optimizer", "params", "weight_decay"): _same("weight_decay"),
    ("scheduler", "params", "warmup_max_lr"): _same("learning_rate"),
    ("scheduler", "params", "total_num_steps"): Match(("max_steps",), num_total_steps),
    ("scheduler", "params", "warmup_num_steps"): Match(("warmup_steps",), num_warmup_steps),
    ("bf16", "enabled"): _switch_match("bf16"),
    ("fp16", "enabled"): _switch_match("fp16"),
}
"""Keys with `must_match` in `HfTrainerDeepSpeedConfig`; train_batch_size has its own rule."""

RATES = (("optimizer", "params", "lr"), ("scheduler", "params", "warmup_max_lr"))
"""Keys that the Trainer both compares with `--learning_rate`."""
ONE_RATE = 'write "auto" for both `optimizer.params.lr` and `scheduler.params.warmup_max_lr`'


def rates_differ(value_at: Callable[[tuple[str, ...]], object]) -> bool:
    """Whether no learning rate suits the Trainer: it is written twice, with two numbers."""
    rate, peak = map(value_at, RATES)
    return None not in (rate, peak) and "auto" not in (rate, peak) and rate != peak


def find_mismatches(value_at: Callable[[tuple[str, ...]], object], args: TrainerArgs) -> Iterator[Mismatch]:
    """Find the keys whose values the Trainer rejects; `value_at` returns None for an absent key."""
    yield from _formats_of_evaluation(value_at, args)
    for path, match in MATCHED.items():
        value, expected = value_at(path), match.expected(args)
        if value in (None, "auto") or expected is None or value == expected:
            continue
        arguments = ", ".join(_described_argument(name, args[name]) for name in match.names)
        remedy = f'write "auto" in the ds_config, or {_agreeing(match, value)}'
        if path in RATES and rates_differ(value_at):
            remedy = ONE_RATE
        yield Mismatch(path, value, arguments, remedy)


def _formats_of_evaluation(
    value_at: Callable[[tuple[str, ...]], object], args: TrainerArgs
) -> Iterator[Mismatch]:
    """Find a section that the evaluation turns on beside the format of the training: accelerate fails."""
    for trained, evaluated in (("bf16", "fp16"), ("fp16", "bf16")):
        path, argument = (evaluated, "enabled"), f"{evaluated}_full_eval"
        is_both = args.is_on(trained) and args.is_on(argument) and not args.is_on(evaluated)
        if is_both and value_at(path) in ("auto", True):
            said = f"`--{argument}` turns it on beside `--{trained}`"
            yield Mismatch(path, value_at(path), said, f"delete the section `{evaluated}`")


def _described_argument(name: str, argument: Argument) -> str:
    """Describe an argument, and what set it unless it was the command line."""
    whose = {SourceKind.ARGUMENT: "", SourceKind.TRAINER_DEFAULT: " by default"}
    return f"`--{name}` is {argument.value}{whose.get(argument.source.kind, f' ({argument.source})')}"


def _agreeing(match: Match, value: object) -> str:
    """Return a hint for arguments that agree with a value."""
    if value is True:
        return f"add `--{match.names[0]}`"
    if value is False:
        return f"leave out `--{match.names[0]}`"
    values = [value]
    if isinstance(value, list):
        values = value
    pairs = zip(match.names, values, strict=False)
    return f"add `{' '.join(f'--{name} {number}' for name, number in pairs)}`"


def read_arguments(
    args: ScriptArgs,
    script_defaults: Mapping[str, Argument] | None = None,
    release: TrainerRelease | None = None,
) -> tuple[TrainerArgs, list[Finding]]:
    """Parse a script's command line, over the defaults that the script sets; return it with findings."""
    release = release or TrainerRelease()
    defaults = release.defaults
    arguments = {name: value for name, value in (script_defaults or {}).items() if name in defaults}
    findings: list[Finding] = []
    for flag in args.flags:
        name, text = flag.name, flag.value
        if name not in defaults:
            continue
        value = _convert(defaults[name], text)
        if value is None:
            kind = _value_kind(defaults[name])
            message = f"`--{name} {text}` is not {kind}"
            if text is None:
                message = f"`--{name}` needs {kind}"
            findings.append(Finding("bad-argument", message, where=f"--{name}"))
        else:
            arguments[name] = Argument(value, Source.argument(name, flag.place), given=True)
    return TrainerArgs(arguments, release), findings


def absent_arguments(args: ScriptArgs, release: TrainerRelease | None = None) -> list[Finding]:
    """Find the arguments that a release of transformers has removed, or does not have yet."""
    release = release or TrainerRelease()
    return [finding for flag in args.flags if (finding := release.lacks(flag.name)) is not None]


def _value_kind(default: Value) -> str:
    return {bool: "true or false", int: "an integer", float: "a number"}.get(type(default), "a string")


def _convert(default: Value, text: str | None) -> Value | None:
    match default:
        case bool():
            if text is None or text.lower() in TRUE:
                return True
            if text.lower() in FALSE:
                return False
            return None
        case str():
            return text
        case int() | float():
            try:
                number = type(default)(text or "")
            except ValueError:
                return None
            most: float = math.inf
            if isinstance(number, int):
                most = 1 << 63  # a larger integer cannot be a float either
            if -most < number < most:
                return number
            return None
