"""What a run took of each pool of memory, beside what was predicted of it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zlaunch.estimate.forecast import HOST_POOLS, written_peak, written_resident
from zlaunch.hosts.gpu_catalog import overhead_bytes
from zlaunch.rundir.record import RunFiles, RunRecord, State, number, section, text
from zlaunch.units import whole

SETTLED = 3
"""Steps after which every pool has been as full as it becomes."""

ON_A_CPU = "no GPU was there, so nothing was measured on one"
TOO_EARLY = f"a run is compared with its forecast after {SETTLED} steps"
NOT_MEASURED = "not measured"
NOT_PREDICTED = "nothing was predicted: `zlaunch train` predicts for GPUs, or with `--rehearse`"


@dataclass(frozen=True, slots=True)
class PoolComparison:
    """One pool of memory; bytes of the rank that took most of it."""

    name: str
    predicted: int | None
    measured: int | None
    remark: str = ""
    percent: float | None = None
    """By how many percent the prediction was too high; below zero, too low."""


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """All pools, and what keeps them from being compared."""

    pools: tuple[PoolComparison, ...]
    remarks: tuple[str, ...]


def compare_with_forecast(record: RunRecord) -> MemoryComparison:
    """Lay what was measured of a run beside its forecast."""
    found = record.found
    on_gpu = text(found.job, "accelerator") != "cpu"
    is_early = _is_early(record)
    pools = [replace(pool, percent=None if is_early else _percent(pool)) for pool in _pools(record, on_gpu)]
    remarks = [NOT_PREDICTED] if not found.forecast else []
    if not on_gpu:
        remarks.append(ON_A_CPU)
    if found.forecast and is_early:
        remarks.append(TOO_EARLY)
    return MemoryComparison(tuple(pool for pool in pools if pool.predicted or pool.measured), tuple(remarks))


def _is_early(record: RunRecord) -> bool:
    """Whether too few steps were taken; a run that tells of none counts if it finished."""
    if record.step is None:
        return record.state is not State.FINISHED
    resumed = max((whole(pulse.get("first_step")) or 0 for pulse in record.found.pulses.values()), default=0)
    return record.step - resumed < SETTLED


def _percent(pool: PoolComparison) -> float | None:
    if pool.predicted is None or not pool.measured:
        return None
    return 100.0 * (pool.predicted - pool.measured) / pool.measured


def _pools(record: RunRecord, on_gpu: bool) -> Iterator[PoolComparison]:
    found = record.found
    reserved = written_peak(found.forecast, ("reserved",))
    process = None if reserved is None else reserved + overhead_bytes(record.world_size or 1)[1]
    if on_gpu:
        yield PoolComparison(
            "GPU, tensors", written_peak(found.forecast, ("gpu",)), _of_pulses(found, "gpu_allocated_bytes")
        )
        yield PoolComparison("GPU, reserved", reserved, _of_pulses(found, "gpu_reserved_bytes"))
        yield PoolComparison("GPU, in use", process, _on_the_device(found), "predicted: at most")
    yield PoolComparison("host, resident", written_resident(found.forecast, on_gpu), _resident(found))
    for pool in (*HOST_POOLS, "nvme"):
        yield PoolComparison(_NAMES[pool], written_peak(found.forecast, (pool,)), None, NOT_MEASURED)


_NAMES = {
    "pageable": "  of it pageable",
    "pinned": "  of it pinned",
    "shm": "  of it /dev/shm",
    "nvme": "NVMe",
}


def _of_pulses(found: RunFiles, name: str) -> int | None:
    return _most(number(pulse, name) for pulse in found.pulses.values())


def _on_the_device(found: RunFiles) -> int | None:
    return _most(number(section(sample, "gpu"), "used_bytes") for sample in found.samples.values())


def _resident(found: RunFiles) -> int | None:
    """Say the most of any rank; a rank's record is written at its end, samples while it runs."""
    records: list[Mapping[str, Any]] = [*found.ranks.values(), *found.samples.values()]
    return _most(number(one, name) for one in records for name in ("peak_rss_bytes", "rss_bytes"))


def _most(values: Iterable[float | None]) -> int | None:
    known = [int(value) for value in values if value is not None]
    return max(known, default=None)
