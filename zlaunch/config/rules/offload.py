"""Rules about offloading: stages, devices, paths and buffers."""

import re
from collections.abc import Iterator

from zlaunch.config.rules.rule import (
    CPU,
    Context,
    Subject,
    Violation,
    advice,
    error,
    fails_later,
    ignored,
    zero,
)
from zlaunch.errors import Fix, FixKind, Severity
from zlaunch.job.model import ModelConfig

_NVME = {"device": "nvme", "nvme_path": "/nvme"}
_MODEL = ModelConfig({"hidden_size": 1024, "vocab_size": 4096}, "", "config.json")


@fails_later(
    {"zero_optimization": {"stage": 0, "offload_optimizer": CPU}},
    {zero("stage"): 2},
    Context(accelerator="cuda"),
)
def offload_needs_partitioning(subject: Subject) -> Iterator[Violation]:
    """At stage 0 the optimizer moves to the CPU but the parameters do not, so the first step crashes.

    Without a GPU, both are there, and it trains. If it is unknown where the job runs, this is a warning.
    """
    accelerator = subject.context.accelerator
    if accelerator != "cpu" and subject.stage == 0 and "offload_optimizer" in subject.offloads:
        yield Violation(
            zero("offload_optimizer"),
            "offload does not work at stage 0 on a GPU: the first optimizer step crashes",
            "use stage 2 or 3, or do not offload",
            severity=Severity.WARNING if accelerator is None else None,
        )


@ignored({"zero_optimization": {"stage": 2, "offload_param": CPU}}, {zero("stage"): 3})
def offload_param_needs_stage_3(subject: Subject) -> Iterator[Violation]:
    """Below stage 3 every rank keeps all parameters, and DeepSpeed ignores `offload_param`."""
    if subject.stage in (0, 1, 2) and "offload_param" in subject.offloads:
        yield Violation(
            zero("offload_param"),
            f"at stage {subject.stage}, parameters stay on the GPU",
            "use stage 3, or offload only the optimizer",
        )


@ignored({"zero_optimization": {"stage": 2, "offload_optimizer": _NVME}}, {zero("stage"): 3})
def nvme_needs_stage_3(subject: Subject) -> Iterator[Violation]:
    """At stages 1 and 2 DeepSpeed treats `nvme` as `cpu` and does not use the drive."""
    section = subject.offloads.get("offload_optimizer")
    if subject.stage in (1, 2) and section is not None and section.device == "nvme":
        yield Violation(
            zero("offload_optimizer", "device"),
            f"at stage {subject.stage} DeepSpeed offloads to the CPU and does not use the NVMe drive",
            "use stage 3, or offload to the CPU",
        )


@fails_later(
    {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
    {zero("offload_param", "nvme_path"): "/nvme"},
)
def nvme_needs_a_path(subject: Subject) -> Iterator[Violation]:
    """Offload to NVMe has no default directory, and fails without `nvme_path`."""
    names = [
        name
        for name, section in subject.offloads.items()
        if section.device == "nvme" and section.nvme_path is None
    ]
    if subject.stage == 3 and names:
        sections, where = " and ".join(f"`{name}`" for name in names), names[0]
        uses = "use" if len(names) > 1 else "uses"
        yield Violation(
            zero(where),
            f"{sections} {uses} NVMe without a directory on the drive",
            "`--nvme DIR` of `train` and `config write` names one; in the file, it is `nvme_path`",
        )


@ignored(
    {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "none"}}},
    {zero("offload_param", "nvme_path"): "/nvme"},
)
def nvme_path_is_none(subject: Subject) -> Iterator[Violation]:
    """Accelerate replaces "auto" by "none", and DeepSpeed swaps to a directory of that name."""
    for name, section in subject.offloads.items():
        if section.device == "nvme" and section.nvme_path in ("none", "auto"):
            yield Violation(
                zero(name, "nvme_path"),
                f'"{section.nvme_path}" becomes a directory named "none" in the working directory',
                "write a directory on the drive",
            )


