"""Communication volume of a rank per step: with other ranks, with its host and with NVMe.

The ZeRO paper (Rajbhandari et al. 2020, section 7) counts the parameters that each rank sends and
receives: 2ψ for data parallelism and for stages 1 and 2 (an all-reduce, or a reduce-scatter and an
all-gather), 3ψ for stage 3 (the parameters twice, the gradients once). DeepSpeed 0.19.8 differs: stages 1
and 2 all-reduce gradients unless `use_multi_rank_bucket_allreduce` is false (zero/stage_1_and_2.py,
average_tensor), which makes 3ψ; stage 3 gathers parameters only once if they stay gathered between the
passes; and from stage 2 on, gradients are reduced in every micro-step.
"""

from collections.abc import Iterator, Sequence

from zlaunch.estimate.forecast import CountedCollective
from zlaunch.estimate.memory.settings import Settings, TrainingJob
from zlaunch.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of collective among the ranks of a group."""

    kind: str
    """`all-reduce`, `reduce`, `reduce-scatter`, `all-gather` or `all-to-all`."""
    of: str
    """`gradients`, `parameters` or `activations`."""
    nbytes: int
    """The data of one call, summed over all ranks; what a rank has, if all exchange with all."""
    times: int
    """Calls per step."""
    ranks: int
    """Ranks in the group."""

    @property
    def sent(self) -> float:
        """Return the bytes sent by a rank per step, (N-1)/N of the data in each pass; it receives as many."""
        nbytes = self.nbytes * self.times
        if self.kind == "all-reduce":  # two passes through the ring
            nbytes *= 2
        return nbytes * (self.ranks - 1) / self.ranks


@dataclass(frozen=True, slots=True)
class Communication:
    """Bytes per rank and step, including gradient accumulation."""

    collectives: tuple[Collective, ...]
    to_host: int
    from_host: int
    nvme_read: int
    nvme_written: int

    @property
    def sent(self) -> float:
        """Return the bytes sent to other ranks."""
        return sum(collective.sent for collective in self.collectives)


def communication(job: TrainingJob, counted: Sequence[CountedCollective] = ()) -> Communication:
    """Compute the communication of a rank per step; `counted` are the collectives of a rehearsal."""
    settings = job.settings
    parameters = settings.item * job.weights.parameters
    gradients = settings.item * job.weights.total
    collectives = tuple(_of_rehearsal(counted, settings.accumulation))
    if not collectives:
        collectives = _collectives(settings, parameters, gradients)
    to_host, from_host = _over_pcie(settings, parameters, gradients)
    read, written = _to_nvme(settings, parameters, job.weights.total)
    return Communication(collectives, to_host, from_host, read, written)


def _of_rehearsal(counted: Sequence[CountedCollective], accumulation: int) -> Iterator[Collective]:
    """Add up what was counted in one of equal micro-steps, and in the last one."""
    calls: dict[tuple[str, str, int], int] = {}
    nbytes: dict[tuple[str, str, int], int] = {}
    for collective in counted:
        key, times = (collective.kind, collective.of, collective.ranks), 1
        if not collective.is_last:
            times = accumulation - 1
        calls[key] = calls.get(key, 0) + times * collective.calls
        nbytes[key] = nbytes.get(key, 0) + times * collective.nbytes
    for (kind, of, ranks), total in nbytes.items():
        if calls[kind, of, ranks]:
            yield Collective(kind, of, total // calls[kind, of, ranks], calls[kind, of, ranks], ranks)


def paper_volume(parameters: int, stage: int, world_size: int, item: int = 2) -> float:
    """Return the bytes that a rank sends per step without accumulation, as in the ZeRO paper."""
    passes = 2
    if stage == 3:
        passes = 3
    return passes * parameters * item * (world_size - 1) / world_size


def ring_bytes(kind: str, nbytes: int, world_size: int) -> float:
    """Return what a rank sends for a call of which DeepSpeed's comms logger says `nbytes`, in a ring.

    It logs the tensor that a rank brings: all of the data, but a rank's share of it for an all-gather.
    """
    if kind == "all-gather":
        return nbytes * (world_size - 1)
    return Collective(kind, "", nbytes, 1, world_size).sent


def _collectives(settings: Settings, parameters: int, gradients: int) -> tuple[Collective, ...]:
    ranks, times = settings.groups.zero, settings.accumulation
    if ranks == 1:
        return ()
    if settings.stage == 3:
        reduced = Collective("reduce-scatter", "gradients", gradients, times, ranks)
        return (*_gathers(settings, parameters), reduced)
    if settings.stage < 2:
        times = 1  # in the last micro-step only (not with `overlap_comm`, which is ignored here)
    if settings.stage == 0:
        return (Collective("all-reduce", "gradients", gradients, times, ranks),)
    reduce = "reduce"
    if settings.reduces_to_all:
        reduce = "all-reduce"
    return (
        Collective(reduce, "gradients", gradients, times, ranks),
        Collective("all-gather", "parameters", gradients, 1, ranks),
    )


def _gathers(settings: Settings, parameters: int) -> Iterator[Collective]:
    """Gather parameters for both passes; with hpZ, from all ranks only in the first pass after a step."""
    ranks, secondary = settings.groups.zero, settings.groups.secondary
    volume, times = _gathered_bytes(settings, parameters), settings.accumulation
    if secondary == 1:
        yield Collective("all-gather", "parameters", volume, times, ranks)
        return
    yield Collective("all-gather", "parameters", parameters, 1, ranks)
    yield Collective("all-gather", "parameters", volume * times - parameters, 1, secondary)


def _gathered_bytes(settings: Settings, parameters: int) -> int:
    """Return the bytes gathered in both passes; parameters that are reused soon stay gathered."""
    return 2 * parameters - min(parameters, settings.item * settings.reuse_distance)


def _over_pcie(settings: Settings, parameters: int, gradients: int) -> tuple[int, int]:
    """Return the bytes to and from the host: gradients and parameters of the rank's partition."""
    to_host = from_host = 0
    share = settings.share(gradients)
    if settings.optimizer_on != "gpu":
        to_host += share * settings.accumulation
        from_host += share  # the updated parameters
        if settings.stage < 3:
            from_host += share * (settings.accumulation - 1)  # accumulated on the GPU
    if settings.parameters_on != "gpu":
        from_host += settings.share(_gathered_bytes(settings, parameters)) * settings.accumulation
    return to_host, from_host


def _to_nvme(settings: Settings, parameters: int, numel: int) -> tuple[int, int]:
    """Return the bytes read and written: fp32 copies, optimizer states, gradients and parameters."""
    read = written = 0
    share = settings.share(numel)
    if settings.optimizer_on == "nvme":
        # The backward pass writes fp32 gradients; the step reads everything and writes all but gradients.
        read += (4 + settings.state_bytes + 4) * share
        written += (4 + settings.state_bytes + 4) * share
    if settings.parameters_on == "nvme":
        read += settings.share(_gathered_bytes(settings, parameters)) * settings.accumulation
        written += settings.item * share
    return read, written
