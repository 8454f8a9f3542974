"""Resolve a ds_config: reconcile it with the Trainer arguments and fill in every "auto".

`train` and `estimate` resolve the ds_config of a job, `config resolve` and `config validate --deep` that of a
file. All call `resolve_values`, so the same values are estimated, shown and run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL, OpenReason, derive_batch, resolve_autos
from zlaunch.config.resolve.compose import as_written, compose
from zlaunch.config.resolve.nvme_buffers import fit_buffers
from zlaunch.config.resolve.trainer_agreement import TrainerAgreement, reconcile_with_trainer, write_formats
from zlaunch.config.resolve.values import Sourced, Values
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_value
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema_check import check
from zlaunch.dsconfig.text.document import Document, KeyPath
from zlaunch.errors import Finding, Refused, Severity
from zlaunch.hosts.machine import Machine
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import ConfigInterface
from zlaunch.job.spec import JobSpec, Precision
from zlaunch.job.trainer_args import TrainerArgs
from zlaunch.units import plural, whole


@dataclass(frozen=True)
class ResolveContext:
    """The inputs of a resolution, apart from the options of the job."""

    base: Document | None
    """The user's own ds_config."""
    args: TrainerArgs
    model: ModelConfig | None
    machine: Machine
    world_size: int
    interface: ConfigInterface = ConfigInterface.TRAINER


@dataclass(frozen=True)
class ResolvedValues:
    """A ds_config with every "auto" filled in that can be known before the job starts."""

    written: Values
    """The config before."""
    values: Values
    left: Mapping[str, str]
    """Keys that stay "auto" → who fills them in, and from what."""
    agreement: TrainerAgreement

    @property
    def filled(self) -> Mapping[KeyPath, Sourced]:
        """Select what was filled in or added, in the order of the config."""
        return {
            path: leaf for path, leaf in self.values.leaves.items() if leaf != self.written.leaves.get(path)
        }


@dataclass(frozen=True)
class ResolvedConfig(ResolvedValues):
    """The ds_config of a job that can work."""

    config: DsConfig
    warnings: tuple[Finding, ...]
    """Settings of the user's ds_config that DeepSpeed does not follow."""

    @property
    def precision(self) -> Precision:
        """Name the precision of the model."""
        if self.config.brain_float.enabled is True:
            return "bf16"
        return "fp16" if self.config.fp16.enabled is True else "fp32"


def resolve_config(job: JobSpec, given: ResolveContext, findings: Sequence[Finding] = ()) -> ResolvedConfig:
    """Resolve the ds_config of a job; raise Refused with these and all further findings if it cannot work."""
    context = Context(
        world_size=given.world_size,
        args=given.args,
        model=given.model,
        interface=given.interface,
        device_fp16=given.machine.has_fp16,
    )
    composed = compose(job, _checked(given.base))
    resolved = resolve_values(composed, context, given.machine, job.precision)
    values = fit_buffers(resolved.values, given.model, given.world_size)
    unfillable = [
        Finding("auto-nobody-fills", f'nothing fills in "auto" for `{key}`', "write a value", where=key)
        for key, reason in resolved.left.items()
        if reason is OpenReason.NEVER_FILLED
    ]
    found = [*findings, *resolved.agreement.findings, *unfillable]
    config, warnings = _judge(values, given.base, replace(context, args=None), found)
    return ResolvedConfig(composed, values, resolved.left, resolved.agreement, config, warnings)


def resolve_file(document: Document, context: Context) -> ResolvedValues:
    """Resolve the ds_config of a file for the program that reads it."""
    return resolve_values(as_written(document), context)


def resolve_values(
    written: Values, context: Context, machine: Machine | None = None, precision: Precision | None = None
) -> ResolvedValues:
    """Derive the batch, reconcile the Trainer arguments, and fill in every "auto" that can be known.

    `machine` and `precision` are those of a job; without them nothing but the config chooses the precision.
    """
    args, values = context.args or TrainerArgs(), written
    if context.world_size is not None:
        values = derive_batch(values, args, context.world_size, context.interface)
    agreement = reconcile_with_trainer(values, args, precision, machine, context.interface)
    values = write_formats(values, agreement.args)
    resolved = resolve_autos(values, replace(context, args=agreement.args))
    return ResolvedValues(written, resolved.values, resolved.left, agreement)


def batch_equation(values: Values, context: Context) -> str:
    """Spell out the global batch; missing sizes are those that DeepSpeed and accelerate take."""
    world, total = context.world_size, whole(values[TOTAL])
    micro, accumulated = whole(values[MICRO]), whole(values[ACCUMULATION])
    is_raw = context.interface is ConfigInterface.DEEPSPEED
    if values[ACCUMULATION] is None:
        accumulated = 1
        if is_raw and total and micro:
            accumulated = total // (world * micro) if world else None
    if values[MICRO] is None and world and total and accumulated:
        micro = total // (world * accumulated)
    if total is None and world and micro and accumulated:
        total = micro * accumulated * world
    sizes = [str(number or "?") for number in (micro, accumulated)]
    equation = f"{sizes[0]} per rank x {sizes[1]} accumulated x {plural(world, 'rank') if world else 'ranks'}"
    return equation if total is None else f"{total} = {equation}"


def _checked(base: Document | None) -> Document | None:
    """Refuse a file with wrong keys or values, even those that DeepSpeed silently accepts."""
    if base is not None:
        remarks = [remark for remark in base.remarks if remark.severity is not Severity.ADVICE]
        if found := [*remarks, *map(base.locate, check(base.value).findings)]:
            raise Refused(found)
    return base


def _judge(
    values: Values, base: Document | None, context: Context, findings: Sequence[Finding]
) -> tuple[DsConfig, tuple[Finding, ...]]:
    """Read the result as DeepSpeed does; raise Refused with these and all further findings.

    What DeepSpeed silently does not do is refused if the command line asks for it, and only a warning
    if the user's file does.
    """
    checked = validate_value(values.config(), context)
    found = [_located(finding, base) for finding in checked.findings]
    warnings = [one for one in found if one.severity is Severity.SILENT and one.place is not None]
    wrong = [one for one in found if one.severity is not Severity.ADVICE and one not in warnings]
    reported = {finding.where for finding in wrong if finding.where}
    others = [finding for finding in findings if finding.where not in reported]
    if checked.config is None or wrong or others:
        raise Refused([*(_located(finding, base) for finding in others), *wrong])
    return checked.config, tuple(warnings)


def _located(finding: Finding, base: Document | None) -> Finding:
    """Add the place in the user's file, if the key is in it."""
    return base.locate(finding) if base is not None and base.has(finding.where) else finding
