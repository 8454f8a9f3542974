"""Compose the ds_config of a job from a preset or the user's file, and the options.

The result keeps "auto" wherever the Trainer arguments, the model or the number of ranks decide;
`resolve` turns those into numbers. The files in `configs/` are these presets, byte for byte.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zlaunch.config.resolve.values import AUTO, Sourced, Values
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import Document, KeyPath, dotted, leaves
from zlaunch.errors import WrongUsage
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.spec import STAGES, JobSpec, Offload, Precision, Stage

DEFAULT_STAGE: Stage = 2
OFFLOADS = ("offload_optimizer", "offload_param")
PREFETCH: KeyPath = (ZERO, "stage3_prefetch_bucket_size")
REUSE: KeyPath = (ZERO, "stage3_max_reuse_distance")

SMALL_GROUP = 100_000_000
"""Elements per optimizer sub-group. DeepSpeed's default of 1e9 page-locks four fp32 buffers of that size, and
one for all ranks' parts of a sub-group: 1 TB on a host with 8 of 64 ranks."""
SURE_BUFFERS = 10
"""Enough for every model while nothing is prefetched and nothing is kept for a second use."""

_FOR_OFFLOAD = Source(SourceKind.PRESET, "`--offload`", "--offload")
_BY_OPTION = {"device": Source.option("--offload"), "nvme_path": Source.option("--nvme")}
"""Keys in an offload section whose values the user chose."""
_WRITTEN_OUT = Source(SourceKind.DEEPSPEED_DEFAULT, "DeepSpeed's default, written out")

ALWAYS_WRITTEN: tuple[KeyPath, ...] = (
    ("train_batch_size",),
    ("train_micro_batch_size_per_gpu",),
    ("gradient_accumulation_steps",),
    ("gradient_clipping",),
)
"""If these are missing, DeepSpeed takes defaults of its own, which are not the Trainer's."""


def preset(stage: Stage, offload: Offload, nvme_dir: Path | None) -> dict[str, Any]:
    """Write the ds_config for a stage and an offload, with "auto" where the job decides."""
    zero: dict[str, object] = {"stage": stage}
    if stage >= 1:
        zero |= {"overlap_comm": True, "reduce_bucket_size": AUTO}
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": AUTO,
            "stage3_param_persistence_threshold": AUTO,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    sections = offload_sections(stage, offload, nvme_dir)
    if _swaps(stage, sections):
        zero |= {str(PREFETCH[-1]): 0, str(REUSE[-1]): 0, "sub_group_size": SMALL_GROUP}
    zero |= sections
    return {
        **{str(path[0]): AUTO for path in ALWAYS_WRITTEN},
        "bf16": {"enabled": AUTO},
        "fp16": {"enabled": AUTO},
        ZERO: zero,
    }


def offload_sections(stage: int, offload: Offload, nvme_dir: Path | None) -> dict[str, dict[str, object]]:
    """Write the offload sections; `--offload cpu` moves parameters only at stage 3."""
    param = offload.param
    if param is None and stage == 3:
        param = offload.optimizer
    sections: dict[str, dict[str, object]] = {}
    for name, device in zip(OFFLOADS, (offload.optimizer, param), strict=True):
        if device in (None, "none"):
            continue
        sections[name] = {"device": device, "pin_memory": True}
        if device == "nvme" and nvme_dir is not None:
            sections[name]["nvme_path"] = str(nvme_dir)
    if _swaps(stage, sections):
        sections["offload_param"]["buffer_count"] = SURE_BUFFERS
    return sections


def _swaps(stage: int, sections: Mapping[str, Mapping[str, object]]) -> bool:
    """Whether parameters go to NVMe; DeepSpeed then reads some twice at once (see `nvme_buffers`)."""
    return stage == 3 and sections.get("offload_param", {}).get("device") == "nvme"


