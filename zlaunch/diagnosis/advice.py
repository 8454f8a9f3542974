"""Advice after a job ran out of memory: changes that it has not made yet and that help in its phase."""

import re
from collections.abc import Mapping
from typing import Final, cast

from zlaunch.diagnosis.case import Case
from zlaunch.diagnosis.evidence import JobEvidence
from zlaunch.estimate.changes import GPU_MEMORY, HOST_MEMORY, JobState, MemoryChange, memory_changes
from zlaunch.estimate.forecast import HOST_POOLS, written_peak
from zlaunch.job.spec import Device
from zlaunch.rundir import phases

BEFORE_TRAINING: Final = frozenset(
    {phases.STARTING, phases.IMPORTING, phases.JOINING, phases.BUILDING, phases.LOADING}
)
WITHOUT_ACTIVATIONS: Final = BEFORE_TRAINING | {phases.INITIALIZING, phases.STEPPING, phases.RESUMING}
MOST: Final = 3


def state_of(job: JobEvidence) -> JobState:
    """Return the settings of a run that decide which changes remain."""
    return JobState(
        stage=job.stage,
        world_size=job.world_size,
        micro_batch=job.micro_batch,
        grad_accum=job.grad_accum,
        offload={part: cast("Device", device) for part, device in job.offload.items()},
        activation_checkpointing=job.gradient_checkpointing,
    )


def less_gpu_memory(case: Case) -> tuple[str, ...]:
    """Advise changes that save GPU memory and train the same model, the least intrusive first."""
    changes = list(GPU_MEMORY)
    if case.phase in WITHOUT_ACTIVATIONS:
        changes = [change for change in changes if change.saves != "activations"]
    return _advice(case.job, *changes)[:MOST]


def less_host_memory(case: Case) -> tuple[str, ...]:
    """Advise changes that save host memory: move states back to the GPU, or to a drive."""
    if unpartitioned := loaded_whole(case):
        return (unpartitioned,)
    if case.phase in BEFORE_TRAINING:
        return ()
    return _advice(case.job, *HOST_MEMORY)


def _advice(job: JobEvidence, *rows: MemoryChange) -> tuple[str, ...]:
    if not job.takes_ds_config:
        return ()
    state = state_of(job)
    advice = []
    for row, options in memory_changes(state, rows, only_first=True):
        if row.keeps_training and (text := row.advice(options, state, job.setting)):
            advice.append(text)
    return tuple(advice)


def loaded_whole(case: Case) -> str | None:
    """Recognize a model that every rank loads whole, although stage 3 should partition it while loading."""
    job, rank = case.job, case.rank
    expected = written_peak(job.forecast or {}, HOST_POOLS, "load")
    if rank is None or case.phase != phases.LOADING or job.stage != 3 or not job.uses_trainer or not expected:
        return None
    if (rank.peak_rss_bytes or 0) < 2 * expected:
        return None
    return "create `TrainingArguments` before the model, so that stage 3 partitions it while loading"


def setting(config: Mapping[str, object], *keys: str) -> object:
    """Look up a value of the ds_config; None if it is not there."""
    value: object = config
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def named_in(text: str, pattern: str) -> str | None:
    """Return the first group of a pattern's first match."""
    match = re.search(pattern, text)
    return match and match.group(1)
