"""A ds_config by name → a report: read it, find what is wrong, mend it, ask DeepSpeed itself."""

import contextlib
import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from zlaunch.compose import as_written
from zlaunch.dsconfig.document import Document
from zlaunch.dsconfig.releases import NEWEST, Release, release
from zlaunch.dsconfig.source import read
from zlaunch.errors import ExitStatus, Finding, Refused, Severity, Unavailable, WrongUsage, ZlaunchError
from zlaunch.mending import mended
from zlaunch.model import model_flag, read_shape
from zlaunch.resolve import Known, derive_batch, resolve
from zlaunch.rules.rule import Context
from zlaunch.script import Interface
from zlaunch.trainer_args import TrainerArgs, read_arguments, removed_arguments, take_ds_config
from zlaunch.units import plural
from zlaunch.validation import findings_in, in_order

DEEP_SECONDS = 120.0
_ALWAYS_COUNT = frozenset({Severity.ERROR, Severity.LATE})


@dataclass(frozen=True)
class Report:
    """What was found about one ds_config."""

    name: str
    findings: tuple[Finding, ...] = ()
    trouble: ZlaunchError | None = None
    """Why it could not be read at all."""
    diff: str = ""
    """What was mended, or would be."""

    def status(self, strict: bool) -> ExitStatus:
        """Say what the exit status of a check is; strictly, silent findings count as well."""
        if self.trouble is not None:
            return self.trouble.status
        counted = {*_ALWAYS_COUNT, Severity.SILENT} if strict else _ALWAYS_COUNT
        wrong = any(finding.severity in counted for finding in self.findings)
        return ExitStatus.REFUSED if wrong else ExitStatus.OK


@dataclass(frozen=True)
class Wish:
    """How a ds_config is to be looked at."""

    context: Context = field(default_factory=Context)
    about_arguments: tuple[Finding, ...] = ()
    """What is wrong with the Trainer's arguments themselves."""
    deep: bool = False
    mend: bool = False
    show_diff: bool = False


def context_of(
    argv: Sequence[str],
    world_size: int | None,
    model: Path | None,
    interface: Interface,
    asked: str | None,
) -> tuple[Context, tuple[Finding, ...]]:
    """Gather what a command line says about the job of a ds_config."""
    rest, _ = take_ds_config(argv)
    args, findings = read_arguments(rest) if rest else (None, [])
    findings += removed_arguments(rest)
    named = model_flag(rest)
    if model is None and named is not None and Path(named).exists():
        model = Path(named)
    context = Context(
        world_size=world_size,
        args=args,
        model=None if model is None else read_shape(model),
        interface=interface,
        release=_release(asked),
    )
    return context, tuple(findings)


def _release(asked: str | None) -> Release | None:
    """Find the release that was asked about, or that is installed; None for the newest."""
    if asked is not None:
        return release(asked)
    with contextlib.suppress(PackageNotFoundError, WrongUsage):
        installed = release(version("deepspeed"))
        return None if installed == NEWEST else installed
    return None


def inspect(name: str, wish: Wish) -> Report:
    """Look at one ds_config; what hinders it is part of the report."""
    try:
        if name.endswith((".yaml", ".yml")):
            return _follow(name, wish)
        document = read(name)
    except Refused as error:
        return Report(name, error.findings)
    except ZlaunchError as error:
        return Report(name, trouble=error)
    diff = ""
    if wish.show_diff:
        following = mended(document, wish.context)
        diff = _diff(document, following)
        if wish.mend and diff:
            _write_back(document.file, following.text)
            document = following
    findings = [*wish.about_arguments, *findings_in(document, wish.context)]
    if wish.deep and not any(finding.severity is Severity.ERROR for finding in findings):
        findings += _second_opinion(document, wish.context)
    return Report(name, tuple(findings), diff=diff)


def _follow(name: str, wish: Wish) -> Report:
    """Look at the ds_config that an accelerate config names, or holds in its own words."""
    from zlaunch import accelerate_config

    config = accelerate_config.read(Path(name))
    match config.ds_config:
        case accelerate_config.Named(file=file):
            report = inspect(str(file), wish)
            return replace(report, name=name, findings=(*config.findings, *report.findings))
        case Document() as document:
            findings = [*config.findings, *findings_in(document, wish.context)]
            return Report(name, tuple(sorted(findings, key=in_order)))
    nothing = "this accelerate config does not use DeepSpeed"
    return Report(name, (*config.findings, Finding("no-deepspeed", nothing, severity=Severity.ADVICE)))


def _diff(old: Document, new: Document) -> str:
    lines = difflib.unified_diff(
        old.text.splitlines(keepends=True), new.text.splitlines(keepends=True), old.file, new.file
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _write_back(file: str, text: str) -> None:
    from zlaunch import rundir

    if not Path(file).is_file():
        raise WrongUsage(f"`--fix` has no file to write {file} back to", "use `--diff`")
    rundir.write_back(Path(file), text)


def _second_opinion(document: Document, context: Context) -> list[Finding]:
    """Ask the installed DeepSpeed about the config as the job would hand it over."""
    world = context.world_size or 1
    from zlaunch.process import output_of

    args = context.args or TrainerArgs()
    values = derive_batch(as_written(document), args, world, context.interface)
    resolved = resolve(values, Known(args, context.model, world, context.interface)).values
    argv = [sys.executable, "-m", "zlaunch.deep", str(world), json.dumps(resolved.config())]
    answer = output_of(argv, DEEP_SECONDS)
    if answer is None:
        raise Unavailable(
            "the installed DeepSpeed could not be asked", f"see what `{' '.join(argv[:3])} 1 {{}}` says"
        )
    said = json.loads(answer)
    if said is None:
        return []
    message = f"DeepSpeed itself, for {plural(world, 'rank')}: {said}"
    return [document.locate(Finding("deepspeed-refuses", message, "mend what it names"))]