def compose(job: JobSpec, base: Document | None) -> Values:
    """Compose the ds_config of a job: the user's file or a preset, then flags, then `--set`."""
    if base is None:
        values = _from_preset(job)
    else:
        values = _from_file(job, base)
    if job.precision is not None:
        values = _with_precision(values, job.precision)
    for key, value in job.overrides:
        _check_override(values, tuple(key.split(".")), value)
        values = values.put(tuple(key.split(".")), value, Source.option("--set"))
    for path in ALWAYS_WRITTEN:
        if not values.has(path):
            values = values.put(path, AUTO, Source(SourceKind.ZLAUNCH_DEFAULT, "zlaunch"))
    if not (values.has((ZERO, "stage")) or values[(ZERO,)]):
        values = values.put((ZERO, "stage"), 0, _WRITTEN_OUT)
    for name in OFFLOADS:
        if values.has((ZERO, name, "device")) and not values.has((ZERO, name, "pin_memory")):
            values = values.put((ZERO, name, "pin_memory"), True, _WRITTEN_OUT)
    return values


def _check_override(values: Values, path: KeyPath, value: object) -> None:
    """Raise WrongUsage if another option than `--set` sets the same key, or one in it, to another value."""
    wanted: dict[KeyPath, object] = {(): value}
    if isinstance(value, Mapping):
        wanted = dict(leaves(value))
    for key, other in values.leaves.items():
        new, source = wanted.get(key[len(path) :]), other.source
        is_other = source.kind is SourceKind.OPTION and source != Source.option("--set")
        if is_other and key[: len(path)] == path and new != other.value:
            message = f"{other.source} sets `{dotted(key)}` to {other.value}, and `--set` to {new}"
            raise WrongUsage(message, "keep one of them")


def _stage_of(job: JobSpec, written: object) -> Stage:
    """The stage that the options choose over the one written; `--set` may choose it, too."""
    chosen = dict(job.overrides).get(f"{ZERO}.stage")
    if job.stage is not None:
        chosen = job.stage
    if chosen is None:
        chosen = written
    return STAGES.get(str(chosen), 0)


def _from_preset(job: JobSpec) -> Values:
    stage = _stage_of(job, DEFAULT_STAGE)
    config = preset(stage, job.offload or Offload(), job.nvme_dir)
    values = Values.of(config, Source(SourceKind.PRESET, f"preset for stage {stage}"))
    if job.stage is not None:
        values = values.put((ZERO, "stage"), stage, job.stage_source)
    return _with_offload_sources(values)


def _with_offload_sources(values: Values) -> Values:
    for path, sourced in values.leaves.items():
        if len(path) > 2 and path[1] in OFFLOADS:
            source = _BY_OPTION.get(str(path[2]), _FOR_OFFLOAD)
            values = values.put(path, sourced.value, source)
    return values


def as_written(base: Document) -> Values:
    """Take over the user's values, each with its line."""
    written: dict[KeyPath, Sourced] = {}
    for path, value in leaves(base.value):
        place = base.place(path)
        written[path] = Sourced(value, Source(SourceKind.CONFIG_FILE, f"{place.file}:{place.line}"))
    return Values(written)


def _from_file(job: JobSpec, base: Document) -> Values:
    """Lay options over the user's file."""
    values = as_written(base)
    if job.stage is not None:
        values = values.put((ZERO, "stage"), job.stage, job.stage_source)
    if job.offload is not None:
        stage = _stage_of(job, values[(ZERO, "stage")])
        for name in OFFLOADS:
            values = values.without((ZERO, name))
        sections = offload_sections(stage, job.offload, job.nvme_dir)
        if sections:
            values = _with_offload_sources(Values.of({ZERO: sections}, _FOR_OFFLOAD)).over(values)
        if _swaps(stage, sections) and not values.has(PREFETCH):
            values = values.put(PREFETCH, 0, _FOR_OFFLOAD)
    elif job.nvme_dir is not None:
        for name in OFFLOADS:
            if values[(ZERO, name, "device")] == "nvme":
                values = values.put((ZERO, name, "nvme_path"), str(job.nvme_dir), Source.option("--nvme"))
    return values


def _with_precision(values: Values, precision: Precision) -> Values:
    for name in ("bf16", "fp16"):
        values = values.put((name, "enabled"), name == precision, Source.option("--precision"))
    return values


def to_json(config: Mapping[str, object]) -> str:
    """Write a ds_config as strict JSON, the same bytes every time."""
    return json.dumps(config, indent=2, allow_nan=False) + "\n"
