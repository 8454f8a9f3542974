"""Compare the memory that a run used with its forecast."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from zlaunch.estimate.forecast import HOST_POOLS, written_peak, written_resident
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.gpu_catalog import overhead_bytes
from zlaunch.runs.run import Run, State

SETTLED = 3
"""Steps after which the peak of every pool has been reached."""

ON_A_CPU = "the run had no GPU, so no GPU memory was measured"
TOO_EARLY = f"a run is compared with its forecast after {SETTLED} steps"
NOT_MEASURED = "not measured"
NOT_PREDICTED = "no prediction: `zlaunch train` predicts memory for GPUs, or with `--rehearse`"


@dataclass(frozen=True, slots=True)
class PoolComparison:
    """One pool of memory, in bytes, of the rank that used most."""

    name: str
    predicted: int | None
    measured: int | None
    remark: str = ""
    percent: float | None = None
    """How many percent the prediction was too high; negative if too low."""


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """All pools, and why some of them cannot be compared."""

    pools: tuple[PoolComparison, ...]
    remarks: tuple[str, ...]


_NAMES = {
    "pageable": "  pageable",
    "pinned": "  pinned",
    "shm": "  /dev/shm",
    "nvme": "NVMe",
}


def compare_with_forecast(run: Run) -> MemoryComparison:
    """Compare the measured memory of a run with its forecast."""
    on_gpu = run.job.get("accelerator") != "cpu"
    is_early = _is_early(run)
    pools = [pool for pool in _pools(run, on_gpu) if pool.predicted or pool.measured]
    if not is_early:
        pools = [replace(pool, percent=_percent(pool)) for pool in pools]
    remarks = []
    if not run.forecast:
        remarks.append(NOT_PREDICTED)
    if not on_gpu:
        remarks.append(ON_A_CPU)
    if run.forecast and is_early:
        remarks.append(TOO_EARLY)
    return MemoryComparison(tuple(pools), tuple(remarks))


def _is_early(run: Run) -> bool:
    """Whether too few steps were taken; a run that reports no steps counts if it finished."""
    if run.step is None:
        return run.state is not State.FINISHED
    first = max((heartbeat.get("first_step", 0) for heartbeat in run.heartbeats.values()), default=0)
    return run.step - first < SETTLED


def _percent(pool: PoolComparison) -> float | None:
    if pool.predicted is None or not pool.measured:
        return None
    return 100.0 * (pool.predicted - pool.measured) / pool.measured


def _pools(run: Run, on_gpu: bool) -> Iterator[PoolComparison]:
    if on_gpu:
        yield from _gpu_pools(run)
    # A rank's record is written when it ends, its samples while it runs.
    resident = [rank.get("peak_rss_bytes") for rank in (*run.ranks.values(), *run.samples.values())]
    resident += [sample.get("rss_bytes") for sample in run.samples.values()]
    yield PoolComparison("host, resident", written_resident(run.forecast, on_gpu), _most(resident))
    for pool in (*HOST_POOLS, "nvme"):
        yield PoolComparison(_NAMES[pool], written_peak(run.forecast, (pool,)), None, NOT_MEASURED)


def _gpu_pools(run: Run) -> Iterator[PoolComparison]:
    heartbeats = run.heartbeats.values()
    allocated = _most(heartbeat.get("gpu_allocated_bytes") for heartbeat in heartbeats)
    yield PoolComparison("GPU, tensors", written_peak(run.forecast, ("gpu",)), allocated)
    reserved = _most(heartbeat.get("gpu_reserved_bytes") for heartbeat in heartbeats)
    predicted = written_peak(run.forecast, ("reserved",))
    yield PoolComparison("GPU, reserved", predicted, reserved)
    if predicted is not None:
        predicted += overhead_bytes(run.world_size or 1)[1]
    in_use = _most((sample.get("gpu") or {}).get("used_bytes") for sample in run.samples.values())
    yield PoolComparison("GPU, in use", predicted, in_use, "predicted: at most")


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
