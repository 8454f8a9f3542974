"""The Trainer arguments that reach into a ds_config, as transformers names and defaults them.

They are read from the script's command line and, where the script sets its own defaults, from its
source. Names and defaults follow `transformers.TrainingArguments` 5.x; a contract test holds them.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zlaunch.errors import Finding

Value = bool | int | float | str

DEFAULTS: Mapping[str, Value] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 5e-5,
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0,
    "max_steps": -1,
    "warmup_steps": 0.0,
    "bf16": False,
    "fp16": False,
    "bf16_full_eval": False,
    "fp16_full_eval": False,
    "use_cpu": False,
    "save_on_each_node": False,
    "optim": "adamw_torch_fused",
}

_TRUE = {"yes", "true", "t", "y", "1"}
_FALSE = {"no", "false", "f", "n", "0"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its value, who set it, and whether that was the user."""

    value: Value
    source: str
    given: bool = False


@dataclass(frozen=True)
class TrainerArgs:
    """The arguments that matter here; whatever nobody set has the Trainer's default."""

    arguments: Mapping[str, Argument] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Argument:
        """Look an argument up by the name it has in TrainingArguments."""
        return self.arguments.get(name) or Argument(DEFAULTS[name], f"default of `--{name}`")

    def over(self, name: str, argument: Argument) -> "TrainerArgs":
        """Set one argument."""
        return TrainerArgs({**self.arguments, name: argument})

    def is_on(self, *names: str) -> bool:
        """Whether any of these switches is on."""
        return any(bool(self[name].value) for name in names)


def read_arguments(
    argv: Sequence[str], script_defaults: Mapping[str, Argument] | None = None
) -> tuple[TrainerArgs, list[Finding]]:
    """Read a script's command line over the defaults the script itself sets."""
    arguments = dict(script_defaults or {})
    findings: list[Finding] = []
    for name, text in flags(argv):
        if name not in DEFAULTS:
            continue
        value = _convert(name, text)
        if value is None:
            findings.append(
                Finding(
                    "bad-argument",
                    f"`--{name} {text}` is not {_kind(name)}",
                    where=f"--{name}",
                )
            )
        else:
            arguments[name] = Argument(value, f"`--{name}`", given=True)
    return TrainerArgs(arguments), findings


def flags(argv: Sequence[str]) -> list[tuple[str, str | None]]:
    """Split a command line into flags and their values; `-` in a name counts as `_`."""
    found: list[tuple[str, str | None]] = []
    for position, word in enumerate(argv):
        if not word.startswith("--") or len(word) == 2:
            continue
        name, equals, text = word[2:].partition("=")
        following = argv[position + 1] if position + 1 < len(argv) else "--"
        value = text if equals else None if following.startswith("--") else following
        found.append((name.replace("-", "_"), value))
    return found


def take_ds_config(argv: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """Take `--deepspeed FILE` or `--deepspeed_config FILE` out of a script's command line."""
    rest: list[str] = []
    taken: str | None = None
    words = deque(argv)
    while words:
        name, equals, text = words[0].partition("=")
        word = words.popleft()
        if name not in ("--deepspeed", "--deepspeed_config", "--deepspeed-config"):
            rest.append(word)
        elif equals:
            taken = text
        elif words and not words[0].startswith("--"):
            taken = words.popleft()
    return tuple(rest), taken


def _kind(name: str) -> str:
    return {bool: "true or false", int: "a whole number", float: "a number"}.get(
        type(DEFAULTS[name]), "a word"
    )


def _convert(name: str, text: str | None) -> Value | None:
    match DEFAULTS[name]:
        case bool():
            plain = "true" if text is None else text.lower()
            return True if plain in _TRUE else False if plain in _FALSE else None
        case str():
            return text
        case int() | float() as default:
            try:
                number = type(default)(text or "")
            except ValueError:
                return None
            return number if math.isfinite(number) else None
