"""Everything a job will do, decided before anything starts: the value that is shown, then carried out."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zlaunch.backends import BACKENDS
from zlaunch.backends.target import Target
from zlaunch.compose import OFFLOADS, compose
from zlaunch.dsconfig.check import check
from zlaunch.dsconfig.config import DsConfig
from zlaunch.dsconfig.document import Document, dotted
from zlaunch.dsconfig.reach import ZERO
from zlaunch.dsconfig.zero import OffloadParam
from zlaunch.environment import Variable, accelerate_variables, job_environment
from zlaunch.errors import Finding, Refused, Severity
from zlaunch.handover import agree, script_arguments, write_formats
from zlaunch.job import JobSpec, Launcher
from zlaunch.layout import RunLayout
from zlaunch.machine import Machine
from zlaunch.model import ModelShape
from zlaunch.native_ops import NativeOp, needed_ops
from zlaunch.provenance import Values
from zlaunch.resolve import TOTAL, Known, Resolved, derive_batch, resolve
from zlaunch.rules.rule import Context
from zlaunch.script import Interface, Script
from zlaunch.topology import Topology
from zlaunch.trainer_args import read_arguments, removed_arguments
from zlaunch.validation import judged


@dataclass(frozen=True)
class Inputs:
    """All that a plan is made from; the plan is a function of it."""

    job: JobSpec
    script: Script
    base: Document | None
    """The user's own ds_config."""
    model: ModelShape | None
    machine: Machine
    topology: Topology
    port: int
    """A free port, for launchers that do not pick one."""
    layout: RunLayout
    environ: Mapping[str, str]
    """The environment zlaunch was started in."""


@dataclass(frozen=True)
class LaunchPlan:
    """What will be started, where, with which ds_config, and why."""

    layout: RunLayout
    topology: Topology
    accelerator: str
    launcher: Launcher
    values: Values
    left: Mapping[str, str]
    """ds_config keys that stay for the script to fill in → who does it."""
    script: tuple[str, ...]
    """The script and all its arguments."""
    argv: tuple[str, ...]
    """The launcher's command line, with the script in its place."""
    watched_argv: tuple[str, ...]
    """The same, with zlaunch's rank program around the script."""
    environment: Mapping[str, Variable]
    ops: tuple[NativeOp, ...]
    swap_dirs: tuple[Path, ...]
    """Directories on NVMe that belong to this run alone."""
    precision: str
    warnings: tuple[Finding, ...]
    """What the user's own ds_config says and DeepSpeed will not do."""


def make_plan(inputs: Inputs) -> LaunchPlan:
    """Decide everything; raise Refused with every reason if the job cannot work."""
    job, script, topology = inputs.job, inputs.script, inputs.topology
    launcher: Launcher = "deepspeed" if topology.over_ssh else job.launcher or "torchrun"
    args, findings = read_arguments(job.script_args, script.defaults)
    composed = derive_batch(compose(job, _checked(inputs.base)), args, topology.world_size, script.interface)
    agreement = agree(composed, args, job.precision, inputs.machine, script.interface)
    composed = write_formats(composed, agreement.args)
    known = Known(agreement.args, inputs.model, topology.world_size, script.interface)
    resolved = _finish(resolve(composed, known), inputs)
    findings += [*_removed(inputs), *agreement.findings]
    config, warnings = _judge(resolved, inputs, findings)
    resolved = _leave_total(resolved, inputs)

    words = script_arguments(agreement, script.interface, inputs.layout.ds_config)
    command = (str(script.path), *job.script_args, *words)
    precision = _precision(config)
    by_environment = script.interface is Interface.ACCELERATE
    variables = accelerate_variables(inputs.layout, precision) if by_environment else {}
    return LaunchPlan(
        layout=inputs.layout,
        topology=topology,
        accelerator=inputs.machine.accelerator,
        launcher=launcher,
        values=resolved.values,
        left=resolved.left,
        script=command,
        argv=_argv(launcher, Target(command[0], command[1:]), inputs),
        watched_argv=_argv(
            launcher, Target("zlaunch.rank", (str(inputs.layout.root),), is_module=True), inputs
        ),
        environment=job_environment(inputs.machine, topology, inputs.environ, variables),
        ops=needed_ops(config, inputs.machine.accelerator, str(agreement.args["optim"].value)),
        swap_dirs=tuple(sorted({Path(path) for path in _swap_paths(resolved.values)})),
        precision=precision,
        warnings=warnings,
    )


def _argv(launcher: Launcher, target: Target, inputs: Inputs) -> tuple[str, ...]:
    if inputs.topology.over_ssh:
        target = replace(target, hostfile=str(inputs.layout.hostfile))
    return BACKENDS[launcher].build_argv(target, inputs.topology, inputs.machine.accelerator, inputs.port)


