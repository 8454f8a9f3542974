"""Compare the memory that a run used with its forecast."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from zlaunch.estimate.forecast import HOST_POOLS, written_peak, written_resident
from zlaunch.hosts.machine.gpu_catalog import overhead_bytes
from zlaunch.runs.state import RunSummary, State

SETTLED = 3
"""Steps after which the peak of every pool has been reached."""

ON_A_CPU = "the run had no GPU, so no GPU memory was measured"
TOO_EARLY = f"a run is compared with its forecast after {SETTLED} steps"
NOT_MEASURED = "not measured"
NOT_PREDICTED = "no prediction: `zlaunch train` predicts memory for GPUs, or with `--rehearse`"


@dataclass(frozen=True, slots=True)
class PoolComparison:
    """One pool of memory, in bytes, of the rank that used most of it."""

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
    "pageable": "  of it pageable",
    "pinned": "  of it pinned",
    "shm": "  of it /dev/shm",
    "nvme": "NVMe",
}


def compare_with_forecast(run: RunSummary) -> MemoryComparison:
    """Compare the measured memory of a run with its forecast."""
    forecast, on_gpu = run.files.forecast, run.files.job.get("accelerator") != "cpu"
    is_early = _is_early(run)
    pools = [replace(pool, percent=None if is_early else _percent(pool)) for pool in _pools(run, on_gpu)]
    remarks = [NOT_PREDICTED] if not forecast else []
    if not on_gpu:
        remarks.append(ON_A_CPU)
    if forecast and is_early:
        remarks.append(TOO_EARLY)
    return MemoryComparison(tuple(pool for pool in pools if pool.predicted or pool.measured), tuple(remarks))


def _is_early(run: RunSummary) -> bool:
    """Whether too few steps were taken; a run that reports no steps counts if it finished."""
    if run.step is None:
        return run.state is not State.FINISHED
    heartbeats = run.files.heartbeats.values()
    return run.step - max((one.get("first_step", 0) for one in heartbeats), default=0) < SETTLED


def _percent(pool: PoolComparison) -> float | None:
    if pool.predicted is None or not pool.measured:
        return None
    return 100.0 * (pool.predicted - pool.measured) / pool.measured


def _pools(run: RunSummary, on_gpu: bool) -> Iterator[PoolComparison]:
    files, forecast = run.files, run.files.forecast
    if on_gpu:
        reserved, heartbeats = written_peak(forecast, ("reserved",)), files.heartbeats.values()
        in_use = None if reserved is None else reserved + overhead_bytes(run.world_size or 1)[1]
        tensors = _most(one.get("gpu_allocated_bytes") for one in heartbeats)
        on_device = _most((one.get("gpu") or {}).get("used_bytes") for one in files.samples.values())
        yield PoolComparison("GPU, tensors", written_peak(forecast, ("gpu",)), tensors)
        yield PoolComparison(
            "GPU, reserved", reserved, _most(one.get("gpu_reserved_bytes") for one in heartbeats)
        )
        yield PoolComparison("GPU, in use", in_use, on_device, "predicted: at most")
    # A rank's record is written when it ends, its samples while it runs.
    resident = [one.get("peak_rss_bytes") for one in (*files.ranks.values(), *files.samples.values())]
    resident += [one.get("rss_bytes") for one in files.samples.values()]
    yield PoolComparison("host, resident", written_resident(forecast, on_gpu), _most(resident))
    for pool in (*HOST_POOLS, "nvme"):
        yield PoolComparison(_NAMES[pool], written_peak(forecast, (pool,)), None, NOT_MEASURED)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
