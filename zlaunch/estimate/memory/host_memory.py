"""What a rank keeps in its host's memory and on NVMe: what is offloaded, and the model on its way.

Read in DeepSpeed 0.19.8 and measured by rehearsal. Page-locked memory is counted as torch's allocator
rounds it: each request up to a power of two, for good. All sizes in bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zlaunch.estimate.memory.gradients import Trained
from zlaunch.estimate.memory.model_states import MASTER_BYTES
from zlaunch.estimate.memory.settings import Settings
from zlaunch.estimate.workload import Workload
from zlaunch.job.transformer import Transformer

Pools = Mapping[str, int]
Parts = Mapping[str, int]


SHARED_BYTES = 69_206_024
"""What each CPU rank puts into /dev/shm for DeepSpeed's all-reduce: two buffers of 1 MiB, two of 32, and
two words (csrc/cpu/comm/shm.cpp, allreduce_workspace). Only where all ranks are on one host."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """What is off the GPU: by phase, at most and at the end; and what each pool is full of."""

    phases: Mapping[str, tuple[Pools, Pools]]
    parts: Mapping[str, Parts]


def host_memory(settings: Settings, weights: Trained, model: Transformer, loaded: int) -> HostMemory:
    """Work out what is off the GPU; `loaded` is the bytes of a parameter as its checkpoint has it."""
    share = settings.share(weights.total)
    whole = 0 if settings.zero_init else loaded * model.parameters
    # Tied matrices are both made before they become one.
    twice = loaded * model.hidden * model.vocab if model.tied and whole else 0
    pinned, kept = _pinned(settings, weights), _pageable(settings, share)
    if settings.zero_init and model.tied and "parameters" in pinned:
        pinned["parameters"] += _power_of_two(settings.item * settings.share(model.hidden * model.vocab))
    begun = {
        "pageable": kept.get("master weights", 0),
        "pinned": sum(pinned.values()),
        "nvme": _on_nvme(settings, share, trained=False),
    }
    late = {**begun, "pageable": sum(kept.values()), "nvme": _on_nvme(settings, share, trained=True)}
    start, step = _made(settings, share, max(_groups(settings, weights)))
    made = _while_made(settings, weights, pinned) if settings.zero_init else {"pageable": whole}
    phases = {
        "load": ({**made, "pageable": made["pageable"] + twice}, {**made, "pageable": whole}),
        "initialize": ({**begun, "pageable": max(whole, start)}, begun),
        "forward": (begun, begun),
        "backward": (begun, begun),
        "step": ({**late, "pageable": max(late["pageable"], step)}, late),
        "second step": (late, late),
    }
    fullest = {"parameters": whole + twice} if whole + twice > sum(kept.values()) else kept
    files = {"parameters": made.get("nvme", 0), "optimizer states": late["nvme"] - made.get("nvme", 0)}
    return HostMemory(
        {name: (_present(peak), _present(end)) for name, (peak, end) in phases.items()},
        {
            pool: parts
            for pool, parts in (("pageable", fullest), ("pinned", pinned), ("nvme", files))
            if sum(parts.values())
        },
    )


def shared(workload: Workload) -> int:
    """Say what a rank puts into /dev/shm; what NCCL and loaders of data put there nobody can foretell."""
    alone = workload.world_size == 1 or workload.world_size > workload.ranks_per_host
    return SHARED_BYTES if workload.accelerator == "cpu" and not alone else 0


def _while_made(settings: Settings, weights: Trained, pinned: Parts) -> Pools:
    """Say what is there while zero.Init makes the model: pieces of a parameter, and those made."""
    piece = settings.item * settings.share(weights.largest)
    if settings.parameters_on == "cpu":
        # All of them are put into one block more only later.
        flat = _power_of_two(settings.item * settings.share(weights.total))
        return {"pageable": piece, "pinned": pinned["parameters"] - flat}
    if settings.parameters_on == "nvme":
        buffers = settings.item * settings.parameter_buffers
        nvme = settings.item * settings.share(weights.total)
        return {"pageable": max(2 * piece, buffers), "pinned": buffers, "nvme": nvme}
    return {"pageable": 2 * piece}


def _pageable(settings: Settings, share: int) -> Parts:
    """Say what stays in pageable memory after the first step; stages 1 and 2 pin the fp32 copy."""
    if settings.optimizer_on != "cpu":
        return {}
    states = {"optimizer states": settings.state_bytes * share}
    return states if settings.stage < 3 else {"master weights": MASTER_BYTES * share, **states}


def _made(settings: Settings, share: int, group: int) -> tuple[int, int]:
    """Say what is there for a moment while DeepSpeed makes the states: at its start, in the first step.

    At its start it pins copies of the weights, at stage 3 gradients of zero beside others, group by group.
    """
    if settings.optimizer_on == "gpu":
        return 0, 0
    if settings.optimizer_on == "nvme":
        return MASTER_BYTES * share, settings.state_bytes * share
    if settings.stage < 3:
        return (MASTER_BYTES + settings.item) * share, 0
    return MASTER_BYTES * share + 2 * 4 * group, 0


def _pinned(settings: Settings, weights: Trained) -> dict[str, int]:
    """Say what is page-locked: gradients and fp32 copies of the share, and buffers on the way."""
    item, share = settings.item, settings.share(weights.total)
    parts: dict[str, int] = {}
    if settings.optimizer_on != "gpu" and settings.pins_optimizer:
        parts["gradients"] = _power_of_two(item * share)
        if settings.optimizer_on == "cpu":
            parts["gradients"] += sum(_power_of_two(4 * numel) for numel in _groups(settings, weights))
        if settings.stage < 3:
            # The fp32 copy, and one whole gradient on its way (stage_1_and_2.py).
            parts["master weights"] = _power_of_two(4 * share)
            parts["buckets"] = _power_of_two(item * weights.largest)
            parts["gradients"] += _parameters(settings, weights) if settings.accumulation > 1 else 0
    if settings.optimizer_on == "nvme":
        parts["swap buffers"] = settings.buffer_count * 4 * min(settings.sub_group, share)
    return _with_parameters(parts, settings, weights)


def _groups(settings: Settings, weights: Trained) -> list[int]:
    """Cut the share into what stage 3 updates at once (stage3.py, _create_fp16_sub_groups)."""
    if settings.stage < 3:
        return [settings.share(weights.total)]
    groups = [0]
    for numel in weights.in_order():
        if groups[-1] >= settings.sub_group:
            groups.append(0)
        groups[-1] += settings.share(numel)
    return groups


def _with_parameters(parts: dict[str, int], settings: Settings, weights: Trained) -> dict[str, int]:
    """Add the page-locked memory of parameters that are not on the GPU."""
    item, share = settings.item, settings.share(weights.total)
    if settings.parameters_on == "cpu":
        parts["parameters"] = _power_of_two(item * share) + _parameters(settings, weights)
    if settings.parameters_on == "nvme":
        parts["swap buffers"] = parts.get("swap buffers", 0) + item * settings.parameter_buffers
        parts["parameters"] = _power_of_two(item * min(share, settings.most_in_cpu))
        if share > settings.most_in_cpu:
            # A buffer for the rest that stage3.py sizes by whole parameters instead of shares.
            parts["buckets"] = _power_of_two(item * weights.total)
    return parts


def _parameters(settings: Settings, weights: Trained) -> int:
    """Add up a rank's part of every parameter, each page-locked on its own."""
    return sum(_power_of_two(settings.item * settings.share(numel)) for numel in weights.in_order())


def _on_nvme(settings: Settings, share: int, *, trained: bool) -> int:
    """Say what is in files: the fp32 copies at first, then all that the optimizer keeps, and parameters."""
    nbytes = settings.item * share if settings.parameters_on == "nvme" else 0
    if settings.optimizer_on == "nvme":
        nbytes += (2 * MASTER_BYTES + settings.state_bytes if trained else MASTER_BYTES) * share
    return nbytes


def _power_of_two(nbytes: int) -> int:
    return 1 << (nbytes - 1).bit_length() if nbytes > 0 else 0


def _present(pools: Pools) -> Pools:
    return {pool: nbytes for pool, nbytes in pools.items() if nbytes}