def _checked(base: Document | None) -> Document | None:
    """Refuse a file with wrong keys or values, however silently DeepSpeed would take them."""
    if base is not None:
        remarks = [remark for remark in base.remarks if remark.severity is not Severity.ADVICE]
        if found := [*remarks, *map(base.locate, check(base.value).findings)]:
            raise Refused(found)
    return base


def _finish(resolved: Resolved, inputs: Inputs) -> Resolved:
    """Make the last changes, which need all other values: NVMe directories, buffers, the CPU's exception."""
    values = resolved.values
    for path in [(ZERO, name, "nvme_path") for name in OFFLOADS]:
        if isinstance(directory := values[path], str) and directory != "auto":
            source = f"{values.leaves[path].source}, and a directory of this run's own"
            values = values.put(
                path,
                str(Path(directory) / f"zlaunch-{inputs.layout.root.name}-{_mark(inputs.layout)}"),
                source,
            )
    values = _fit_buffers(values, inputs.model, inputs.topology.world_size)
    return Resolved(values, resolved.left)


def _leave_total(resolved: Resolved, inputs: Inputs) -> Resolved:
    """Leave a global batch that was judged to DeepSpeed where it would be compared with one rank's."""
    if not _counts_one_rank(resolved.values, inputs):
        return resolved
    total = resolved.values[TOTAL]
    why = (
        f"{total}, as DeepSpeed works it out; on a CPU, transformers would let it count one rank "
        "while the model is created"
    )
    return Resolved(resolved.values.without(TOTAL), {**resolved.left, dotted(TOTAL): why})


def _mark(layout: RunLayout) -> str:
    """Tell runs of the same name in different places apart."""
    return hashlib.sha256(str(layout.root).encode()).hexdigest()[:8]


def _counts_one_rank(values: Values, inputs: Inputs) -> bool:
    """On a CPU, TrainingArguments start torch's communication only, and `zero.Init` sees one rank."""
    return (
        inputs.machine.accelerator == "cpu"
        and inputs.script.interface is Interface.TRAINER
        and values[(ZERO, "stage")] == 3
        and inputs.topology.world_size > 1
        and not inputs.script.mentions("init_distributed")
    )


def _fit_buffers(values: Values, model: ModelShape | None, world_size: int) -> Values:
    """Every partitioned parameter must fit into one staging buffer (`partitioned_param_swapper.py`)."""
    path = (ZERO, "offload_param", "buffer_size")
    if values[(ZERO, "offload_param", "device")] != "nvme" or values.has(path):
        return values
    if model is None or model.largest_parameter is None:
        return values
    largest = -(-model.largest_parameter // world_size)
    if largest <= OffloadParam().buffer_size:
        return values
    return values.put(path, largest, f"the largest matrix in {model.source}, divided by {world_size} ranks")


def _removed(inputs: Inputs) -> list[Finding]:
    """Find arguments that the Trainer no longer takes, unless the script has them itself."""
    if inputs.script.interface is not Interface.TRAINER:
        return []
    gone = removed_arguments(inputs.job.script_args)
    return [finding for finding in gone if not inputs.script.mentions(finding.where.removeprefix("--"))]


def _judge(
    resolved: Resolved, inputs: Inputs, findings: list[Finding]
) -> tuple[DsConfig, tuple[Finding, ...]]:
    """Read the result as DeepSpeed would; raise Refused with these and all further findings.

    Rules about what DeepSpeed does not do, in silence, refuse what the command line asks for, and
    only warn of what stands in the user's file.
    """
    nobody = [
        Finding("auto-nobody-fills", f'nobody fills in "auto" for `{key}`', "write a value", where=key)
        for key, who in resolved.left.items()
        if not who
    ]
    context = Context(
        world_size=inputs.topology.world_size, model=inputs.model, interface=inputs.script.interface
    )
    checked = judged(resolved.values.config(), context)
    found = [_located(finding, inputs.base) for finding in checked.findings]
    warnings = [one for one in found if one.severity is Severity.SILENT and one.place is not None]
    wrong = [one for one in found if one.severity is not Severity.ADVICE and one not in warnings]
    told = {finding.where for finding in wrong if finding.where}
    others = [finding for finding in [*findings, *nobody] if finding.where not in told]
    if checked.config is None or wrong or others:
        raise Refused([*(_located(finding, inputs.base) for finding in others), *wrong])
    return checked.config, tuple(warnings)


def _located(finding: Finding, base: Document | None) -> Finding:
    """Point at the place in the user's file, if the key stands there."""
    return base.locate(finding) if base is not None and base.has(finding.where) else finding


def _swap_paths(values: Values) -> Iterator[str]:
    for name in OFFLOADS:
        if values[(ZERO, name, "device")] == "nvme" and isinstance(
            path := values[(ZERO, name, "nvme_path")], str
        ):
            yield path


def _precision(config: DsConfig) -> str:
    bf16 = config.brain_float
    if bf16 is not None and bf16.enabled is True:
        return "bf16"
    return "fp16" if config.fp16.enabled is True else "fp32"
