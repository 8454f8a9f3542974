"""What a script must be told so that it agrees with its ds_config.

The Trainer refuses a ds_config whose numbers differ from its arguments, whoever set them. So what
the config fixes and the command line leaves open is passed on as an argument.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zlaunch.dsconfig.source import KeyPath, dotted
from zlaunch.errors import Finding
from zlaunch.machine import Machine
from zlaunch.provenance import AUTO, Values
from zlaunch.script import Interface
from zlaunch.trainer_args import Argument, TrainerArgs, Value

MATCHED: tuple[tuple[KeyPath, str], ...] = (
    (("train_micro_batch_size_per_gpu",), "per_device_train_batch_size"),
    (("gradient_accumulation_steps",), "gradient_accumulation_steps"),
    (("gradient_clipping",), "max_grad_norm"),
    (("optimizer", "params", "lr"), "learning_rate"),
    (("optimizer", "params", "eps"), "adam_epsilon"),
    (("optimizer", "params", "weight_decay"), "weight_decay"),
    (("scheduler", "params", "warmup_max_lr"), "learning_rate"),
    (("scheduler", "params", "total_num_steps"), "max_steps"),
    (("scheduler", "params", "warmup_num_steps"), "warmup_steps"),
)
"""Keys that the Trainer compares with an argument (`HfTrainerDeepSpeedConfig`)."""

PRECISIONS = ("bf16", "fp16")


@dataclass(frozen=True)
class Agreement:
    """The arguments after both sides were heard, what to add to the command line, and disputes."""

    args: TrainerArgs
    added: tuple[tuple[str, Value], ...]
    findings: tuple[Finding, ...]


def agree(
    values: Values, args: TrainerArgs, precision: str | None, machine: Machine, interface: Interface
) -> Agreement:
    """Bring the Trainer arguments and the ds_config together; explicit arguments that differ are disputes."""
    findings = [*_disputes(values, args), *_precision_disputes(values, args, precision)]
    added: dict[str, Argument] = {}
    if interface is Interface.TRAINER:
        for path, name in MATCHED:
            value = values[path]
            if value not in (None, AUTO) and not args[name].given and value != args[name].value:
                added.setdefault(name, Argument(value, f"`{dotted(path)}` in the ds_config"))
    added |= _precision(values, args, precision, machine)
    if machine.accelerator == "cpu" and not args["use_cpu"].value:
        added["use_cpu"] = Argument(True, "this machine has no accelerator")
    for name, argument in added.items():
        args = args.over(name, argument)
    passed_on = tuple(
        (name, argument.value) for name, argument in added.items() if argument.value is not False
    )
    return Agreement(args, passed_on if interface is Interface.TRAINER else (), tuple(findings))


def script_arguments(agreement: Agreement, interface: Interface, ds_config: Path) -> tuple[str, ...]:
    """Write what is appended to the script's own arguments."""
    words: list[str] = []
    for name, value in agreement.added:
        words += [f"--{name}"] if value is True else [f"--{name}", f"{value}"]
    if interface is Interface.TRAINER:
        words += ["--deepspeed", str(ds_config)]
    elif interface is Interface.DEEPSPEED:
        words += ["--deepspeed", "--deepspeed_config", str(ds_config)]
    return tuple(words)


def _precision(
    values: Values, args: TrainerArgs, precision: str | None, machine: Machine
) -> dict[str, Argument]:
    """Switch on the format that a flag, the config or the machine decides, if no argument did."""
    if args.is_on(*PRECISIONS, *(f"{name}_full_eval" for name in PRECISIONS)):
        return {}
    if precision is not None:
        return {precision: Argument(True, "`--precision`")} if precision in PRECISIONS else {}
    if on := [name for name in PRECISIONS if values[(name, "enabled")] is True]:
        return {on[0]: Argument(True, f"`{on[0]}.enabled` in the ds_config")}
    if not any(values[(name, "enabled")] == AUTO for name in PRECISIONS):
        return {}
    best = machine.best_precision
    source = f"the best format of {machine.gpus[0].name if machine.gpus else 'a CPU'}"
    return {best: Argument(True, source)} if best in PRECISIONS and values[(best, "enabled")] == AUTO else {}


def _disputes(values: Values, args: TrainerArgs) -> Iterator[Finding]:
    for path, name in MATCHED:
        value, argument = values[path], args[name]
        if value in (None, AUTO) or not argument.given or value == argument.value:
            continue
        if name in ("max_steps", "warmup_steps") and not _is_count(argument.value):
            continue
        source = values.leaves[path].source
        yield Finding(
            "differs-from-argument",
            f"`{dotted(path)}` is {value} ({source}), but `--{name} {argument.value}` was given",
            hint=f'write "auto" in the ds_config, or drop `--{name}`',
            where=dotted(path),
        )


def _is_count(value: Value) -> bool:
    return not isinstance(value, str) and value >= 1


def _precision_disputes(values: Values, args: TrainerArgs, precision: str | None) -> Iterator[Finding]:
    given = [name for name in PRECISIONS if args.is_on(name, f"{name}_full_eval")]
    for name in given:
        if precision not in (None, name):
            yield Finding(
                "differs-from-argument", f"`--precision {precision}` and `--{name}` exclude each other"
            )
        elif values[(name, "enabled")] is False:
            source = values.leaves[(name, "enabled")].source
            yield Finding(
                "differs-from-argument",
                f"`{name}.enabled` is false ({source}), but `--{name}` is on",
                hint=f"set `{name}.enabled` to true, or drop `--{name}`",
                where=f"{name}.enabled",
            )
    if len(given) == 2:
        yield Finding("both-precisions", "`--bf16` and `--fp16` exclude each other", hint="keep one of them")
