"""Resolve the ds_config of a job: compose it, fill it in, and refuse it if it cannot work."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from zlaunch.config.fix import fix_hint
from zlaunch.config.resolve.autos import OpenReason, leave_derived_sizes
from zlaunch.config.resolve.compose import as_written, compose
from zlaunch.config.resolve.leaf_modules import with_leaf_modules
from zlaunch.config.resolve.nvme_buffers import fit_buffers
from zlaunch.config.resolve.resolve import ResolvedValues, resolve_values
from zlaunch.config.resolve.trainer_agreement import TrainerAgreement, save_conflict
from zlaunch.config.resolve.values import AUTO, Values
from zlaunch.config.rules.offload import path_is_taken_literally
from zlaunch.config.rules.rule import Context, Subject
from zlaunch.config.rules.trainer import BY_ARGUMENT
from zlaunch.config.validate import key_findings, validate_value
from zlaunch.dsconfig.keys.auto_keys import FILLED
from zlaunch.dsconfig.keys.intended import intended
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema_check import check
from zlaunch.dsconfig.text.document import Document, KeyPath, dotted, located
from zlaunch.errors import Finding, Refused, Severity, in_order, refuse_fatal
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.resources import Machine
from zlaunch.hosts.machine.torch_optim import constructors_in
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import ConfigInterface, Handover
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.spec import JobSpec, Precision
from zlaunch.job.stack import SoftwareStack
from zlaunch.job.trainer_args import TrainerArgs
from zlaunch.job.unused_arguments import unused_arguments


@dataclass(frozen=True)
class ResolveContext:
    """The inputs of a resolution, apart from the options of the job."""

    base: Document | None
    """The user's ds_config, or the one that the script brings along."""
    args: TrainerArgs
    model: ModelConfig | None
    machine: Machine
    world_size: int
    interface: ConfigInterface = ConfigInterface.TRAINER
    is_sure: bool = True
    handover: Handover = Handover.ARGUMENTS
    stack: SoftwareStack = field(default_factory=SoftwareStack)
    has_own_groups: bool = False
    """Whether the script may divide the ranks itself."""

    @property
    def context(self) -> Context:
        """The properties of the job that rules depend on."""
        return Context(
            world_size=self.world_size,
            args=self.args,
            model=self.model,
            interface=self.interface,
            handover=self.handover,
            is_sure=self.is_sure,
            accelerator=self.machine.accelerator,
            device_fp16=self.machine.has_fp16,
            release=self.stack.deepspeed,
            packages=self.stack.versions,
            has_own_groups=self.has_own_groups,
            torch=constructors_in(self.stack.torch),
        )


@dataclass(frozen=True)
class ResolvedConfig(ResolvedValues):
    """The ds_config of a job that can work."""

    config: DsConfig
    warnings: tuple[Finding, ...]
    """Settings of the user's ds_config that DeepSpeed does not follow."""

    @property
    def precision(self) -> Precision | None:
        """Name the precision of the model; None if the script decides."""
        formats: Mapping[Precision, object] = {
            "bf16": self.config.brain_float.enabled,
            "fp16": self.config.fp16.enabled,
        }
        if AUTO in formats.values() or not self.values.leaves:
            return None
        return next((name for name, enabled in formats.items() if enabled is True), "fp32")


def resolve_config(job: JobSpec, given: ResolveContext, findings: Sequence[Finding] = ()) -> ResolvedConfig:
    """Resolve the ds_config of a job; raise Refused with these and all further findings if it cannot work."""
    if given.handover is Handover.NOT:
        return _resolve_own(given)
    context = given.context
    composed = compose(job, given.base)
    _refuse_mistakes(job, given, composed, findings)
    composed = with_leaf_modules(_converted(composed, context), context)
    if not _has_width(given):
        composed = _without_model_sizes(composed)
    composed, derived = leave_derived_sizes(composed, context)
    resolved = resolve_values(composed, context, given.machine, job.precision)
    values = fit_buffers(resolved.values, given.model, given.world_size)
    unfillable = [
        Finding("auto-nobody-fills", f'nothing fills in "auto" for `{key}`', "write a value", where=key)
        for key, reason in resolved.left.items()
        if reason is OpenReason.NEVER_FILLED
    ]
    reasons = [*findings, *resolved.agreement.findings, *unfillable]
    if given.interface is ConfigInterface.TRAINER:
        reasons += save_conflict(given.args)
    judged = replace(context, args=None, is_named=given.is_sure)
    config, warnings = _judge(values, given.base, judged, reasons)
    by_argument = [*_by_argument(config, replace(context, args=resolved.agreement.args), given.base)]
    refuse_fatal(by_argument)
    warnings += (*by_argument, *_unused(composed, given))
    left = {**resolved.left, **derived}
    return ResolvedConfig(composed, values, left, resolved.agreement, config, warnings)


def _by_argument(config: DsConfig, context: Context, base: Document | None) -> Iterator[Finding]:
    for rule in BY_ARGUMENT:
        for finding in rule(Subject(config, context)):
            yield located(finding, base)


def _unused(values: Values, given: ResolveContext) -> Iterator[Finding]:
    """Find arguments of the Trainer that this ds_config makes dead."""
    if given.interface is ConfigInterface.TRAINER:
        written = {path: leaf.value for path, leaf in values.leaves.items()}
        for finding in unused_arguments(written, given.args):
            yield located(finding, given.base)


