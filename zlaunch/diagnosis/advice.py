"""What to change so that a job needs less memory: only what is not on yet, and helps where it died."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from zlaunch.diagnosis.case import Case
from zlaunch.diagnosis.evidence import JobEvidence
from zlaunch.estimate.forecast import HOST_POOLS, written_peak
from zlaunch.rundir import phases
from zlaunch.units import largest_piece

BEFORE_TRAINING = frozenset(
    {phases.STARTING, phases.IMPORTING, phases.JOINING, phases.BUILDING, phases.LOADING}
)
MOST = 3


def less_gpu_memory(case: Case) -> tuple[str, ...]:
    """Walk from what changes least to what costs most; what is learnt stays the same."""
    return tuple(_gpu_walk(case))[:MOST]


def _gpu_walk(case: Case) -> Iterator[str]:
    job = case.job
    if case.phase not in {*BEFORE_TRAINING, phases.INITIALIZING, phases.STEPPING, phases.RESUMING}:
        if smaller := smaller_batch(job):
            yield smaller
        if job.gradient_checkpointing is False and job.uses_trainer:
            yield "`--gradient_checkpointing` after the script: activations are computed again, not kept"
    yield from _partitioned(job)


def smaller_batch(job: JobEvidence) -> str | None:
    """Split the batch of a step into more pieces; the global batch stays as it is."""
    micro = largest_piece(job.micro_batch)
    if micro is None:
        return None
    pieces = job.grad_accum * (job.micro_batch // micro)
    if not job.uses_trainer:
        keys = f"--set train_micro_batch_size_per_gpu={micro} --set gradient_accumulation_steps={pieces}"
        return f"`{keys}`: the same global batch"
    flags = f"--per_device_train_batch_size {micro} --gradient_accumulation_steps {pieces}"
    return f"`{flags}`: the same global batch"


def _partitioned(job: JobEvidence) -> Iterator[str]:
    """Go up the stages, where there is more than one rank to share with, then move states to the host."""
    if job.world_size > 1 and job.stage < 3:
        yield f"`--stage {job.stage + 1}`: {_SHARED[job.stage + 1]} are shared among {job.world_size} ranks"
    if "optimizer" not in job.moved:
        stage = "" if job.stage >= 1 else "--stage 2 "
        yield f"`{stage}--offload optimizer:cpu`: the optimizer's states move to host memory"
    elif "param" not in job.moved:
        stage = "" if job.stage == 3 else "--stage 3 "
        yield f"`{stage}--offload cpu`: the parameters move to host memory, too"


_SHARED: Mapping[int, str] = {1: "optimizer states", 2: "gradients, too,", 3: "parameters, too,"}


def less_host_memory(case: Case) -> tuple[str, ...]:
    """Take back from the host what was moved there, or move it on to a drive."""
    job = case.job
    if unpartitioned := loaded_whole(case):
        return (unpartitioned,)
    if case.phase in BEFORE_TRAINING:
        return ()
    offloaded = {part for part, device in job.moved.items() if device == "cpu"}
    if not offloaded:
        return ()
    fewer = "`--offload optimizer:cpu`: the parameters stay on the GPU"
    back = (fewer,) if offloaded == {"optimizer", "param"} else ()
    return (*back, f"`{'' if job.stage == 3 else '--stage 3 '}--offload nvme --nvme DIR`: onto a drive")


def loaded_whole(case: Case) -> str | None:
    """Recognize a model that every rank loads whole, although stage 3 was to partition it at once."""
    job, rank = case.job, case.rank
    expected = written_peak(job.forecast or {}, HOST_POOLS, "load")
    if rank is None or case.phase != phases.LOADING or job.stage != 3 or not job.uses_trainer or not expected:
        return None
    if (rank.peak_rss_bytes or 0) < 2 * expected:
        return None
    return "make the `TrainingArguments` before the model: then stage 3 partitions it while it is loaded"


def setting(config: Mapping[str, Any], *keys: str) -> Any:
    """Look up a value of the ds_config; None if it is not there."""
    node: Any = config
    for key in keys:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def named_in(text: str, pattern: str) -> str | None:
    """Find the part of a text that a pattern's first group names."""
    found = re.search(pattern, text)
    return found.group(1) if found else None
