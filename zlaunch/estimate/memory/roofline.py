"""How long a step takes: each kind of work at the speed of what does it.

`seconds` is a roofline (Williams et al. 2009), a lower bound: data sheets, and everything that can
overlap overlaps. `likely` is calibrated: every speed has a best and a worst, fitted to the half of the
runs of `tests/estimate/memory/published_steps.json` that their ids choose, and tested on the other half.
At best, communication hides behind computation; at worst, nothing does. docs/speed.md has all runs.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Final

from zlaunch.estimate.memory.activations import Batch
from zlaunch.estimate.memory.adapters import adapters
from zlaunch.estimate.memory.backward import saved_activations, trained
from zlaunch.estimate.memory.communication import Communication, communication
from zlaunch.estimate.memory.settings import Settings, read_settings
from zlaunch.estimate.workload import Workload
from zlaunch.hosts.gpu_catalog import GpuModel
from zlaunch.job.transformer import Transformer, read_transformer
from zlaunch.units import count, decimal

Range = tuple[float, float]
"""At best and at worst."""

MATRICES: Final[Range] = (0.75, 0.48)
"""The share of the data sheet's FLOP/s that matrix products reach."""
MEMORY: Final[Range] = (0.60, 0.22)
"""The share of GPU memory's bandwidth; the worst is what unfused kernels and other formats leave of it."""
LINKS: Final[Range] = (0.90, 0.40)
"""The share of a link's bandwidth within a host."""
NETWORK: Final[Range] = (0.90, 0.35)
"""The share of the bandwidth between hosts."""
PCIE: Final[Range] = (0.80, 0.10)
"""The share of PCIe's while all GPUs of a host use it. Fitted together with CPU Adam: no source tells the
two apart."""
NVME: Final[Range] = (0.80, 0.30)
"""The share of the drives'. A rule of thumb: no published run with all its settings was found."""
CPU_ADAM: Final[Range] = (5.0e9, 0.4e9)
"""Parameters per second and host of DeepSpeed's CPU Adam. Ren et al. (2021), table 4, have 4e9 on two
Xeon 8168. The worst is eight A800 on 64 cores; 5e7 for each rank may mean one thread for each, which is
what torchrun gives them unless OMP_NUM_THREADS says otherwise."""
LAYER: Final[Range] = (0.8e-3, 5e-3)
"""Seconds of Python for one layer of one micro-step, forward and backward, in which kernels are launched."""
GATHERED_LAYER: Final[Range] = (2.5e-3, 12e-3)
"""The same with ZeRO-3's hooks, which gather each layer and give it back."""

_TOUCHED: Final = 5
"""How often a saved activation is written or read, its gradient included."""
_TOUCHED_AGAIN: Final = 2.5
"""The same, in addition, for activations of layers that activation checkpointing computes again."""
_ADAM_TRAFFIC: Final = 30
"""Bytes that an optimizer step moves per parameter: master, moments and gradient in fp32 read, the
first three and the parameter written."""
_PORTS: Final = ((450e9, 50e9, 50e9), (200e9, 25e9, 12.5e9), (100e9, 12.5e9, 12.5e9))
"""What hosts have towards others, by the bandwidth of their GPUs' NVLink: at best a port for each GPU, of
400 Gb/s with Hopper and later, 200 with Ampere, 100 with Volta; at worst so much for the whole host."""
_PORTS_WITHOUT_NVLINK: Final[Range] = (12.5e9, 1.25e9)
"""The same for hosts of other GPUs: 100 Gb/s and 10 Gb/s. An assumption: no published run tells."""
_CALIBRATED: Final = {"V100-16GB", "V100-32GB", "A100-40GB", "A100-80GB", "H100-80GB", "H200", "B200"}


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """What a job runs on; bytes per second in each direction."""

    gpu: GpuModel
    network_bandwidth: float | None = None
    """Of one host to others; None if it is not known."""
    nvme_bandwidth: float = 6e9
    """Of one host's drives: one drive of PCIe 4."""

    def network(self, local: int) -> Range:
        """Say how fast a host of so many ranks may talk to others, at best and at worst."""
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
    """At least: at the data sheet's speed."""
    overlaps: bool
    """Whether it can be done during the forward and backward passes."""
    why: str
    """How much is done."""
    likely: Range
    """Seconds, at the speeds that runs reach."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """A step's least time, where it lands, and what it is made of."""

    terms: tuple[Term, ...]
    seconds: float
    """At least: the longest of what overlaps, and the rest in turn."""
    likely: Range
    """Where published runs land: seconds, from and to."""
    tokens_per_second: float
    """Of all ranks, at least time; so at the most."""
    is_calibrated: bool = True
    """Whether published runs on this kind of GPU were compared."""

    @property
    def middle(self) -> float:
        """Say in one number how long it takes: as far, as a factor, from both ends of what is likely."""
        return geometric_mean(self.likely)

    @property
    def bound_by(self) -> str:
        """Name the term that probably takes longest."""
        return max(self.terms, key=lambda term: geometric_mean(term.likely)).name


def geometric_mean(likely: Range) -> float:
    """Say the geometric mean of a range."""
    return sqrt(likely[0] * likely[1])


@dataclass(frozen=True, slots=True)
class Speed:
    """What a rank sends in a step, and how long the step takes."""

    traffic: Communication
    roofline: Roofline


def step_speed(workload: Workload, machine: DeviceSpeed, flops: float) -> Speed:
    """Work out traffic and time of a step of so many operations of each rank.

    Raise Refused if config.json gives no sizes.
    """
    traffic = communication(workload)
    return Speed(traffic, _roofline(workload, traffic, machine, flops))