def _has_width(given: ResolveContext) -> bool:
    """Whether bucket sizes can be computed from the width of the model, by zlaunch or by the Trainer."""
    if given.model is None:
        return given.interface is not ConfigInterface.ACCELERATE
    return given.model.hidden_size is not None


def _without_model_sizes(values: Values) -> Values:
    """Leave the bucket sizes of a preset to DeepSpeed: the Trainer and accelerate fail without a width."""
    for path in values.autos():
        if FILLED.get(path) == "bucket" and values.leaves[path].source.kind is SourceKind.PRESET:
            values = values.without(path)
    return values


def _resolve_own(given: ResolveContext) -> ResolvedConfig:
    """Resolve the ds_config of the script itself: the bare launcher would start it, so nothing is refused."""
    document = given.base
    if document is None:
        nothing = Values({})
        return ResolvedConfig(nothing, nothing, {}, TrainerAgreement(given.args, (), ()), DsConfig(), ())
    resolved = resolve_values(as_written(document), given.context)
    checked = validate_value(resolved.values.config(), replace(given.context, args=None))
    warnings = tuple(
        document.locate(finding)
        for finding in checked.findings
        if finding.severity is not Severity.ADVICE or _is_known(finding)
    )
    warnings += tuple(_unused(resolved.written, given))
    config = checked.config or DsConfig()
    return ResolvedConfig(
        resolved.written, resolved.values, resolved.left, resolved.agreement, config, warnings
    )


def _refuse_mistakes(
    job: JobSpec, given: ResolveContext, composed: Values, findings: Sequence[Finding]
) -> None:
    """Refuse a file with wrong keys or values, for all its findings."""
    base, context = given.base, given.context
    if base is None:
        return
    of_keys = key_findings(check(base.value, context.release), base.value, context)
    if not any(finding.is_refused for finding in (*base.remarks, *of_keys)):
        return
    if given.interface is ConfigInterface.DEEPSPEED:  # whose rules refuse each "auto" that is left
        values, _ = leave_derived_sizes(composed, context)
        composed = resolve_values(values, context, given.machine, job.precision).values
    _judge(composed, base, replace(context, args=None, is_named=True), findings)


def _converted(values: Values, context: Context) -> Values:
    """Write each value as DeepSpeed converts it, such as "true", so that zlaunch reads the same."""
    checked = check(values.config(), context.release)
    if checked.config is None:
        return values
    written: dict[KeyPath, object] = dict(Subject(checked.config).written.items())
    for finding in checked.findings:
        path = finding.path or ()
        is_converted = (finding.code, finding.severity) == ("bad-type", Severity.ADVICE)
        if is_converted and path in values.leaves and path in written and written[path] != AUTO:
            values = values.put(path, written[path], values.leaves[path].source)
    return values


def _judge(
    values: Values, base: Document | None, context: Context, findings: Sequence[Finding]
) -> tuple[DsConfig, tuple[Finding, ...]]:
    """Read the result as DeepSpeed does; raise Refused with these and all further findings.

    What DeepSpeed silently does not do is refused if the command line asks for it, and only a warning
    if the user's file does.
    """
    checked = validate_value(values.config(), context)
    found = [finding for finding in checked.findings if not _is_expanded(finding, values)]
    placed = [_hint_for_set(located(finding, base), values) for finding in found]
    if base is not None:
        placed = [*base.remarks, *placed]
    ignored = [finding for finding in placed if finding.severity is Severity.IGNORED]
    warnings = [finding for finding in ignored if finding.place is not None and not finding.is_mistake]
    warnings += [finding for finding in placed if finding.severity is Severity.WARNING or _is_known(finding)]
    wrong = [finding for finding in placed if finding.is_refused]
    wrong += [finding for finding in ignored if finding not in (*warnings, *wrong)]
    reported = {finding.where for finding in wrong if finding.where}
    others = [finding for finding in findings if finding.where not in reported]
    if checked.config is None or wrong or others:
        refused = sorted([*(located(finding, base) for finding in others), *wrong], key=in_order)
        raise Refused(refused, None if base is None else fix_hint(base, refused))
    return checked.config, tuple(warnings)


def _is_known(finding: Finding) -> bool:
    """Whether a finding is a defect of a release, which a job should know of however small it is."""
    return finding.code == "known-defect" and not finding.is_refused


def _is_expanded(finding: Finding, values: Values) -> bool:
    """Whether a path is as it is meant: that of `--nvme` was expanded by a shell, and is there."""
    leaf = values.leaves.get(tuple(finding.where.split(".")))
    is_named = leaf is not None and leaf.source == Source.option("--nvme")
    return is_named and finding.code == path_is_taken_literally.code


def _hint_for_set(finding: Finding, values: Values) -> Finding:
    """Say what to type instead of a misspelled key that `--set` names."""
    path = finding.path
    if path is None or finding.place is not None or finding.code != "unknown-key":
        return finding
    meant = intended(values.config(), path).path
    for key, leaf in values.leaves.items():
        if meant is not None and key[: len(path)] == path and leaf.source == Source.option("--set"):
            value = leaf.value if isinstance(leaf.value, str) else json.dumps(leaf.value)
            option = f"--set {dotted((*meant, *key[len(path) :]))}={value}"
            return replace(finding, hint=f"did you mean `{option}`?")
    return finding
