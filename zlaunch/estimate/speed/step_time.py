"""Step time: the time of each kind of work at the speed of its hardware.

`seconds` is a lower bound, a roofline (Williams et al. 2009) with data sheet speeds and full overlap.
`likely` is a calibrated range: each speed has a best and a worst value, fitted to one half of the runs in
`tests/estimate/memory/published_steps.json`, chosen by their ids, and tested on the other half. At best,
communication overlaps with computation; at worst, nothing does. docs/speed.md lists all runs.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Final

from zlaunch.estimate.forecast import CountedCollective
from zlaunch.estimate.memory.activations import saved_activations
from zlaunch.estimate.memory.settings import Settings, TrainingJob, read_job
from zlaunch.estimate.speed.communication import Collective, Communication, communication
from zlaunch.estimate.workload import Workload
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.gpu_catalog import GpuModel
from zlaunch.hosts.machine.measured_speeds import NOTHING_MEASURED, MeasuredSpeeds
from zlaunch.job.transformer import Transformer
from zlaunch.units import count, decimal

Range = tuple[float, float]
"""Best and worst value."""

MATRICES: Final[Range] = (0.75, 0.48)
"""Fraction of the data sheet's FLOP/s that matrix products reach."""
MEMORY: Final[Range] = (0.60, 0.22)
"""Fraction of the GPU memory bandwidth; the worst is for unfused kernels and dtype conversions."""
LINKS: Final[Range] = (0.90, 0.40)
"""Fraction of the link bandwidth within a host."""
NETWORK: Final[Range] = (0.90, 0.35)
"""Fraction of the bandwidth between hosts."""
PCIE: Final[Range] = (0.80, 0.10)
"""Fraction of the PCIe bandwidth while all GPUs of a host use it. Fitted together with CPU Adam, because
no source separates the two."""
NVME: Final[Range] = (0.80, 0.30)
"""Fraction of the bandwidth of the drives. A rule of thumb: no published run states all its settings."""
CPU_ADAM: Final[Range] = (5.0e9, 0.4e9)
"""Parameters per second and host of DeepSpeed's CPU Adam. Ren et al. (2021), table 4, report 4e9 on two
Xeon 8168. The worst is from eight A800 on 64 cores; 5e7 per rank suggests one thread per rank, the
default of torchrun unless OMP_NUM_THREADS is set."""
LAYER: Final[Range] = (0.8e-3, 5e-3)
"""Seconds of Python to launch the kernels of one layer in one micro-step, forward and backward."""
GATHERED_LAYER: Final[Range] = (2.5e-3, 12e-3)
"""The same with the hooks of ZeRO-3, which gather and release each layer, also on a single rank."""

_TOUCHED: Final = 5
"""Reads and writes of each saved activation, including its gradient."""
_TOUCHED_AGAIN: Final = 2.5
"""Additional ones if activation checkpointing recomputes it."""
_ADAM_TRAFFIC: Final = 30
"""Bytes that an optimizer step moves per parameter: reads master weight, moments and gradient in fp32;
writes the first three and the parameter."""
_PORTS: Final = ((450e9, 50e9, 50e9), (200e9, 25e9, 12.5e9), (100e9, 12.5e9, 12.5e9))
"""NVLink bandwidth of the GPUs → network bandwidth per GPU at best, per host at worst: 400 Gb/s per GPU
with Hopper and later, 200 with Ampere, 100 with Volta."""
_PORTS_WITHOUT_NVLINK: Final[Range] = (12.5e9, 1.25e9)
"""The same for GPUs without NVLink: 100 Gb/s and 10 Gb/s. An assumption without a published run."""
_CALIBRATED: Final = {"V100-16GB", "V100-32GB", "A100-40GB", "A100-80GB", "H100-80GB", "H200", "B200"}


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """Speeds of the hardware; bytes per second in each direction."""

    gpu: GpuModel
    network_bandwidth: float | None = None
    """Of one host to others; None if unknown."""
    measured: MeasuredSpeeds = NOTHING_MEASURED
    """Of its hosts; a speed that was measured is what is reached, not that of a data sheet."""
    nvme_bandwidth: float = 6e9
    """Of one host's drives: one drive of PCIe 4."""

    @property
    def link_bandwidth(self) -> float:
        """Within a host, by the data sheet."""
        return self.gpu.nvlink_bandwidth or self.gpu.host_bandwidth

    @property
    def links_reached(self) -> Range:
        """What ranks of a host send each other, best and worst."""
        if self.measured.links is not None:
            return self.measured.links, self.measured.links
        return self.link_bandwidth * LINKS[0], self.link_bandwidth * LINKS[1]

    def network_reached(self, local: int) -> Range:
        """Return what a host with `local` ranks sends to others, best and worst."""
        links, (best, worst) = self.links_reached, self.network(local)
        best, worst = best * NETWORK[0], worst * NETWORK[1]
        if self.network_bandwidth is None and (measured := self.measured.network) is not None:
            best, worst = measured * local, measured  # each rank may have a port of its own
        return min(links[0], best), min(links[1], worst)

    def network(self, local: int) -> Range:
        """Return the network bandwidth of a host with `local` ranks, best and worst."""
        if self.network_bandwidth is not None:
            return self.network_bandwidth, self.network_bandwidth
        for nvlink, of_gpu, of_host in _PORTS:
            if self.gpu.nvlink_bandwidth >= nvlink:
                return max(of_gpu * local, of_host), of_host
        return _PORTS_WITHOUT_NVLINK


