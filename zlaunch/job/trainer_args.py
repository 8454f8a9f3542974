"""The Trainer arguments that affect the ds_config.

They come from the script's command line, and from defaults in its source. Names and defaults are those of
`transformers.TrainingArguments` 5.x, which a contract test checks.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zlaunch.errors import Finding
from zlaunch.job.source import Source, SourceKind

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
    "lr_scheduler_type": "linear",
    "bf16": False,
    "fp16": False,
    "bf16_full_eval": False,
    "fp16_full_eval": False,
    "use_cpu": False,
    "save_on_each_node": False,
    "optim": "adamw_torch_fused",
}

REMOVED: Mapping[str, str] = {
    "adafactor": "use `--optim adafactor`",
    "dispatch_batches": "use `--accelerator_config '{\"dispatch_batches\": true}'`",
    "evaluation_strategy": "use `--eval_strategy`",
    "fp16_backend": "remove it: PyTorch's implementation is used",
    "fp16_opt_level": "remove it: apex is no longer supported",
    "fsdp_min_num_params": "use `--fsdp_config`",
    "fsdp_transformer_layer_cls_to_wrap": "use `--fsdp_config`",
    "group_by_length": "use `--train_sampling_strategy group_by_length`",
    "half_precision_backend": "remove it: PyTorch's implementation is used",
    "include_inputs_for_metrics": "use `--include_for_metrics inputs`",
    "include_tokens_per_second": "remove it",
    "jit_mode_eval": "remove it",
    "logging_dir": "use the environment variable `TENSORBOARD_LOGGING_DIR`",
    "mp_parameters": "remove it",
    "no_cuda": "use `--use_cpu`",
    "overwrite_output_dir": "remove it",
    "past_index": "remove it",
    "per_gpu_eval_batch_size": "use `--per_device_eval_batch_size`",
    "per_gpu_train_batch_size": "use `--per_device_train_batch_size`",
    "push_to_hub_model_id": "use `--hub_model_id`",
    "push_to_hub_organization": "use `--hub_model_id`",
    "push_to_hub_token": "use `--hub_token`",
    "ray_scope": "remove it",
    "save_safetensors": "remove it: safetensors is the only format",
    "sharded_ddp": "use `--fsdp`",
    "split_batches": "use `--accelerator_config '{\"split_batches\": true}'`",
    "torchdynamo": "use `--torch_compile_backend`",
    "tpu_num_cores": "remove it",
    "use_ipex": "remove it",
    "use_mps_device": "remove it: MPS is detected",
    "warmup_ratio": "use `--warmup_steps`, which also takes a fraction below 1",
    "xpu_backend": "use `--ddp_backend`",
}
"""Arguments that transformers 5 removed → what to type instead."""

_TRUE = {"yes", "true", "t", "y", "1"}
_FALSE = {"no", "false", "f", "n", "0"}


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

    def __getitem__(self, name: str) -> Argument:
        """Return an argument by its name in TrainingArguments."""
        return self.arguments.get(name) or Argument(
            DEFAULTS[name], Source(SourceKind.TRAINER_DEFAULT, f"default of `--{name}`")
        )

    def over(self, name: str, argument: Argument) -> "TrainerArgs":
        """Return a copy with one argument replaced."""
        return TrainerArgs({**self.arguments, name: argument})

    def is_on(self, *names: str) -> bool:
        """Whether any of these booleans is true."""
        return any(bool(self[name].value) for name in names)


@dataclass(frozen=True)
class Match:
    """The arguments that the Trainer compares with a ds_config key."""

    names: tuple[str, ...]
    expected: Callable[[TrainerArgs], Any]
    """Computes the value that the Trainer expects; None if it depends on the dataset."""


@dataclass(frozen=True, slots=True)
class Mismatch:
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
    warmup, steps = float(args["warmup_steps"].value), float(args["max_steps"].value)
    if warmup >= 1 or warmup == 0:
        return max(1, int(warmup))
    share = steps * warmup
    return max(1, math.ceil(share)) if steps > 0 and math.isfinite(share) else None


def num_total_steps(args: TrainerArgs) -> Value | None:
    """Return `max_steps`; None if it is not set."""
    steps = args["max_steps"].value
    return steps if float(steps) > 0 else None


def _same(name: str) -> Match:
    return Match((name,), lambda args: args[name].value)


def _switch(name: str) -> Match:
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
    ("bf16", "enabled"): _switch("bf16"),
    ("fp16", "enabled"): _switch("fp16"),
}
"""Keys with `must_match` in `HfTrainerDeepSpeedConfig`; train_batch_size has its own rule."""


def find_mismatches(value_at: Callable[[tuple[str, ...]], object], args: TrainerArgs) -> Iterator[Mismatch]:
    """Find the keys whose values the Trainer rejects; `value_at` returns None for an absent key."""
    for path, match in MATCHED.items():
        value, expected = value_at(path), match.expected(args)
        if value in (None, "auto") or expected is None or value == expected:
            continue
        said = ", ".join(_said(name, args[name]) for name in match.names)
        yield Mismatch(path, value, said, f'write "auto" in the ds_config, or {_agreeing(match, value)}')


def _said(name: str, argument: Argument) -> str:
    """Describe an argument, and what set it unless it was the command line."""
    whose = {SourceKind.ARGUMENT: "", SourceKind.TRAINER_DEFAULT: " by default"}
    return f"`--{name}` is {argument.value}{whose.get(argument.source.kind, f' ({argument.source})')}"


def _agreeing(match: Match, value: object) -> str:
    """Return a hint for arguments that agree with a value."""
    if isinstance(value, bool):
        return f"add `--{match.names[0]}`" if value else f"leave out `--{match.names[0]}`"
    values = value if isinstance(value, list) else [value]
    pairs = zip(match.names, values, strict=False)
    return f"add `{' '.join(f'--{name} {one}' for name, one in pairs)}`"


def read_arguments(
    argv: Sequence[str], script_defaults: Mapping[str, Argument] | None = None
) -> tuple[TrainerArgs, list[Finding]]:
    """Parse a script's command line, over the defaults that the script sets; return it with findings."""
    arguments = dict(script_defaults or {})
    findings: list[Finding] = []
    for name, text in flags(argv):
        if name not in DEFAULTS:
            continue
        value = _convert(name, text)
        if value is None:
            message = f"`--{name} {text}` is not {_kind(name)}"
            findings.append(Finding("bad-argument", message, where=f"--{name}"))
        else:
            arguments[name] = Argument(value, Source.argument(name), given=True)
    return TrainerArgs(arguments), findings


