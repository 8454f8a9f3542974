"""Report on a ds_config: read, validate and fix it, and ask DeepSpeed itself."""

import difflib
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import NamedTuple

from zlaunch.config.asked_release import asked_release, packages_of
from zlaunch.config.fix import Deletion, count_fixable, fix_document
from zlaunch.config.resolve.trainer_agreement import fsdp_conflict, precision_conflicts, save_conflict
from zlaunch.config.resolve.trainer_optimizer import OPTIMIZER_PACKAGES, missing_package, unknown_choices
from zlaunch.config.rules.rule import Context, Subject
from zlaunch.config.script_traps import script_traps, settings_of
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema_check import check
from zlaunch.dsconfig.text.document import Document
from zlaunch.errors import (
    ExitStatus,
    Finding,
    InputMissing,
    Refused,
    Severity,
    WrongUsage,
    ZlaunchError,
    in_order,
)
from zlaunch.files import write_back
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.interpreter import inspect_python, stack_of
from zlaunch.hosts.machine.torch_optim import constructors_in
from zlaunch.job.args import ScriptArgs
from zlaunch.job.file_kinds import config_of_other_program
from zlaunch.job.model import model_flag, read_model
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.stack import SoftwareStack
from zlaunch.job.trainer_args import TrainerArgs, absent_arguments, read_arguments
from zlaunch.job.unused_arguments import ddp_arguments


@dataclass(frozen=True)
class Fixes:
    """The safe fixes of one ds_config."""

    writes: bool
    """Whether they are written, and not only shown."""
    count: int = 0
    diff: str = ""
    """The changes as a unified diff."""
    deletions: tuple[Deletion, ...] = ()
    left: tuple[Finding, ...] = ()
    """What they do not mend, if they are only shown; the places are those after the fixes."""
    backup: Path | None = None
    """The copy of the old file."""


@dataclass(frozen=True)
class Report:
    """The findings about one ds_config."""

    name: str
    findings: tuple[Finding, ...] = ()
    trouble: ZlaunchError | None = None
    """Why it could not be read, fixed or checked."""
    fixes: Fixes | None = None
    """None without `--fix` and `--diff`."""
    num_fixable: int = 0
    """Findings that `--fix` would fix, in a file that is refused."""

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """The findings; a file that cannot be read is one."""
        if self.trouble is None:
            return self.findings
        return (Finding("cannot-read", self.trouble.message, self.trouble.hint),)

    def status(self, strict: bool) -> ExitStatus:
        """The exit status of a check; with `strict`, warnings and what is ignored count as well.

        Changes that are only shown are a failure, as in other tools with `--diff`.
        """
        if self.trouble is not None:
            return self.trouble.status
        wrong = any(finding.is_refused for finding in self.findings)
        if strict:
            doubtful = (Severity.WARNING, Severity.IGNORED)
            wrong |= any(finding.severity in doubtful for finding in self.findings)
        would_change = self.fixes is not None and self.fixes.count > 0 and not self.fixes.writes
        if wrong or would_change:
            return ExitStatus.REFUSED
        return ExitStatus.OK


@dataclass(frozen=True)
class ReportOptions:
    """Options for a report."""

    context: Context = field(default_factory=Context)
    deep: bool = False
    fix: bool = False
    show_diff: bool = False
    """Only show what would be fixed."""
    backup: bool = True
    """Keep a copy of each file that is fixed."""
    python: Path | None = None
    """The interpreter whose DeepSpeed is asked; None for the one that runs zlaunch."""
    script: Script | None = None
    """The training script whose source is judged, too."""


class LoadedConfig(NamedTuple):
    """A ds_config found by name."""

    document: Document | None
    """None if an accelerate config does not use DeepSpeed."""
    findings: tuple[Finding, ...] = ()
    """What is wrong with the accelerate config around it."""
    is_embedded: bool = False
    """The ds_config is written as fields of an accelerate config."""

    def needed(self, name: str) -> Document:
        """The ds_config; raises WrongUsage if there is none."""
        if self.document is None:
            raise WrongUsage(f"`{name}` does not use DeepSpeed", "give one that does, or a ds_config")
        return self.document


def context_of(
    typed: ScriptArgs,
    world_size: int | None,
    model: Path | None,
    runner: str | None,
    asked: str | None,
    *,
    python: Path | None = None,
) -> tuple[Context, tuple[Finding, ...]]:
    """Build the context from a command line, with what is wrong with it.

    Strict JSON is only required of a file if its reader was named.
    """
    interface = ConfigInterface(runner or "trainer")
    rest, _ = typed.take_ds_config()
    extra: tuple[str, ...] = ()
    if rest.words:
        extra = OPTIMIZER_PACKAGES
    installed = inspect_python(python, extra)
    stack = stack_of(installed)
    args: TrainerArgs | None = None
    findings: list[Finding] = []
    if rest.words:
        args, findings = read_arguments(rest, release=stack.trainer)
        findings += _conflicts(rest, args, interface, stack)
        if interface is ConfigInterface.TRAINER:  # which may run elsewhere, where the package is
            findings += [
                *unknown_choices(args, installed),
                *missing_package(args, installed, Severity.ADVICE),
            ]
    named = model_flag(rest)
    if model is None and named is not None and Path(named).exists():
        model = Path(named)
    if model is not None and not model.exists():
        raise InputMissing(f"there is no `{model}`", "give a model directory or its config.json")
    context = Context(
        world_size=world_size,
        args=args,
        model=None if model is None else read_model(model),
        interface=interface,
        release=asked_release(asked, stack),
        packages=packages_of(asked, stack),
        is_upgrade=asked is not None,
        trainer=stack.trainer,
        torch=constructors_in(stack.torch),
        is_named=runner is not None,
        strict_json=runner is not None and interface is not ConfigInterface.DEEPSPEED,
    )
    return context, tuple(findings)


