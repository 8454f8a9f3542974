"""Whether a job fits: the need of its ranks, compared with the memory of GPUs and hosts."""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final

from zlaunch.errors import ExitStatus
from zlaunch.estimate.forecast import HOST_POOLS, Forecast, program_bytes
from zlaunch.estimate.uncounted import Effect, Uncounted
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.gpu_catalog import MOST_CUBLAS_BYTES, GpuModel, overhead_bytes
from zlaunch.hosts.machine.measured_speeds import NOTHING_MEASURED, MeasuredSpeeds
from zlaunch.units import gib, memory

ALLOCATED_ERROR: Final = 0.06
RESERVED_ERROR: Final = 0.06
"""How far off a rehearsal may be, by docs/accuracy.md: in the same generation, no run's tensors took less by
more than that, and the mean error of processes is less."""
CPU_ERROR: Final = 0.12
"""How much more host memory ranks on a CPU may take: of thirteen measured jobs, none took over 10.2 % more.
Gloo copies what it reduces, and freed blocks of less than 32 MiB stay with the process."""


@dataclass(frozen=True)
class Cluster:
    """Where a job runs: ranks, hosts, and the GPU and memory of each."""

    num_hosts: int
    ranks_per_host: int
    gpu: GpuModel | None = None
    """None if none was named and there is none here."""
    host_bytes: int | None = None
    """Memory of each host; None if unknown."""
    network: float | None = None
    """Bytes per second from a host to the others; None if unknown."""
    measured: MeasuredSpeeds = NOTHING_MEASURED
    """On these hosts."""

    @property
    def world_size(self) -> int:
        """Ranks on all hosts."""
        return self.num_hosts * self.ranks_per_host

    @property
    def cublas_bytes(self) -> int:
        """What each handle of cuBLAS takes; the most of any GPU if none is named."""
        return MOST_CUBLAS_BYTES if self.gpu is None else self.gpu.cublas_bytes


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Peak bytes of a job: on the GPU of one rank, and of a whole host."""

    allocated: int
    """GPU bytes in tensors."""
    reserved: int
    """With the cache of torch's allocator."""
    process: tuple[int, int]
    """With the CUDA context and NCCL, at least and at most."""
    pageable: int
    pinned: int
    shm: int
    host: int
    """Host memory: the sum of these three and the ranks' programs."""
    nvme: int
    """Files on NVMe."""


