"""A ds_config by name → a report: read it, find what is wrong, mend it, ask DeepSpeed itself."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zlaunch.config.resolve.trainer_agreement import precision_disputes
from zlaunch.config.rules.rule import Context
from zlaunch.config.rules.validate import validate_document
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.releases import release
from zlaunch.dsconfig.text.document import Document
from zlaunch.errors import (
    FATAL,
    ExitStatus,
    Finding,
    InputMissing,
    Refused,
    Severity,
    Unavailable,
    WrongUsage,
    ZlaunchError,
    in_order,
)
from zlaunch.job.model import model_flag, read_shape
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_args import read_arguments, removed_arguments, take_ds_config
from zlaunch.units import plural

DEEP_SECONDS = 120.0


@dataclass(frozen=True)
class Report:
    """What was found about one ds_config."""

    name: str
    findings: tuple[Finding, ...] = ()
    trouble: ZlaunchError | None = None
    """Why it could not be read, mended or asked about."""
    diff: str = ""
    """What was mended, or would be."""
    fix_note: str = ""
    """What was done with that, in words; empty if nobody asked for it."""

    def status(self, strict: bool) -> ExitStatus:
        """Say what the exit status of a check is; strictly, silent findings count as well."""
        if self.trouble is not None:
            return self.trouble.status
        counted = FATAL | {Severity.SILENT} if strict else FATAL
        wrong = any(finding.severity in counted for finding in self.findings)
        return ExitStatus.REFUSED if wrong else ExitStatus.OK


@dataclass(frozen=True)
class ReportOptions:
    """How a ds_config is to be looked at."""

    context: Context = field(default_factory=Context)
    deep: bool = False
    mend: bool = False
    show_diff: bool = False


@dataclass(frozen=True)
class LoadedConfig:
    """A ds_config that was found by its name."""

    document: Document | None
    """None if an accelerate config does not use DeepSpeed."""
    findings: tuple[Finding, ...] = ()
    """What is wrong with the accelerate config around it."""
    is_embedded: bool = False
    """It stands in the words of an accelerate config, not in a text of its own."""

    def needed(self, name: str) -> Document:
        """Give the ds_config; raise WrongUsage if there is none."""
        if self.document is None:
            raise WrongUsage(f"`{name}` does not use DeepSpeed", "name one that does, or a ds_config")
        return self.document


def context_of(
    argv: Sequence[str],
    world_size: int | None,
    model: Path | None,
    runner: str | None,
    asked: str | None,
) -> tuple[Context, tuple[Finding, ...]]:
    """Gather what a command line says about the job of a ds_config, and what is wrong with it.

    Only a runner that was named is known to read the text as it is.
    """
    interface = ConfigInterface[(runner or "trainer").upper()]
    rest, _ = take_ds_config(argv)
    args, findings = read_arguments(rest) if rest else (None, [])
    if interface is not ConfigInterface.DEEPSPEED:
        findings += removed_arguments(rest)
        findings += precision_disputes(args) if args is not None else []
    named = model_flag(rest)
    if model is None and named is not None and Path(named).exists():
        model = Path(named)
    if model is not None and not model.exists():
        raise InputMissing(f"there is no `{model}`", "name a model's directory here, or its config.json")
    context = Context(
        world_size=world_size,
        args=args,
        model=None if model is None else read_shape(model),
        interface=interface,
        release=None if asked is None else release(asked),
        strict_json=runner is not None and interface is not ConfigInterface.DEEPSPEED,
    )
    return context, tuple(findings)


def load_config(name: str) -> LoadedConfig:
    """Read a ds_config, or follow accelerate's YAML to the one it names or holds in its own words."""
    if not name.endswith((".yaml", ".yml")):
        return LoadedConfig(read(name))
    from zlaunch.config import accelerate

    config = accelerate.read(Path(name))
    match config.ds_config:
        case accelerate.Named(file=file):
            return LoadedConfig(read(file), config.findings)
        case Document() as document:
            return LoadedConfig(document, config.findings, is_embedded=True)
    nothing = Finding("no-deepspeed", f"{name} does not use DeepSpeed", severity=Severity.ADVICE)
    return LoadedConfig(None, (*config.findings, nothing))


def inspect_config(name: str, wish: ReportOptions) -> Report:
    """Look at one ds_config; what hinders it is part of the report."""
    try:
        found = load_config(name)
        return Report(name, found.findings) if found.document is None else _look(name, found, wish)
    except Refused as error:
        return Report(name, error.findings)
    except ZlaunchError as error:
        return Report(name, trouble=error)


def _look(name: str, found: LoadedConfig, wish: ReportOptions) -> Report:
    document, diff, told = found.document, "", ""
    assert document is not None, "the caller has one"
    if wish.show_diff:
        if found.is_embedded:
            raise WrongUsage(f"{name} holds its ds_config in accelerate's words", "mend it by hand")
        from zlaunch.config.fix import fix_document

        following, count = fix_document(document, wish.context)
        diff = _diff(document, following)
        told = _told(count, wish.mend)
        if wish.mend and diff:
            _write_back(document.file, following.text)
            document = following
    findings = [*found.findings, *validate_document(document, wish.context)]
    if wish.deep and not any(finding.severity is Severity.ERROR for finding in findings):
        findings += _second_opinion(document, wish.context)
    return Report(name, tuple(sorted(findings, key=in_order)), diff=diff, fix_note=told)


def _told(count: int, is_written: bool) -> str:
    """Say how much was mended, and whether the file has it."""
    if count == 0:
        return "nothing that `--fix` mends"
    mendings = plural(count, "mending")
    return f"{mendings} written" if is_written else f"`--fix` would write {mendings}"


def _diff(old: Document, new: Document) -> str:
    import difflib

    lines = difflib.unified_diff(
        old.text.splitlines(keepends=True), new.text.splitlines(keepends=True), old.file, new.file
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _write_back(file: str, text: str) -> None:
    from zlaunch.files import write_back

    if not Path(file).is_file():
        raise WrongUsage(f"`--fix` has no file to write {file} back to", "use `--diff`")
    write_back(Path(file), text)


def _second_opinion(document: Document, context: Context) -> list[Finding]:
    """Ask the installed DeepSpeed about the config as the job would hand it over.

    Batch sizes that only the script's objects decide count as one sample per rank.
    """
    from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL
    from zlaunch.config.resolve.fill import fill_autos
    from zlaunch.config.resolve.values import AUTO
    from zlaunch.process import ours, output_of

    world = context.world_size or 1
    values = fill_autos(document, replace(context, world_size=world)).values
    if AUTO in (values[TOTAL], values[MICRO], values[ACCUMULATION]):
        values = values.without(TOTAL).without(ACCUMULATION).put(MICRO, 1, "one sample per rank")
    program = "zlaunch.config.deepspeed_check"
    answer = output_of(ours(program, str(world), json.dumps(values.config())), DEEP_SECONDS)
    if answer is None:
        raise Unavailable(
            "the installed DeepSpeed could not be asked",
            f"see what `{sys.executable} -m {program} 1 {{}}` says",
        )
    said = json.loads(answer)
    if said is None:
        return []
    message = f"DeepSpeed itself, for {plural(world, 'rank')}: {said}"
    return [document.locate(Finding("deepspeed-refuses", message, "mend what it names"))]