def _conflicts(
    typed: ScriptArgs, args: TrainerArgs, interface: ConfigInterface, stack: SoftwareStack
) -> Iterator[Finding]:
    if interface is not ConfigInterface.DEEPSPEED:
        yield from absent_arguments(typed, stack.trainer)
        yield from precision_conflicts(args)
    if interface is ConfigInterface.TRAINER:
        yield from fsdp_conflict(typed)
        yield from save_conflict(args)
        yield from ddp_arguments(args)


def load_config(name: str) -> LoadedConfig:
    """Read a ds_config, or the one that an accelerate config, in YAML or JSON, names or contains."""
    if not name.endswith((".yaml", ".yml")):
        document = read(name)
        if not _is_for_accelerate(document.value):
            if (other := config_of_other_program(name, document.value)) is not None:
                raise Refused([replace(other, place=document.place(()))])
            return LoadedConfig(document)
        return _of_accelerate(name, document)
    return _of_accelerate(name, None)


def _is_for_accelerate(value: Mapping[str, object]) -> bool:
    """Whether an object is a config of accelerate, or at least its section with fields about DeepSpeed."""
    section = value.get("deepspeed_config")
    if not value.keys().isdisjoint(DsConfig.model_fields):
        return False
    fields = {"zero_stage", "deepspeed_config_file", "offload_optimizer_device", "zero3_init_flag"}
    has_fields = isinstance(section, dict) and not fields.isdisjoint(section)
    return has_fields or not value.keys().isdisjoint(("distributed_type", "compute_environment"))


def _of_accelerate(name: str, document: Document | None) -> LoadedConfig:
    from zlaunch.config import accelerate  # most ds_configs are JSON

    if document is None:
        config = accelerate.read(Path(name))
    else:
        config = accelerate.interpret(document)
    kind = Finding(
        "accelerate-config",
        "this is a config of accelerate: its fields are read as accelerate reads them",
        f"`zlaunch config translate {shlex.quote(name)} -- SCRIPT` writes the command of zlaunch",
        place=config.source.place(()),
        severity=Severity.ADVICE,
    )
    findings = [kind, *config.findings]
    match config.ds_config:
        case str(file):
            return LoadedConfig(read(file), tuple(findings))
        case Document() as embedded:
            return LoadedConfig(embedded, tuple(findings), is_embedded=True)
    nothing = Finding("no-deepspeed", f"{name} does not use DeepSpeed", severity=Severity.ADVICE)
    return LoadedConfig(None, (*findings, nothing))


def inspect_config(name: str, options: ReportOptions) -> Report:
    """Check one ds_config; errors are part of the report."""
    try:
        config = load_config(name)
        if config.document is None:
            return Report(name, config.findings)
        return _look(name, config, options)
    except Refused as error:
        return Report(name, error.findings)
    except ZlaunchError as error:
        return Report(name, trouble=error)


def _look(name: str, config: LoadedConfig, options: ReportOptions) -> Report:
    document, fixes = config.document, None
    assert document is not None, "the caller has one"
    if options.fix or options.show_diff:
        if config.is_embedded:
            raise WrongUsage(f"{name} contains the ds_config as fields of accelerate", "fix it by hand")
        document, fixes = _fixed(document, options)
    findings = [*config.findings, *validate_document(document, options.context)]
    if options.script is not None:
        findings += _about_script(options.script, document, options.context)
    if options.deep and not any(finding.severity is Severity.ERROR for finding in findings):
        from zlaunch.config.second_opinion import second_opinion  # resolves "auto", which no other check does

        findings += second_opinion(document, options.context, options.python)
    num_fixable = 0
    if fixes is None and any(finding.is_refused for finding in findings):
        num_fixable = count_fixable(document, findings, options.context)
    return Report(name, tuple(sorted(findings, key=in_order)), fixes=fixes, num_fixable=num_fixable)


def _about_script(script: Script, document: Document, context: Context) -> Iterator[Finding]:
    config = check(document.value, context.release).config
    if config is not None:
        settings = settings_of(Subject(config, context))
        yield from script_traps(script, settings)


def _fixed(document: Document, options: ReportOptions) -> tuple[Document, Fixes]:
    """Apply the safe fixes; the document stays as it is if they are only shown."""
    fixed = fix_document(document, options.context)
    diff = _diff(document, fixed.document)
    left = tuple(validate_document(fixed.document, options.context)) if options.show_diff else ()
    fixes = Fixes(not options.show_diff, fixed.count, diff, fixed.deletions, left)
    if not (fixes.writes and diff):
        return document, fixes
    if not (file := Path(document.file)).is_file():
        raise WrongUsage(f"`--fix` cannot write back {file}: it is not a file", "use `--diff`")
    backup = write_back(file, fixed.document.text, keep=options.backup)
    return fixed.document, replace(fixes, backup=backup)


def _diff(old: Document, new: Document) -> str:
    # as in `git diff`, a tab ends a name with spaces, which `patch` would cut off
    name = f"{old.file}\t" if " " in old.file else old.file
    lines = difflib.unified_diff(_split_lines(old.text), _split_lines(new.text), name, name)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _split_lines(text: str) -> list[str]:
    """Split where patch does: at line feeds only."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
