"""Rules about offloading: what needs which stage, and which path."""

from collections.abc import Iterator

from zlaunch.errors import Finding, Severity
from zlaunch.rules.subject import Rule, Subject

_ZERO = "zero_optimization"


def _devices(subject: Subject) -> Iterator[tuple[str, str, str | None]]:
    zero = subject.config.zero_optimization
    for name, section in (
        ("offload_optimizer", zero.offload_optimizer),
        ("offload_param", zero.offload_param),
    ):
        if section is not None and section.device != "none":
            yield name, section.device, section.nvme_path


def offload_needs_partitioning(subject: Subject) -> Iterator[Finding]:
    """At stage 0 the optimizer goes to the CPU and the parameters do not: the first step crashes."""
    stage = subject.config.zero_optimization.stage
    if stage == 0 and (names := [name for name, _, _ in _devices(subject)]):
        yield Finding(
            code="offload-needs-partitioning",
            where=f"{_ZERO}.{names[0]}",
            message="nothing can be offloaded at stage 0: the first optimizer step would crash",
            hint="use `--stage 2` or `--stage 3`, or `--offload none`",
            severity=Severity.LATE,
        )


def offload_param_needs_stage_3(subject: Subject) -> Iterator[Finding]:
    """Below stage 3 every rank keeps all parameters, and `offload_param` is ignored."""
    stage = subject.config.zero_optimization.stage
    if stage in (1, 2) and any(name == "offload_param" for name, _, _ in _devices(subject)):
        yield Finding(
            code="offload-param-needs-stage-3",
            where=f"{_ZERO}.offload_param",
            message=f"parameters stay on the GPU at stage {stage}: this section is ignored",
            hint="use `--stage 3`, or offload the optimizer alone",
            severity=Severity.SILENT,
        )


def nvme_needs_stage_3(subject: Subject) -> Iterator[Finding]:
    """At stages 1 and 2 DeepSpeed takes `nvme` for `cpu` and never touches the drive."""
    stage = subject.config.zero_optimization.stage
    if stage in (1, 2) and ("offload_optimizer", "nvme") in [
        (name, device) for name, device, _ in _devices(subject)
    ]:
        yield Finding(
            code="nvme-needs-stage-3",
            where=f"{_ZERO}.offload_optimizer.device",
            message=f"at stage {stage} DeepSpeed offloads to the CPU and never touches the NVMe drive",
            hint="use `--stage 3`, or `--offload cpu`",
            severity=Severity.SILENT,
        )


def nvme_needs_a_path(subject: Subject) -> Iterator[Finding]:
    """Offload to NVMe has no default directory."""
    for name, device, path in _devices(subject):
        if device == "nvme" and path is None and subject.config.zero_optimization.stage == 3:
            yield Finding(
                code="nvme-needs-a-path",
                where=f"{_ZERO}.{name}",
                message=f"`{name}` goes to NVMe, but no directory is named",
                hint="add `--nvme DIR`, a directory on the drive",
                severity=Severity.LATE,
            )
            return


RULES: tuple[Rule, ...] = (
    offload_needs_partitioning,
    offload_param_needs_stage_3,
    nvme_needs_stage_3,
    nvme_needs_a_path,
)
