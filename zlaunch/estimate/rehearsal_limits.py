"""Limits of rehearsals: jobs that fit nowhere, or whose rehearsal would take minutes.

A rehearsal runs DeepSpeed's Python code for every layer, and loops over all ranks. The closed form estimates
these jobs instead, with its error.
"""

from typing import Final

from zlaunch.errors import Refused
from zlaunch.estimate.memory import closed_form
from zlaunch.estimate.workload import Workload
from zlaunch.hosts.gpu_catalog import GPUS
from zlaunch.job.transformer import depth_of
from zlaunch.units import memory

MOST_LAYERS: Final = 1_000
"""Each takes a rehearsal 0.08 s of a core; the deepest models of today have under 200."""
MOST_RANKS: Final = 16_384
"""Each takes 0.003 s of a core: DeepSpeed looks at all of them."""
MOST_GPUS: Final = 10
"""A job that needs more than this many of the largest GPU fits nowhere."""
MOST_BYTES: Final = MOST_GPUS * max(gpu.total_bytes for gpu in GPUS.values())


def too_large(workload: Workload) -> str | None:
    """Return why a job is not rehearsed; None if it is, or if its size is unknown.

    Raise Refused if no model has so many layers.
    """
    if (layers := depth_of(workload.model)) > MOST_LAYERS:
        return f"{layers} layers would take minutes"
    if workload.world_size > MOST_RANKS:
        return f"{workload.world_size} ranks would take minutes"
    if workload.accelerator == "cpu":
        return None
    try:
        found = closed_form.forecast(workload)
    except Refused:
        return None
    least, _ = found.bounds(found.peak("gpu"))
    too_much = f"it takes at least {memory(least)}, more than {MOST_GPUS} times the largest GPU"
    return too_much if least > MOST_BYTES else None
