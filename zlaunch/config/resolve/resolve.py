"""A job's words → the ds_config that its ranks read: composed, agreed with its arguments, resolved, judged.

`train` and `estimate` take this one road, so that what was estimated is what runs.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zlaunch.config.resolve.autos import KnownFacts, derive_batch, resolve_autos
from zlaunch.config.resolve.compose import REUSE, compose
from zlaunch.config.resolve.trainer_agreement import TrainerAgreement, reconcile_with_trainer, write_formats
from zlaunch.config.resolve.values import Values
from zlaunch.config.rules.rule import Context
from zlaunch.config.rules.validate import validate_value
from zlaunch.dsconfig.check import check
from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.zero import OffloadParam
from zlaunch.dsconfig.text.document import Document, KeyPath
from zlaunch.errors import Finding, Refused, Severity
from zlaunch.hosts.machine import Machine
from zlaunch.job.model import ModelShape
from zlaunch.job.script import ConfigInterface
from zlaunch.job.spec import JobSpec, Precision
from zlaunch.job.trainer_args import TrainerArgs
from zlaunch.units import plural, whole

if TYPE_CHECKING:
    from zlaunch.config.resolve.nvme_buffers import NvmeBuffers

SWAPPED: KeyPath = (ZERO, "offload_param", "device")
COUNT: KeyPath = (ZERO, "offload_param", "buffer_count")
SIZE: KeyPath = (ZERO, "offload_param", "buffer_size")


@dataclass(frozen=True)
class ResolveContext:
    """What a ds_config depends on besides the words of the job."""

    base: Document | None
    """The user's own ds_config."""
    args: TrainerArgs
    model: ModelShape | None
    machine: Machine
    world_size: int
    interface: ConfigInterface = ConfigInterface.TRAINER


@dataclass(frozen=True)
class ResolvedConfig:
    """A ds_config whose every value is decided, and who decided it."""

    values: Values
    left: Mapping[str, str]
    """Keys that stay for the script to fill in → who does it."""
    agreement: TrainerAgreement
    config: DsConfig
    warnings: tuple[Finding, ...]
    """What the user's own ds_config says and DeepSpeed will not do."""

    @property
    def precision(self) -> Precision:
        """Name the number format of the model."""
        bf16 = self.config.brain_float
        if bf16 is not None and bf16.enabled is True:
            return "bf16"
        return "fp16" if self.config.fp16.enabled is True else "fp32"


def resolve_config(job: JobSpec, given: ResolveContext, findings: Sequence[Finding] = ()) -> ResolvedConfig:
    """Decide every value; raise Refused with these and all further findings if the job cannot work."""
    composed = compose(job, _checked(given.base))
    composed = derive_batch(composed, given.args, given.world_size, given.interface)
    agreement = reconcile_with_trainer(composed, given.args, job.precision, given.machine, given.interface)
    composed = write_formats(composed, agreement.args)
    resolved = resolve_autos(
        composed, KnownFacts(agreement.args, given.model, given.world_size, given.interface)
    )
    values = _fit_buffers(resolved.values, given.model, given.world_size)
    nobody = [
        Finding("auto-nobody-fills", f'nobody fills in "auto" for `{key}`', "write a value", where=key)
        for key, who in resolved.left.items()
        if not who
    ]
    config, warnings = _judge(values, given, [*findings, *agreement.findings, *nobody])
    return ResolvedConfig(values, resolved.left, agreement, config, warnings)


def _checked(base: Document | None) -> Document | None:
    """Refuse a file with wrong keys or values, however silently DeepSpeed would take them."""
    if base is not None:
        remarks = [remark for remark in base.remarks if remark.severity is not Severity.ADVICE]
        if found := [*remarks, *map(base.locate, check(base.value).findings)]:
            raise Refused(found)
    return base


def _fit_buffers(values: Values, model: ModelShape | None, world_size: int) -> Values:
    """Give parameters that are swapped to NVMe enough buffers, and large ones, where the user gives none."""
    if values[SWAPPED] != "nvme" or model is None:
        return values
    from zlaunch.config.resolve.nvme_buffers import MOST_DISTANCE

    kept = whole(values[REUSE])
    distance = None if _is_presets(values, REUSE) else MOST_DISTANCE if kept is None else kept
    needed = _needed(values, model, world_size, distance)
    size = _size(model, needed, world_size)
    if size is not None and not values.has(SIZE):
        values = values.put(SIZE, *size)
    if needed is None:
        return values
    if distance is None:
        values = values.put(REUSE, needed.reuse_distance, f"twice a layer of {model.source}")
    if _is_presets(values, COUNT) or not values.has(COUNT):
        values = values.put(COUNT, needed.buffer_count, f"more than a step of {model.source} gathers at once")
    return values


def _needed(values: Values, model: ModelShape, world_size: int, distance: int | None) -> "NvmeBuffers | None":
    """Work out what swapping takes; None for a model of unknown sizes."""
    from zlaunch.config.resolve.nvme_buffers import nvme_buffers
    from zlaunch.job.transformer import read_transformer

    halved = any(values[(name, "enabled")] is True for name in ("bf16", "fp16"))
    with suppress(Refused):
        return nvme_buffers(read_transformer(model.config), world_size, 2 if halved else 4, distance)
    return None


def _size(model: ModelShape, needed: "NvmeBuffers | None", world_size: int) -> tuple[int, str] | None:
    """Let every partitioned parameter fit into one buffer; None where DeepSpeed's own will do."""
    largest = -(-(model.largest_parameter or 0) // world_size)
    ranks = f"divided by {plural(world_size, 'rank')}"
    if needed is not None and needed.is_exact:
        size = max(largest, needed.buffer_size)
        return size + size // 16, f"the largest matrix in {model.source} and a sixteenth, {ranks}"
    largest = max(largest, 0 if needed is None else needed.buffer_size)
    if largest <= OffloadParam().buffer_size:
        return None
    return largest, f"the largest matrix in {model.source}, {ranks}"


def _is_presets(values: Values, path: KeyPath) -> bool:
    """Whether a value is a preset's own, which must do for every model."""
    leaf = values.leaves.get(path)
    return leaf is not None and leaf.source.startswith(("preset for stage", "`--offload`"))


def _judge(
    values: Values, given: ResolveContext, findings: Sequence[Finding]
) -> tuple[DsConfig, tuple[Finding, ...]]:
    """Read the result as DeepSpeed would; raise Refused with these and all further findings.

    Rules about what DeepSpeed does not do, in silence, refuse what the command line asks for, and
    only warn of what stands in the user's file.
    """
    context = Context(
        world_size=given.world_size,
        model=given.model,
        interface=given.interface,
        device_fp16=given.machine.has_fp16,
    )
    checked = validate_value(values.config(), context)
    found = [_located(finding, given.base) for finding in checked.findings]
    warnings = [one for one in found if one.severity is Severity.SILENT and one.place is not None]
    wrong = [one for one in found if one.severity is not Severity.ADVICE and one not in warnings]
    told = {finding.where for finding in wrong if finding.where}
    others = [finding for finding in findings if finding.where not in told]
    if checked.config is None or wrong or others:
        raise Refused([*(_located(finding, given.base) for finding in others), *wrong])
    return checked.config, tuple(warnings)


def _located(finding: Finding, base: Document | None) -> Finding:
    """Point at the place in the user's file, if the key stands there."""
    return base.locate(finding) if base is not None and base.has(finding.where) else finding
