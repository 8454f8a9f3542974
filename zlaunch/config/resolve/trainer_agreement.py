"""Reconcile Trainer arguments with the ds_config.

The Trainer refuses a ds_config whose numbers differ from its arguments, even from their defaults. So a
value that only the config sets is passed on as an argument, and remaining differences are reported before
the job starts.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zlaunch.config.resolve.values import AUTO, Values
from zlaunch.dsconfig.text.document import dotted
from zlaunch.errors import Finding, Severity
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.trainer_args import MATCHED, Argument, TrainerArgs, find_mismatches
from zlaunch.job.trainer_releases import Value

if TYPE_CHECKING:
    from zlaunch.hosts.machine.resources import Machine

PRECISIONS = ("bf16", "fp16")
FORMATS = tuple(f"{name}.enabled" for name in PRECISIONS)
_BOTH = "both-precisions"
_PRECISION = Source.option("--precision")


class TrainerAgreement(NamedTuple):
    """The reconciled arguments, what to add to the command line, and what cannot be reconciled."""

    args: TrainerArgs
    added: tuple[tuple[str, Value], ...]
    findings: tuple[Finding, ...]


def reconcile_with_trainer(
    values: Values,
    args: TrainerArgs,
    precision: str | None,
    machine: "Machine | None",
    interface: ConfigInterface,
    *,
    may_add: bool = True,
) -> TrainerAgreement:
    """Reconcile the Trainer arguments with the ds_config; `machine` is None where no job is started.

    Without `may_add`, the program gets no further arguments.
    """
    is_trainer = interface is ConfigInterface.TRAINER
    conflicts = list(precision_conflicts(args, precision))
    if any(finding.code == _BOTH for finding in conflicts):  # do not report what follows from it
        for name in ("fp16", "fp16_full_eval"):
            args = args.over(name, Argument(False, Source.argument("bf16")))
    findings: list[Finding] = []
    if is_trainer:
        findings += conflicts
    added: dict[str, Argument] = {}
    if interface is ConfigInterface.DEEPSPEED or (is_trainer and may_add):
        added |= _precision_arguments(values, args, precision, machine)
    if is_trainer and may_add:
        added |= from_config(values, args)
        if machine is not None and machine.accelerator == "cpu" and not args["use_cpu"].value:
            added["use_cpu"] = Argument(True, Source(SourceKind.MACHINE, machine.why_cpu))
    words = [(name, argument.value) for name, argument in added.items() if args[name].value != argument.value]
    for name, argument in added.items():
        args = args.over(name, argument)
    if is_trainer:
        differences = _differences(values, args, may_add)
        findings += [finding for finding in differences if not findings or finding.where not in FORMATS]
        for name in _evaluated_in(args, precision):  # reported already, if it is a mistake
            args = args.over(f"{name}_full_eval", Argument(False, Source.argument(name)))
    if not is_trainer:
        words = []
    return TrainerAgreement(args, tuple(words), tuple(findings))


def leave_out_evaluation(
    values: Values, args: TrainerArgs, precision: str | None, machine: "Machine | None"
) -> Values:
    """Leave out a section of zlaunch's own for a format in which the Trainer only evaluates.

    The argument for the evaluation would turn it on for the training.
    """
    if precision is None and machine is not None and not any(args.is_on(name) for name in PRECISIONS):
        precision = machine.best_precision
    for name in _evaluated_in(args, precision):
        leaf = values.leaves.get((name, "enabled"))
        if leaf is not None and (leaf.source.kind is SourceKind.PRESET or leaf.source == _PRECISION):
            values = values.without((name,))
    return values


def _evaluated_in(args: TrainerArgs, precision: str | None = None) -> list[str]:
    """List the formats in which the Trainer evaluates and does not train."""
    trained = [name for name in PRECISIONS if args.is_on(name)]
    if precision is not None:
        trained = [precision]
    return [
        name for name in PRECISIONS if trained and name not in trained and args.is_on(f"{name}_full_eval")
    ]


def write_formats(values: Values, args: TrainerArgs) -> Values:
    """Write the section that accelerate adds for a precision that the config does not mention."""
    for name in (name for name in PRECISIONS if args.is_on(name)):
        old = "bfloat16" if name == "bf16" else name
        if not (values.has((name,)) or values.has((old,))):
            values = values.put((name, "enabled"), True, args[name].source)
    return values


def script_arguments(
    agreement: TrainerAgreement, ds_config: Path, config_flags: Sequence[str]
) -> tuple[str, ...]:
    """List what is appended to the script's arguments; `config_flags` come before the path of the ds_config.

    A boolean gets a value: some parsers want one, and all accept it.
    """
    words: list[str] = []
    for name, value in agreement.added:
        words += [f"--{name}", str(value)]
    if config_flags:
        words += [*config_flags, str(ds_config)]
    return tuple(words)


def from_config(values: Values, args: TrainerArgs) -> dict[str, Argument]:
    """Find the arguments that were not given and that the config decides."""
    added: dict[str, Argument] = {}
    for path, match in MATCHED.items():
        value = values[path]
        if value in (None, AUTO) or value == match.expected(args) or isinstance(value, bool):
            continue
        parts = value if isinstance(value, list) else [value]
        for name, part in zip(match.names, parts, strict=False):
            if not args[name].given and args[name].value != part:
                added.setdefault(name, Argument(part, _in_the_config(dotted(path))))
    return added


def _in_the_config(key: str) -> Source:
    return Source(SourceKind.CONFIG_FILE, f"`{key}` in the ds_config")


def _precision_arguments(
    values: Values, args: TrainerArgs, precision: str | None, machine: "Machine | None"
) -> dict[str, Argument]:
    """Switch on the precision that an option, the config or the machine decides, if no argument does."""
    trained = [name for name in PRECISIONS if args.is_on(name)]
    if precision is not None:
        wanted = {name: name == precision for name in PRECISIONS if (name == precision) != (name in trained)}
        return {name: Argument(value, _PRECISION) for name, value in wanted.items()}
    if trained or any(args[name].given for name in PRECISIONS):
        return {}
    if written := [name for name in PRECISIONS if values[(name, "enabled")] is True]:
        return {written[0]: Argument(True, _in_the_config(f"{written[0]}.enabled"))}
    by_evaluation = [
        name for name in PRECISIONS if args.is_on(f"{name}_full_eval") and values[(name, "enabled")] == AUTO
    ]
    if machine is None or by_evaluation:
        return {}
    best, why = machine.best_precision, f"the best format of {machine.device}"
    if best not in PRECISIONS:
        source = Source(SourceKind.MACHINE, f"{best}, {why}")
        return {name: Argument(False, source) for name in PRECISIONS if values[(name, "enabled")] == AUTO}
    if values[(best, "enabled")] != AUTO:
        return {}
    return {best: Argument(True, Source(SourceKind.MACHINE, why))}


def _differences(values: Values, args: TrainerArgs, may_add: bool) -> Iterator[Finding]:
    elsewhere = 'write "auto" in the ds_config, or the same value where the program sets it'
    for mismatch in find_mismatches(lambda path: values[path], args):
        key, source = dotted(mismatch.path), values.leaves[mismatch.path].source
        yield Finding(
            "differs-from-argument",
            f"`{key}` is {mismatch.value} ({source}), but {mismatch.said}",
            hint=mismatch.remedy if may_add else elsewhere,
            where=key,
        )


def precision_conflicts(args: TrainerArgs, precision: str | None = None) -> Iterator[Finding]:
    """Find precisions on the command line that exclude each other.

    A training may evaluate in another format than its own.
    """
    for purpose in ("", "_full_eval"):
        names = [f"{name}{purpose}" for name in PRECISIONS if args.is_on(f"{name}{purpose}")]
        if len(names) == len(PRECISIONS):
            message = f"`--{names[0]}` and `--{names[1]}` exclude each other"
            yield Finding(_BOTH, message, hint="keep one of them")
            return
    typed = [name for name in PRECISIONS if args.is_on(name) and _is_typed(args[name])]
    if typed and precision not in (None, *typed):
        yield Finding(
            "differs-from-argument",
            f"`--precision {precision}` and `--{typed[0]}` exclude each other",
            hint="keep one of them",
        )


def _is_typed(argument: Argument) -> bool:
    return argument.source.kind is SourceKind.ARGUMENT


def fsdp_conflict(typed: ScriptArgs, severity: Severity = Severity.FAILS_LATER) -> Iterator[Finding]:
    """Find an argument for FSDP, which the Trainer refuses together with a ds_config."""
    if argument := typed.fsdp:
        yield Finding(
            "fsdp-and-deepspeed",
            "the Trainer refuses FSDP together with a ds_config",
            hint=f"leave out `{argument}` to train with DeepSpeed, or the ds_config to train with FSDP",
            where="--fsdp",
            severity=severity,
        )


def save_conflict(args: TrainerArgs) -> Iterator[Finding]:
    """Find two arguments about saving that the Trainer refuses together, if it trains with DeepSpeed."""
    if args.is_on("save_only_model") and args.is_on("load_best_model_at_end"):
        yield Finding(
            "best-model-is-not-saved",
            "the Trainer refuses `--save_only_model` together with `--load_best_model_at_end`",
            hint="leave out one of them; only without DeepSpeed they work together",
            where="--save_only_model",
            severity=Severity.FAILS_LATER,
        )
