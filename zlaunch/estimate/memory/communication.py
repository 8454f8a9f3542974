"""What a rank sends in a step: to other ranks, to its host and to NVMe.

The ZeRO paper (Rajbhandari et al. 2020, section 7) counts, in parameters that each rank sends and
receives: 2ψ for data parallelism and for stages 1 and 2 (an all-reduce, or a reduce-scatter and an
all-gather), 3ψ for stage 3 (the parameters twice, the gradients once). DeepSpeed 0.19.8 differs: at
stages 1 and 2 gradients are all-reduced unless `use_multi_rank_bucket_allreduce` is false
(zero/stage_1_and_2.py, average_tensor), so 3ψ there; at stage 3 what stays gathered between the
passes is gathered once; and gradients are sent in every micro-step from stage 2 on.
"""

from dataclasses import dataclass
from typing import Final

from zlaunch.estimate.memory.adapters import adapters
from zlaunch.estimate.memory.backward import trained
from zlaunch.estimate.memory.settings import Settings, read_settings
from zlaunch.estimate.workload import Workload
from zlaunch.job.transformer import read_transformer

_PASSES: Final = {"all-reduce": 2, "reduce": 1, "reduce-scatter": 1, "all-gather": 1}
"""How often all but a share of the data passes each rank, in a ring."""

PAPER: Final = {0: 2, 1: 2, 2: 2, 3: 3}
"""The paper's volume of a step by stage, in model sizes: for many ranks, without accumulation."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of communication among all ranks."""

    kind: str
    """`all-reduce`, `reduce`, `reduce-scatter` or `all-gather`."""
    of: str
    """`gradients` or `parameters`."""
    nbytes: int
    """The data, all ranks' shares together, each time."""
    times: int
    """In a step."""

    def sent(self, world_size: int) -> float:
        """Say how many bytes a rank sends in a step, and receives: (N-1)/N of the data at a time."""
        return _PASSES[self.kind] * self.nbytes * self.times * (world_size - 1) / world_size


@dataclass(frozen=True, slots=True)
class Communication:
    """Bytes of one rank in one step, accumulation included."""

    collectives: tuple[Collective, ...]
    world_size: int
    to_host: int
    from_host: int
    nvme_read: int
    nvme_written: int

    @property
    def sent(self) -> float:
        """Add up what the rank sends to other ranks."""
        return sum(collective.sent(self.world_size) for collective in self.collectives)


def communication(workload: Workload, *, reduces_to_all: bool = True) -> Communication:
    """Say what a rank of a job sends in a step; raise Refused if config.json gives no sizes.

    `reduces_to_all` is the ds_config's `use_multi_rank_bucket_allreduce`.
    """
    settings, model = read_settings(workload), read_transformer(workload.model)
    lora = workload.lora
    weights = trained(model, adapters(model, lora) if lora else 0)
    parameters = settings.item * (model.parameters + (weights.total if lora else 0))
    gradients = settings.item * weights.total
    collectives = _collectives(settings, parameters, gradients, reduces_to_all=reduces_to_all)
    to_host, from_host = _over_pcie(settings, parameters, gradients)
    read, written = _to_nvme(settings, parameters, weights.total)
    return Communication(collectives, settings.world_size, to_host, from_host, read, written)


def paper_volume(parameters: int, stage: int, world_size: int, item: int = 2) -> float:
    """Say how many bytes a rank sends in a step without accumulation, as the ZeRO paper counts."""
    return PAPER[stage] * parameters * item * (world_size - 1) / world_size


def _collectives(
    settings: Settings, parameters: int, gradients: int, *, reduces_to_all: bool
) -> tuple[Collective, ...]:
    if settings.world_size == 1:
        return ()
    times = settings.accumulation
    if settings.stage == 3:
        stays = min(parameters, settings.item * settings.reuse_distance)
        return (
            Collective("all-gather", "parameters", 2 * parameters - stays, times),
            Collective("reduce-scatter", "gradients", gradients, times),
        )
    reduce = "all-reduce" if reduces_to_all or settings.stage == 0 else "reduce"
    # Up to stage 1 gradients wait for the last micro-step, unless communication is to overlap.
    once = settings.stage < 2
    sent = (Collective(reduce, "gradients", gradients, 1 if once else times),)
    return sent if settings.stage == 0 else (*sent, Collective("all-gather", "parameters", gradients, 1))


def _over_pcie(settings: Settings, parameters: int, gradients: int) -> tuple[int, int]:
    """Say what goes to the host and comes from it: gradients and parameters of the rank's share."""
    to_host = from_host = 0
    share = settings.share(gradients)
    if settings.optimizer_on != "gpu":
        to_host += share * settings.accumulation
        from_host += share  # the parameters after the step
        if settings.stage < 3:
            from_host += share * (settings.accumulation - 1)  # added to on the GPU
    if settings.parameters_on != "gpu":
        stays = min(parameters, settings.item * settings.reuse_distance)
        from_host += settings.share(2 * parameters - stays) * settings.accumulation
    return to_host, from_host


def _to_nvme(settings: Settings, parameters: int, numel: int) -> tuple[int, int]:
    """Say what is read and written: fp32 copies, states and gradients, and parameters."""
    read = written = 0
    share = settings.share(numel)
    if settings.optimizer_on == "nvme":
        # Gradients in fp32 are written in the backward pass, all four are read, three written back.
        read += (4 + settings.state_bytes + 4) * share
        written += (4 + settings.state_bytes + 4) * share
    if settings.parameters_on == "nvme":
        stays = min(parameters, settings.item * settings.reuse_distance)
        read += settings.share(2 * parameters - stays) * settings.accumulation
        written += settings.item * share
    return read, written