@ignored(
    {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "~/swap"}}},
    {zero("offload_param", "nvme_path"): "/nvme"},
)
def path_is_taken_literally(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed expands neither `~` nor variables, and makes a directory of that name."""
    for path, value in subject.written.items():
        *keys, last = path
        if last not in _PATHS or not isinstance(value, str) or not re.search(_EXPANDED_BY_SHELLS, value):
            continue
        if last == "nvme_path":
            section = subject.offloads.get(keys[-1])
            is_read = section is not None and section.device == "nvme"
        else:
            is_read = subject.value(".".join((*keys, "enabled"))) is True
        if is_read:
            yield Violation(
                ".".join(path),
                f"DeepSpeed takes `{value}` literally, and makes a directory of this name",
                "write the whole path",
            )


_PATHS = ("nvme_path", "output_path", "output_file")
_EXPANDED_BY_SHELLS = r"^~|\$\w+|\$\{\w+\}"


@fails_later(
    {"zero_optimization": {"stage": 3, "offload_optimizer": {**_NVME, "buffer_count": 3}}},
    {zero("offload_optimizer", "buffer_count"): 4},
)
def too_few_buffers(subject: Subject) -> Iterator[Violation]:
    """Adam on NVMe needs four buffers (parameter, gradient, two moments); the first step asserts it."""
    section = subject.zero.offload_optimizer
    if subject.stage == 3 and section is not None and section.device == "nvme" and section.buffer_count < 4:
        yield Violation(
            zero("offload_optimizer", "buffer_count"),
            f"{section.buffer_count} NVMe buffers are too few: Adam needs 4, for the parameter, the gradient "
            "and two moments; the first step fails with an empty AssertionError",
            "write 4, or delete the key",
            Fix(FixKind.WRITE, 4),
        )


@fails_later(
    {"zero_optimization": {"stage": 3, "offload_param": {**_NVME, "buffer_size": 1_000_000}}},
    {zero("offload_param", "buffer_size"): 4_194_304},
    Context(world_size=1, model=_MODEL),
)
def buffer_too_small(subject: Subject) -> Iterator[Violation]:
    """Each rank's part of every parameter must fit into one staging buffer."""
    section, model, world = subject.zero.offload_param, subject.context.model, subject.context.world_size
    if section is None or section.device != "nvme" or subject.stage != 3:
        return
    if model is None or model.largest_parameter is None or world is None:
        return
    largest = -(-model.largest_parameter // world)
    if section.buffer_size < largest:
        yield Violation(
            zero("offload_param", "buffer_size"),
            f"the largest matrix in {model.source} has {largest} elements on each of "
            f"{world} ranks, more than a buffer of {section.buffer_size}",
            f"write {largest} or more",
        )


@error({"zero_optimization": {"stage": 2, "offload_optimizer": {**CPU, "ratio": 0.5}}}, {zero("stage"): 3})
def ratio_needs_stage_3(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed asserts stage 3 for a `ratio` below 1, which keeps part of the optimizer on the GPU."""
    section = subject.zero.offload_optimizer
    if subject.stage in (0, 1, 2) and section is not None and section.ratio < 1:
        yield Violation(
            zero("offload_optimizer", "ratio"),
            f"a `ratio` of {section.ratio:g} needs stage 3",
            "use stage 3, or delete the key",
        )


_NVME_KEYS = {
    "offload_optimizer": ("nvme_path", "buffer_count", "pipeline_read", "pipeline_write", "fast_init"),
    "offload_param": ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu"),
}


@advice(
    {"zero_optimization": {"stage": 3, "offload_param": {**CPU, "max_in_cpu": 1000}}},
    {zero("offload_param", "max_in_cpu"): None},
)
def nvme_keys_without_nvme(subject: Subject) -> Iterator[Violation]:
    """Offload to the CPU does not read the keys for NVMe buffers and directories."""
    for name, keys in _NVME_KEYS.items():
        section = subject.offloads.get(name)
        for key in keys:
            if section and section.device == "cpu" and (*zero(name).split("."), key) in subject.changed:
                yield Violation(
                    zero(name, key), f"`{key}` is only read for NVMe", "delete it, or offload to NVMe"
                )