def removed_arguments(argv: Sequence[str]) -> list[Finding]:
    """Find the arguments that transformers 5 removed."""
    return [
        Finding("removed-argument", f"transformers 5 removed `--{name}`", REMOVED[name], where=f"--{name}")
        for name, _ in flags(argv)
        if name in REMOVED
    ]


def flags(argv: Sequence[str]) -> list[tuple[str, str | None]]:
    """Split a command line into flags and values; `-` in a name becomes `_`."""
    found: list[tuple[str, str | None]] = []
    for position, word in enumerate(argv):
        if not word.startswith("--") or len(word) == 2:
            continue
        name, equals, text = word[2:].partition("=")
        following = argv[position + 1] if position + 1 < len(argv) else "--"
        value = text if equals else None if following.startswith("--") else following
        found.append((name.replace("-", "_"), value))
    return found


def switched_on(argv: Sequence[str], *names: str) -> bool | None:
    """Whether the first of these flags that is given is true; None if none is given."""
    given = {name: value or "true" for name, value in flags(argv)}
    return next((given[name].lower() in _TRUE for name in names if name in given), None)


_CONFIG_FLAGS = ("--deepspeed", "--deepspeed_config", "--deepspeed-config")


def config_flags(argv: Sequence[str]) -> tuple[str, ...]:
    """List the flags by which a command line names a ds_config, in the order in which a file follows them."""
    given = {word.partition("=")[0] for word in argv}
    return tuple(flag for flag in _CONFIG_FLAGS if flag in given)


def take_ds_config(argv: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """Split `--deepspeed FILE` or `--deepspeed_config FILE` off a command line; return the rest and FILE."""
    rest: list[str] = []
    taken: str | None = None
    words = deque(argv)
    while words:
        name, equals, text = words[0].partition("=")
        word = words.popleft()
        if name not in _CONFIG_FLAGS:
            rest.append(word)
        elif equals:
            taken = text
        elif words and not words[0].startswith("--"):
            taken = words.popleft()
    return tuple(rest), taken


def _kind(name: str) -> str:
    return {bool: "true or false", int: "an integer", float: "a number"}.get(type(DEFAULTS[name]), "a string")


def _convert(name: str, text: str | None) -> Value | None:
    match DEFAULTS[name]:
        case bool():
            word = "true" if text is None else text.lower()
            return True if word in _TRUE else False if word in _FALSE else None
        case str():
            return text
        case int() | float() as default:
            try:
                number = type(default)(text or "")
            except ValueError:
                return None
            return number if math.isfinite(number) else None
