"""How long a step takes at least: each kind of work at the full speed of what does it.

A roofline (Williams et al. 2009) is a lower bound: no kernel, link or drive reaches its data sheet, and
what can overlap is taken to overlap fully. `likely` divides by what training runs reach: published
large runs use 35 to 55 % of a GPU's matrix FLOP/s (Narayanan et al. 2021: 44-52 % on A100; Llama 3,
2024: 38-43 % on H100); small models, small batches and slow networks reach less.
"""

from dataclasses import dataclass
from typing import Final

from zlaunch.memory.activations import Batch
from zlaunch.memory.adapters import adapters
from zlaunch.memory.backward import kept, trained
from zlaunch.memory.hardware import Gpu
from zlaunch.memory.settings import Settings, read_settings
from zlaunch.memory.traffic import Traffic, traffic
from zlaunch.memory.transformer import Transformer, read_transformer
from zlaunch.memory.workload import Workload
from zlaunch.units import count, decimal

MFU: Final = (0.30, 0.55)
"""The share of the data sheet's FLOP/s that training reaches; the upper end is published, the lower a
rule of thumb for what is well set up."""
LINK_SHARE: Final = 0.7
"""The share of a link's data sheet that large transfers reach: a rule of thumb."""
CPU_ADAM_PARAMETERS: Final = 4.0e9
"""Parameters per second and host of DeepSpeed's CPU Adam: 0.22 s to 0.26 s per billion on two Xeon 8168
(Ren et al. 2021, ZeRO-Offload, table 4). Not measured here."""
_ADAM_TRAFFIC: Final = 30
"""Bytes that an optimizer step moves per parameter: master, moments and gradient in fp32 read, the
first three and the parameter written."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a job runs on; bytes per second in each direction."""

    gpu: Gpu
    network_bandwidth: float = 50e9
    """Of one host to others: one port of 400 Gb/s."""
    nvme_bandwidth: float = 6e9
    """Of one host's drives: one drive of PCIe 4."""


@dataclass(frozen=True, slots=True)
class Term:
    """One kind of work in a step."""

    name: str
    seconds: float
    overlaps: bool
    """Whether it can be done during the forward and backward passes."""
    why: str
    """How much is done."""
    reached: tuple[float, float] = (LINK_SHARE, LINK_SHARE)
    """The share of that speed that runs reach, at the worst and at the best."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """A step's least time, and what it is made of."""

    terms: tuple[Term, ...]
    seconds: float
    """At least: the longest of what overlaps, and the rest in turn."""
    likely: tuple[float, float]
    """Where a well set up run lands, by the shares above: seconds, from and to."""
    tokens_per_second: float
    """Of all ranks, at least time; so at the most."""

    @property
    def bound_by(self) -> str:
        """Name the term that takes longest."""
        return max(self.terms, key=lambda term: term.seconds).name


def roofline(workload: Workload, machine: Machine, flops: float) -> Roofline:
    """Work out the least time of a step of so many operations of each rank.

    Raise Refused if config.json gives no sizes.
    """
    model, settings = read_transformer(workload.model), read_settings(workload)
    sent = traffic(workload)
    terms = (
        _compute(flops, settings, machine.gpu),
        _memory(workload, model, settings, machine.gpu),
        _network(workload, sent, machine),
        _pcie(sent, machine.gpu),
        *_optimizer(workload, model, settings, sent, machine),
    )
    seconds = _total(terms, (1.0,) * len(terms))
    slowest, fastest = (_total(terms, tuple(term.reached[end] for term in terms)) for end in (0, 1))
    tokens = settings.micro_batch * settings.accumulation * workload.seq_len * settings.world_size
    return Roofline(terms, seconds, (fastest, slowest), tokens / seconds)


def _total(terms: tuple[Term, ...], shares: tuple[float, ...]) -> float:
    """Add up: the longest of what overlaps, and the rest, each at a share of its speed."""
    times = [(term.seconds / share, term.overlaps) for term, share in zip(terms, shares, strict=True)]
    together = max((seconds for seconds, overlaps in times if overlaps), default=0.0)
    return together + sum(seconds for seconds, overlaps in times if not overlaps)


def batch_of(workload: Workload) -> Batch:
    """Describe what goes through the model at a time."""
    settings = read_settings(workload)
    return Batch(settings.micro_batch, workload.seq_len, settings.item, workload.attention)


def _compute(flops: float, settings: Settings, gpu: Gpu) -> Term:
    # torch leaves TF32 off, so fp32 is computed as fp32.
    speed = gpu.half_flops if settings.is_half else gpu.fp32_flops
    return Term("compute", flops / speed, overlaps=True, why=decimal(flops, "FLOP"), reached=MFU)


def _memory(workload: Workload, model: Transformer, settings: Settings, gpu: Gpu) -> Term:
    """Weights are read three times, activations written and read twice, at least."""
    left = kept(model, batch_of(workload), checkpointing=False)
    once = 3 * settings.item * model.parameters + 4 * (left.activations + left.head.saved)
    nbytes = once * settings.accumulation
    return Term("memory", nbytes / gpu.memory_bandwidth, overlaps=True, why=decimal(nbytes, "B"))


def _network(workload: Workload, sent: Traffic, machine: Machine) -> Term:
    """A ring goes at the speed of its slowest link: NVLink or PCIe, or this rank's part of the network."""
    gpu, local = machine.gpu, min(workload.ranks_per_host, workload.world_size)
    inside = gpu.nvlink_bandwidth or gpu.host_bandwidth
    # One ring leaves a host once, so its ranks do not share the network in a single all-reduce.
    speed = min(inside, machine.network_bandwidth) if workload.world_size > local else inside
    return Term("network", sent.sent / speed, overlaps=True, why=decimal(sent.sent, "B"))


def _pcie(sent: Traffic, gpu: Gpu) -> Term:
    nbytes = max(sent.to_host, sent.from_host)
    return Term("pcie", nbytes / gpu.host_bandwidth, overlaps=True, why=decimal(nbytes, "B"))


def _optimizer(
    workload: Workload, model: Transformer, settings: Settings, sent: Traffic, machine: Machine
) -> tuple[Term, ...]:
    """The step itself, where the states are, and NVMe's part in it."""
    lora = workload.lora
    weights = trained(model, adapters(model, lora) if lora else 0)
    share = settings.share(weights.total) if settings.stage else weights.total
    local = min(workload.ranks_per_host, workload.world_size)
    if settings.optimizer_on == "gpu":
        nbytes = _ADAM_TRAFFIC * share
        step = Term("optimizer", nbytes / machine.gpu.memory_bandwidth, False, decimal(nbytes, "B"))
    else:
        numel = share * local
        what = f"{count(numel)} parameters on the CPU"
        step = Term("optimizer", numel / CPU_ADAM_PARAMETERS, False, what, reached=(1.0, 1.0))
    drives = local * (sent.nvme_read + sent.nvme_written)
    if not drives:
        return (step,)
    return (step, Term("nvme", drives / machine.nvme_bandwidth, False, f"{decimal(drives, 'B')} a host"))
