"""What a script must be told so that it agrees with its ds_config.

The Trainer refuses a ds_config whose numbers differ from its arguments, whoever set them. So what
the config fixes and the command line leaves open is passed on as an argument, and what still
differs then is a finding before anything starts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zlaunch.config.resolve.values import AUTO, Values
from zlaunch.dsconfig.text.document import dotted
from zlaunch.errors import Finding
from zlaunch.hosts.machine import Machine
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_args import MATCHED, Argument, TrainerArgs, Value, find_mismatches

PRECISIONS = ("bf16", "fp16")
FORMATS = tuple(f"{name}.enabled" for name in PRECISIONS)


@dataclass(frozen=True)
class TrainerAgreement:
    """The arguments after both sides were heard, what to add to the command line, and disputes."""

    args: TrainerArgs
    added: tuple[tuple[str, Value], ...]
    findings: tuple[Finding, ...]


def reconcile_with_trainer(
    values: Values, args: TrainerArgs, precision: str | None, machine: Machine, interface: ConfigInterface
) -> TrainerAgreement:
    """Bring the Trainer arguments and the ds_config together; what cannot agree is a dispute."""
    findings = list(precision_disputes(args, precision))
    if _formats_on(args) == list(PRECISIONS):  # told; nothing else is to stumble over it
        for name in ("fp16", "fp16_full_eval"):
            args = args.over(name, Argument(False, "`--bf16`"))
    added = _format(values, args, precision, machine)
    if interface is ConfigInterface.TRAINER:
        added |= from_config(values, args)
    if machine.accelerator == "cpu" and not args["use_cpu"].value:
        added["use_cpu"] = Argument(True, "this machine has no accelerator")
    for name, argument in added.items():
        args = args.over(name, argument)
    if interface is ConfigInterface.TRAINER:
        findings += [one for one in _disputes(values, args) if not findings or one.where not in FORMATS]
    words = tuple((name, argument.value) for name, argument in added.items())
    return TrainerAgreement(args, words if interface is ConfigInterface.TRAINER else (), tuple(findings))


def write_formats(values: Values, args: TrainerArgs) -> Values:
    """Write out the section that accelerate would add for a number format the config does not mention."""
    for name in PRECISIONS:
        old = "bfloat16" if name == "bf16" else name
        if args.is_on(name, f"{name}_full_eval") and not (values.has((name,)) or values.has((old,))):
            values = values.put((name, "enabled"), True, args[name].source)
    return values


def script_arguments(
    agreement: TrainerAgreement, interface: ConfigInterface, ds_config: Path, config_flags: Sequence[str]
) -> tuple[str, ...]:
    """Write what is appended to the script's own arguments; `config_flags` are those of its own loop."""
    words: list[str] = []
    for name, value in agreement.added:
        words += [f"--{name}"] if value is True else [f"--{name}", f"{value}"]
    if interface is ConfigInterface.TRAINER:
        words += ["--deepspeed", str(ds_config)]
    elif interface is ConfigInterface.DEEPSPEED and config_flags:
        words += [*config_flags, str(ds_config)]
    return tuple(words)


def from_config(values: Values, args: TrainerArgs) -> dict[str, Argument]:
    """Find the arguments that nobody gave and that the config decides."""
    added: dict[str, Argument] = {}
    for path, match in MATCHED.items():
        value = values[path]
        if value in (None, AUTO) or value == match.expected(args) or isinstance(value, bool):
            continue
        parts = value if isinstance(value, list) else [value]
        for name, part in zip(match.names, parts, strict=False):
            if not args[name].given and args[name].value != part:
                added.setdefault(name, Argument(part, f"`{dotted(path)}` in the ds_config"))
    return added


def _format(
    values: Values, args: TrainerArgs, precision: str | None, machine: Machine
) -> dict[str, Argument]:
    """Switch on the number format that a flag, the config or the machine decides, if no argument did."""
    if args.is_on(*PRECISIONS, *(f"{name}_full_eval" for name in PRECISIONS)):
        return {}
    if precision is not None:
        return {precision: Argument(True, "`--precision`")} if precision in PRECISIONS else {}
    if on := [name for name in PRECISIONS if values[(name, "enabled")] is True]:
        return {on[0]: Argument(True, f"`{on[0]}.enabled` in the ds_config")}
    best = machine.best_precision
    if best not in PRECISIONS or values[(best, "enabled")] != AUTO:
        return {}
    return {best: Argument(True, f"the best format of {machine.gpus[0].name if machine.gpus else 'a CPU'}")}


def _disputes(values: Values, args: TrainerArgs) -> Iterator[Finding]:
    for one in find_mismatches(lambda path: values[path], args):
        yield Finding(
            "differs-from-argument",
            f"`{dotted(one.path)}` is {one.value} ({values.leaves[one.path].source}), but {one.said}",
            hint=one.remedy,
            where=dotted(one.path),
        )


def _formats_on(args: TrainerArgs) -> list[str]:
    return [name for name in PRECISIONS if args.is_on(name, f"{name}_full_eval")]


def precision_disputes(args: TrainerArgs, precision: str | None = None) -> Iterator[Finding]:
    """Find number formats on the command line that exclude each other."""
    given = _formats_on(args)
    if len(given) == len(PRECISIONS):
        yield Finding("both-precisions", "`--bf16` and `--fp16` exclude each other", hint="keep one of them")
    elif given and precision not in (None, *given):
        yield Finding(
            "differs-from-argument",
            f"`--precision {precision}` and `--{given[0]}` exclude each other",
            hint="keep one of them",
        )