@dataclass(frozen=True, slots=True)
class Term:
    """One kind of work in a step."""

    name: str
    seconds: float
    """At the data sheet's speed, a lower bound."""
    overlaps: bool
    """Whether it can overlap with the forward and backward passes."""
    why: str
    """The amount of work."""
    likely: Range
    """Seconds at the calibrated speeds."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The time of a step: lower bound, calibrated range, and terms."""

    terms: tuple[Term, ...]
    seconds: float
    """Lower bound: the longest of the overlapping terms, and the sum of the others."""
    likely: Range
    """Calibrated range in seconds."""
    tokens_per_second: float
    """Of all ranks; an upper bound."""
    is_calibrated: bool = True
    """Whether the published runs include this kind of GPU."""
    correction: float = 1.0
    """By what `likely` was multiplied, because a measurement on this machine took so much longer."""

    def corrected(self, factor: float) -> "Roofline":
        """Multiply all likely times."""
        terms = tuple(replace(term, likely=_times(term.likely, factor)) for term in self.terms)
        return replace(self, terms=terms, likely=_times(self.likely, factor), correction=factor)

    @property
    def middle(self) -> float:
        """Return the geometric mean of the calibrated range."""
        return geometric_mean(self.likely)

    @property
    def bound_by(self) -> str:
        """Return the name of the term that probably takes longest."""
        return max(self.terms, key=lambda term: geometric_mean(term.likely)).name


def _times(likely: Range, factor: float) -> Range:
    return likely[0] * factor, likely[1] * factor


def geometric_mean(likely: Range) -> float:
    """Return the geometric mean of a range."""
    return sqrt(likely[0] * likely[1])


@dataclass(frozen=True, slots=True)
class Speed:
    """The communication of a rank in a step, and the time of the step."""

    traffic: Communication
    roofline: Roofline


def step_speed(
    workload: Workload,
    machine: DeviceSpeed,
    flops: float,
    counted: Sequence[CountedCollective] = (),
    *,
    trained: int | None = None,
) -> Speed:
    """Compute communication and time of a step with `flops` operations per rank.

    `counted` are the collectives of a rehearsal, and `trained` are the elements that it found to be trained,
    because a program may freeze parameters. Raise Refused if config.json has no sizes.
    """
    job = read_job(workload)
    if trained is not None and trained < job.weights.total:
        job = replace(job, weights=job.weights.with_trained(trained))
    traffic = communication(job, counted)
    return Speed(traffic, _roofline(job, traffic, machine, flops))


def _roofline(job: TrainingJob, volume: Communication, machine: DeviceSpeed, flops: float) -> Roofline:
    workload, settings = job.workload, job.settings
    kernels = (_compute_term(flops, settings, machine.gpu), _memory_term(job, machine.gpu))
    launches = _launch_term(job.model, settings)
    links = (_network_term(workload, volume, machine), _pcie_term(volume, machine.gpu))
    after = _optimizer_and_nvme(job, volume, machine)
    terms = (*kernels, launches, *links, *after)
    least = max(term.seconds for term in terms if term.overlaps) + sum(term.seconds for term in after)
    # Kernels run one after the other while Python launches the next ones.
    best, worst = (max(_sum(kernels, end), launches.likely[end]) for end in (0, 1))
    likely = (
        max(best, *(term.likely[0] for term in links)) + _sum(after, 0),
        worst + _sum(links, 1) + _sum(after, 1),
    )
    groups = settings.groups
    tokens = job.batch.tokens * settings.accumulation * groups.data * groups.sequences
    return Roofline(terms, least, likely, tokens / least, machine.gpu.name in _CALIBRATED)


def _sum(terms: tuple[Term, ...], end: int) -> float:
    return sum(term.likely[end] for term in terms)


def _likely(amount: float, speed: Range) -> Range:
    return amount / speed[0], amount / speed[1]


def _compute_term(flops: float, settings: Settings, gpu: GpuModel) -> Term:
    speed = gpu.fp32_flops  # TF32 is off by default in torch
    if settings.is_half:
        speed = gpu.half_flops
    seconds = flops / speed
    return Term("compute", seconds, True, decimal(flops, "FLOP"), _likely(seconds, MATRICES))