class Fit(Enum):
    """Whether a job fits."""

    YES = "fits"
    TIGHT = "too close to tell"
    NO = "does not fit"
    UNKNOWN = "unknown"

    @property
    def words(self) -> str:
        """The beginning of a sentence with the reasons."""
        if self is Fit.UNKNOWN:
            return "cannot tell whether it fits"
        return str(self.value)

    @property
    def status(self) -> ExitStatus:
        """Exit status of the program."""
        return {Fit.YES: ExitStatus.OK, Fit.NO: ExitStatus.REFUSED}.get(self, ExitStatus.UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class FitResult:
    """Whether it fits, and why."""

    fit: Fit
    reasons: tuple[str, ...] = ()


def memory_need(forecast: Forecast, cluster: Cluster) -> MemoryNeed:
    """Work out what the ranks of a job need."""
    least, most = overhead_bytes(cluster.world_size)
    reserved, ranks = forecast.peak("reserved"), cluster.ranks_per_host
    program = program_bytes(forecast.on_gpu)
    pageable, pinned, shm = (_on_one_host(forecast, (pool,), ranks) for pool in HOST_POOLS)
    return MemoryNeed(
        allocated=forecast.peak("gpu"),
        reserved=reserved,
        process=(reserved + least, reserved + most),
        pageable=pageable,
        pinned=pinned,
        shm=shm,
        host=ranks * program + _on_one_host(forecast, HOST_POOLS, ranks),
        nvme=ranks * forecast.peak("nvme"),
    )


def check_fit(forecast: Forecast, cluster: Cluster, uncounted: Iterable[Uncounted] = ()) -> FitResult:
    """Compare what a job needs with what its hosts have; the worst result counts.

    What is not counted may make a job fit that does not by its number, or the other way round.
    """
    need = memory_need(forecast, cluster)
    verdicts = [*_on_the_gpu(forecast, need, cluster), *_on_the_host(forecast, need, cluster)]
    result = FitResult(Fit.YES)
    for fit in (Fit.NO, Fit.UNKNOWN, Fit.TIGHT):
        if reasons := tuple(verdict.reasons[0] for verdict in verdicts if verdict.fit is fit):
            result = FitResult(fit, reasons)
            break
    against = {Fit.YES: Effect.MORE, Fit.NO: Effect.LESS}.get(result.fit)
    if against is None:
        return result
    doubts = [one for one in left_out(forecast, uncounted) if against in one.effect]
    if not doubts:
        return result
    takes = "it takes at least"
    if any(Effect.LESS in one.effect for one in doubts):
        takes = "what is counted takes"
    counted = result.reasons or (f"{takes} {_of_each(forecast, need)}",)
    return FitResult(Fit.UNKNOWN, (*counted, *map(str, doubts)))


def left_out(forecast: Forecast, uncounted: Iterable[Uncounted]) -> Iterator[Uncounted]:
    """List what a forecast of a job does not count."""
    yield from uncounted
    for name in forecast.missing:
        yield Uncounted(name, "that the model is trained on", Effect.MORE)
    for name in forecast.unsaved:
        yield Uncounted(name, "that save memory", Effect.LESS)


def _of_each(forecast: Forecast, need: MemoryNeed) -> str:
    if forecast.on_gpu:
        return f"{memory(need.allocated)} of tensors on each GPU"
    return f"{memory(need.host)} on each host"


def _on_the_gpu(forecast: Forecast, need: MemoryNeed, cluster: Cluster) -> Iterator[FitResult]:
    """When memory runs out, the allocator frees its cache, but no tensors."""
    if not forecast.on_gpu:
        return
    if cluster.gpu is None:
        yield FitResult(Fit.UNKNOWN, ("no GPU named",))
        return
    least, most = cluster.gpu.usable_bytes(cluster.world_size)
    room = f"{gib(max(0, least))} to {gib(max(0, most))}"
    available = f"{room} of {gib(cluster.gpu.total_bytes)} GiB are available"
    most_reserved = int(need.reserved * (1 + max(forecast.error, RESERVED_ERROR)))
    if need.allocated / (1 + max(forecast.error, ALLOCATED_ERROR)) > most:
        phase = forecast.peak_phase("gpu")
        yield FitResult(Fit.NO, (f"{memory(need.allocated)} of tensors in {phase}; {available}",))
    elif most_reserved > least:
        takes = f"{memory(need.reserved)}, perhaps {memory(most_reserved)},"
        yield FitResult(Fit.TIGHT, (f"{takes} for tensors and the allocator's cache; {available}",))


def _on_the_host(forecast: Forecast, need: MemoryNeed, cluster: Cluster) -> Iterator[FitResult]:
    if cluster.host_bytes is None:
        return
    takes, has = memory(need.host), f"of host memory; the host has {memory(cluster.host_bytes)}"
    least, most = forecast.bounds(need.host)
    if not forecast.on_gpu:
        most = max(most, int(need.host * (1 + CPU_ERROR)))
    if least > cluster.host_bytes:
        yield FitResult(Fit.NO, (f"{takes} {has}",))
    elif most > cluster.host_bytes:
        yield FitResult(Fit.TIGHT, (f"{takes}, perhaps {memory(most)}, {has}",))


def _on_one_host(forecast: Forecast, pools: Sequence[str], ranks: int) -> int:
    """Return the most that all ranks of a host hold at once in some pools, which need not peak together.

    All ranks do the same, except that the first alone gathers the whole model to save it.
    """
    most = before = 0
    for phase in forecast.phases:
        first = others = sum(phase.peak.get(pool, 0) for pool in pools)
        if phase.name == "save":
            others = min(before, first)
        most = max(most, first + (ranks - 1) * others)
        before = sum(phase.end.get(pool, 0) for pool in pools)
    return most
