"""Job → ds_config: the only room that speaks the user's language and DeepSpeed's.

What is composed still says "auto" wherever the Trainer arguments, the model or the number of ranks
decide; `resolve` turns those into numbers. The files in `configs/` are these presets, byte for byte.
"""

import json
from collections.abc import Mapping
from typing import Any

from zlaunch.config.resolve.values import AUTO, Values
from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.dsconfig.text.document import Document, KeyPath
from zlaunch.job.spec import JobSpec, Offload, Precision, Stage

DEFAULT_STAGE: Stage = 2
OFFLOADS = ("offload_optimizer", "offload_param")
PREFETCH: KeyPath = (ZERO, "stage3_prefetch_bucket_size")
REUSE: KeyPath = (ZERO, "stage3_max_reuse_distance")

SMALL_GROUP = 100_000_000
"""Elements whose optimizer step is done at once. DeepSpeed's own 1e9 page-locks four buffers in fp32 of that
size, and one of all ranks' parts of such a group: 1 TB on a host of 8 ranks of 64."""
SURE_BUFFERS = 10
"""Enough for every model while nothing is read ahead of its use and nothing is kept for a second one."""

ALWAYS_WRITTEN: tuple[KeyPath, ...] = (
    ("train_batch_size",),
    ("train_micro_batch_size_per_gpu",),
    ("gradient_accumulation_steps",),
    ("gradient_clipping",),
)
"""Left out, these become DeepSpeed's own choice, which is not the Trainer's."""


def preset(stage: Stage, offload: Offload, nvme_dir: str | None) -> dict[str, Any]:
    """Write the ds_config for a stage and an offload, with "auto" where the job decides."""
    zero: dict[str, Any] = {"stage": stage}
    if stage >= 1:
        zero |= {"overlap_comm": True, "reduce_bucket_size": AUTO}
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": AUTO,
            "stage3_param_persistence_threshold": AUTO,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    sections = offload_sections(stage, offload, nvme_dir)
    if _swaps(sections):
        zero |= {str(PREFETCH[-1]): 0, str(REUSE[-1]): 0, "sub_group_size": SMALL_GROUP}
    zero |= sections
    return {
        **{str(path[0]): AUTO for path in ALWAYS_WRITTEN},
        "bf16": {"enabled": AUTO},
        "fp16": {"enabled": AUTO},
        ZERO: zero,
    }


def offload_sections(stage: int, offload: Offload, nvme_dir: str | None) -> dict[str, Any]:
    """Write the offload sections; an offload of everything moves parameters only at stage 3."""
    param = offload.param
    if param is None:
        param = offload.optimizer if stage == 3 else "none"
    sections: dict[str, dict[str, Any]] = {}
    for name, device in zip(OFFLOADS, (offload.optimizer, param), strict=True):
        if device in (None, "none"):
            continue
        sections[name] = {"device": device, "pin_memory": True}
        if device == "nvme" and nvme_dir is not None:
            sections[name]["nvme_path"] = nvme_dir
    if _swaps(sections):
        sections["offload_param"]["buffer_count"] = SURE_BUFFERS
    return sections


def _swaps(sections: Mapping[str, Any]) -> bool:
    """Whether parameters go to NVMe. DeepSpeed would then read some twice at once (`memory.swapping`)."""
    return bool(sections.get("offload_param", {}).get("device") == "nvme")


def compose(job: JobSpec, base: Document | None) -> Values:
    """Compose the ds_config of a job: the user's file or a preset, then flags, then `--set`."""
    values = _from_preset(job) if base is None else _from_file(job, base)
    if job.precision is not None:
        values = _with_precision(values, job.precision, "`--precision`")
    for key, value in job.overrides:
        values = values.put(tuple(key.split(".")), value, "`--set`")
    for path in ALWAYS_WRITTEN:
        if not values.has(path):
            values = values.put(path, AUTO, "zlaunch")
    if not (values.has((ZERO, "stage")) or values[(ZERO,)]):
        values = values.put((ZERO, "stage"), 0, "DeepSpeed's default, written out")
    for name in OFFLOADS:
        if values.has((ZERO, name, "device")) and not values.has((ZERO, name, "pin_memory")):
            values = values.put((ZERO, name, "pin_memory"), True, "DeepSpeed's default, written out")
    return values


def _from_preset(job: JobSpec) -> Values:
    stage = DEFAULT_STAGE if job.stage is None else job.stage
    nvme_dir = None if job.nvme_dir is None else str(job.nvme_dir)
    config = preset(stage, job.offload or Offload(), nvme_dir)
    values = Values.of(config, f"preset for stage {stage}")
    if job.stage is not None:
        values = values.put((ZERO, "stage"), stage, job.stage_source)
    return _with_offload_sources(values)


def _with_offload_sources(values: Values) -> Values:
    for path, sourced in values.leaves.items():
        if len(path) > 2 and path[1] in OFFLOADS:
            flag = "`--nvme`" if path[2] == "nvme_path" else "`--offload`"
            values = values.put(path, sourced.value, flag)
    return values


def as_written(base: Document) -> Values:
    """Take over the user's own values; each remembers its line."""
    values = Values.of(base.value, "")
    for path, sourced in values.leaves.items():
        place = base.place(path)
        values = values.put(path, sourced.value, f"{place.file}:{place.line}")
    return values


def _from_file(job: JobSpec, base: Document) -> Values:
    """Lay flags over the user's file; each value of the file keeps its place."""
    values = as_written(base)
    if job.stage is not None:
        values = values.put((ZERO, "stage"), job.stage, job.stage_source)
    if job.offload is not None:
        stage = values[(ZERO, "stage")]
        nvme_dir = None if job.nvme_dir is None else str(job.nvme_dir)
        for name in OFFLOADS:
            values = values.without((ZERO, name))
        sections = offload_sections(stage if isinstance(stage, int) else 0, job.offload, nvme_dir)
        values = _with_offload_sources(Values.of({ZERO: sections} if sections else {}, "`--offload`")).over(
            values
        )
        if _swaps(sections) and not values.has(PREFETCH):
            values = values.put(PREFETCH, 0, "`--offload`")
    elif job.nvme_dir is not None:
        for name in OFFLOADS:
            if values[(ZERO, name, "device")] == "nvme":
                values = values.put((ZERO, name, "nvme_path"), str(job.nvme_dir), "`--nvme`")
    return values


def _with_precision(values: Values, precision: Precision, source: str) -> Values:
    for name in ("bf16", "fp16"):
        values = values.put((name, "enabled"), name == precision, source)
    return values


def to_json(config: dict[str, Any]) -> str:
    """Write a ds_config as strict JSON, the same bytes every time."""
    return json.dumps(config, indent=2, allow_nan=False) + "\n"