def roofline(workload: Workload, machine: DeviceSpeed, flops: float) -> Roofline:
    """Work out the time of a step alone; raise Refused if config.json gives no sizes."""
    return step_speed(workload, machine, flops).roofline


def _roofline(workload: Workload, sent: Communication, machine: DeviceSpeed, flops: float) -> Roofline:
    model, settings = read_transformer(workload.model), read_settings(workload)
    kernels = (_compute(flops, settings, machine.gpu), _memory(workload, model, settings, machine.gpu))
    launches = _launches(model, settings)
    links = (_network(workload, sent, machine), _pcie(sent, machine.gpu))
    after = _optimizer(workload, model, settings, sent, machine)
    terms = (*kernels, launches, *links, *after)
    least = max(term.seconds for term in terms if term.overlaps) + sum(term.seconds for term in after)
    # Kernels run one after the other, while Python launches the next ones.
    best, worst = (max(_sum(kernels, end), launches.likely[end]) for end in (0, 1))
    likely = (
        max(best, *(term.likely[0] for term in links)) + _sum(after, 0),
        worst + _sum(links, 1) + _sum(after, 1),
    )
    tokens = settings.micro_batch * settings.accumulation * workload.seq_len * settings.world_size
    return Roofline(terms, least, likely, tokens / least, machine.gpu.name in _CALIBRATED)


def batch_of(workload: Workload) -> Batch:
    """Describe what goes through the model at a time."""
    settings = read_settings(workload)
    return Batch(settings.micro_batch, workload.seq_len, settings.item, workload.attention)


def _sum(terms: tuple[Term, ...], end: int) -> float:
    return sum(term.likely[end] for term in terms)


def _at(amount: float, speed: Range) -> Range:
    return amount / speed[0], amount / speed[1]


def _compute(flops: float, settings: Settings, gpu: GpuModel) -> Term:
    # torch leaves TF32 off, so fp32 is computed as fp32.
    seconds = flops / (gpu.half_flops if settings.is_half else gpu.fp32_flops)
    return Term("compute", seconds, True, decimal(flops, "FLOP"), _at(seconds, MATRICES))


def _memory(workload: Workload, model: Transformer, settings: Settings, gpu: GpuModel) -> Term:
    """Weights are read three times; activations are written once and read once at least."""
    left = saved_activations(model, batch_of(workload), checkpointing=False)
    weights, saved = 3 * settings.item * model.parameters, left.activations + left.head.saved
    again = _TOUCHED_AGAIN * left.activations if workload.activation_checkpointing else 0.0
    least = settings.accumulation * (weights + 2 * saved) / gpu.memory_bandwidth
    nbytes = settings.accumulation * (weights + _TOUCHED * saved + again)
    return Term("memory", least, True, decimal(nbytes, "B"), _at(nbytes / gpu.memory_bandwidth, MEMORY))


def _launches(model: Transformer, settings: Settings) -> Term:
    """No data sheet says how fast Python is, so that it takes nothing at least."""
    gathers = settings.stage == 3 and settings.world_size > 1
    layers, each = model.num_layers * settings.accumulation, GATHERED_LAYER if gathers else LAYER
    return Term("launches", 0.0, True, f"{layers:,} layers", (layers * each[0], layers * each[1]))


def _network(workload: Workload, sent: Communication, machine: DeviceSpeed) -> Term:
    """A ring goes at the speed of its slowest link: NVLink or PCIe, or the host's way to others.

    One ring leaves a host once, so its ranks do not share the network in a single all-reduce.
    """
    local = min(workload.ranks_per_host, workload.world_size)
    inside = machine.gpu.nvlink_bandwidth or machine.gpu.host_bandwidth
    amount = decimal(sent.sent, "B")
    if workload.world_size <= local:
        return Term("network", sent.sent / inside, True, amount, _at(sent.sent / inside, LINKS))
    outside = machine.network(local)
    reached = tuple(min(inside * LINKS[end], outside[end] * NETWORK[end]) for end in (0, 1))
    if outside[0] != outside[1]:
        amount += f", {outside[1] / 1e9:g} to {outside[0] / 1e9:g} GB/s of a host"
    least = sent.sent / min(inside, outside[0])
    return Term("network", least, True, amount, (sent.sent / reached[0], sent.sent / reached[1]))


def _pcie(sent: Communication, gpu: GpuModel) -> Term:
    nbytes = max(sent.to_host, sent.from_host)
    seconds = nbytes / gpu.host_bandwidth
    return Term("pcie", seconds, True, decimal(nbytes, "B"), _at(seconds, PCIE))


def _optimizer(
    workload: Workload, model: Transformer, settings: Settings, sent: Communication, machine: DeviceSpeed
) -> tuple[Term, ...]:
    """The step itself, where the states are, and NVMe's part in it."""
    lora = workload.lora
    weights = trained(model, adapters(model, lora) if lora else 0)
    share = settings.share(weights.total) if settings.stage else weights.total
    local = min(workload.ranks_per_host, workload.world_size)
    if settings.optimizer_on == "gpu":
        seconds = _ADAM_TRAFFIC * share / machine.gpu.memory_bandwidth
        why = decimal(_ADAM_TRAFFIC * share, "B")
        step = Term("optimizer", seconds, False, why, _at(seconds, MEMORY))
    else:
        what = f"{count(share * local)} parameters on the CPU"
        likely = _at(share * local, CPU_ADAM)
        step = Term("optimizer", likely[0], False, what, likely)
    drives = local * (sent.nvme_read + sent.nvme_written)
    if not drives:
        return (step,)
    seconds = drives / machine.nvme_bandwidth
    return (step, Term("nvme", seconds, False, f"{decimal(drives, 'B')} a host", _at(seconds, NVME)))