def _memory_term(job: TrainingJob, gpu: GpuModel) -> Term:
    """Weights are read three times; activations are written once and read once at least."""
    accumulation = job.settings.accumulation
    left = saved_activations(job.model, job.batch, checkpointing=False)
    weights, saved = 3 * job.settings.item * job.model.parameters, left.activations + left.head.saved
    least = accumulation * (weights + 2 * saved) / gpu.memory_bandwidth
    touched = float(weights + _TOUCHED * saved)
    if job.workload.activation_checkpointing:
        touched += _TOUCHED_AGAIN * left.activations
    nbytes = accumulation * touched
    return Term("memory", least, True, decimal(nbytes, "B"), _likely(nbytes / gpu.memory_bandwidth, MEMORY))


def _launch_term(model: Transformer, settings: Settings) -> Term:
    """The lower bound is 0: there is no data sheet for Python."""
    layers, of_layer = model.num_layers * settings.accumulation, LAYER
    if settings.stage == 3:
        of_layer = GATHERED_LAYER
    likely = (layers * of_layer[0], layers * of_layer[1])
    what = f"{model.num_layers} layers"
    if settings.accumulation > 1:
        what += f" x {settings.accumulation} micro-batches"
    return Term("launches", 0.0, True, what, likely)


def _network_term(workload: Workload, volume: Communication, machine: DeviceSpeed) -> Term:
    """A ring is as fast as its slowest link: NVLink or PCIe within a host, or the network between hosts.

    A ring leaves each host once, so the ranks of a host do not share the network in an all-reduce.
    """
    local = min(workload.ranks_per_host, workload.world_size)
    inside, reached = machine.link_bandwidth, machine.links_reached
    amount = decimal(volume.sent, "B")
    if machine.measured.links is not None:
        amount += f", {_rate(machine.measured.links)} measured within a host"
    near = sum(collective.sent for collective in volume.collectives if _is_local(collective, workload))
    far = volume.sent - near
    likely = _likely(near, reached)
    if not far:
        return Term("network", near / inside, True, amount, likely)
    outside, reached = machine.network(local), machine.network_reached(local)
    if machine.network_bandwidth is None and machine.measured.network is not None:
        amount += f", {_rate(machine.measured.network)} measured between hosts"
    elif outside[0] != outside[1]:
        amount += f", {outside[1] / 1e9:g} to {outside[0] / 1e9:g} GB/s of a host"
    if near:
        amount += f", {decimal(near, 'B')} of it within a host"
    least = near / inside + far / min(inside, outside[0])
    return Term("network", least, True, amount, (likely[0] + far / reached[0], likely[1] + far / reached[1]))


def _is_local(collective: Collective, workload: Workload) -> bool:
    """Whether a group has its ranks on one host: neighbours share layers, sequences and second partitions."""
    if workload.world_size <= workload.ranks_per_host:
        return True
    groups = workload.groups
    is_among_neighbours = collective.of == "activations" or collective.ranks == groups.secondary < groups.zero
    return is_among_neighbours and collective.ranks <= workload.ranks_per_host


def _pcie_term(volume: Communication, gpu: GpuModel) -> Term:
    nbytes = max(volume.to_host, volume.from_host)
    seconds = nbytes / gpu.host_bandwidth
    return Term("pcie", seconds, True, decimal(nbytes, "B"), _likely(seconds, PCIE))


def _optimizer_and_nvme(job: TrainingJob, volume: Communication, machine: DeviceSpeed) -> tuple[Term, ...]:
    workload, settings, share = job.workload, job.settings, job.weights.total
    if settings.stage:
        share = settings.share(share)
    local = min(workload.ranks_per_host, workload.world_size)
    if settings.optimizer_on == "gpu":
        seconds = _ADAM_TRAFFIC * share / machine.gpu.memory_bandwidth
        why = decimal(_ADAM_TRAFFIC * share, "B")
        step = Term("optimizer", seconds, False, why, _likely(seconds, MEMORY))
    else:
        what = f"{count(share * local)} parameters on the CPU"
        likely = _likely(share * local, CPU_ADAM)
        step = Term("optimizer", likely[0], False, what, likely)
    drives = local * (volume.nvme_read + volume.nvme_written)
    if not drives:
        return (step,)
    seconds, amount = drives / machine.nvme_bandwidth, f"{decimal(drives, 'B')} a host"
    likely = _likely(seconds, NVME)
    if (measured := machine.measured.nvme) is not None:
        amount += f", {_rate(measured)} measured"
        seconds = drives / measured
        likely = (seconds, seconds)
    return (step, Term("nvme", seconds, False, amount, likely))


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.3g} GB/s"
