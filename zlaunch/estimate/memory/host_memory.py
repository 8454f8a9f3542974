"""Memory of a rank on its host and on NVMe: offloaded states, and the model while it is loaded.

Derived from the source of DeepSpeed 0.19.8 and checked by rehearsals. Page-locked memory is rounded as
torch's allocator does: up to a power of two, and never released. All sizes in bytes.
"""

from collections.abc import Iterable, Mapping

from zlaunch.estimate.memory.allocators import power_of_two
from zlaunch.estimate.memory.model_states import MASTER_BYTES
from zlaunch.estimate.memory.optimizer_states import Breakdown
from zlaunch.estimate.memory.settings import Settings, TrainingJob
from zlaunch.estimate.memory.weights import Weights
from zlaunch.estimate.workload import Workload

Pools = Mapping[str, int]
"""Bytes by pool, as in `forecast.POOLS`."""

SHARED_BYTES = 69_206_024
"""Bytes that each CPU rank allocates in /dev/shm for DeepSpeed's all-reduce if all ranks are on one host:
two buffers of 1 MiB, two of 32 MiB, and two words (csrc/cpu/comm/shm.cpp, allreduce_workspace)."""


def host_memory(job: TrainingJob) -> tuple[Mapping[str, tuple[Pools, Pools]], Mapping[str, Breakdown]]:
    """Compute the peak and end of each phase, and the categories of each pool at its peak."""
    settings, weights, model = job.settings, job.weights, job.model
    share = settings.share(weights.total)
    pinned, offloaded = _pinned(settings, weights), _pageable(settings, share)
    output = model.hidden * model.vocab
    if settings.zero_init and model.tied and "parameters" in pinned:
        pinned["parameters"] += power_of_two(settings.item * settings.share(output))
    load_item = 2
    if job.workload.load_dtype == "fp32":
        load_item = 4
    loaded = tied = 0
    if not settings.zero_init:
        loaded = load_item * model.parameters
        if model.tied:  # the matrices are created separately, and then tied
            tied = load_item * output
    before_step = {
        "pageable": offloaded.get("master weights", 0),
        "pinned": sum(pinned.values()),
        "nvme": _on_nvme(settings, weights, trained=False),
    }
    after_step = {
        **before_step,
        "pageable": sum(offloaded.values()),
        "nvme": _on_nvme(settings, weights, trained=True),
    }
    start, step = _temporary(settings, share, max(_sub_groups(settings, weights)))
    load: Pools = {"pageable": loaded}
    if settings.zero_init:
        load = _during_zero_init(settings, weights, pinned)
    phases = {
        "load": ({**load, "pageable": load["pageable"] + tied}, {**load, "pageable": loaded}),
        "initialize": ({**before_step, "pageable": max(loaded, start)}, before_step),
        "forward": (before_step, before_step),
        "backward": (before_step, before_step),
        "step": ({**after_step, "pageable": max(after_step["pageable"], step)}, after_step),
        "second step": (after_step, after_step),
    }
    pageable = offloaded
    if loaded + tied > sum(offloaded.values()):
        pageable = {"parameters": loaded + tied}
    nvme = {"parameters": load.get("nvme", 0), "optimizer states": after_step["nvme"] - load.get("nvme", 0)}
    pools = {"pageable": pageable, "pinned": pinned, "nvme": nvme}
    return (
        {name: (_without_zeros(peak), _without_zeros(end)) for name, (peak, end) in phases.items()},
        {pool: categories for pool, categories in pools.items() if sum(categories.values())},
    )


def shared(workload: Workload) -> int:
    """Return the bytes that a rank allocates in /dev/shm, without NCCL and data loaders."""
    on_one_host = 1 < workload.world_size <= workload.ranks_per_host
    if workload.accelerator == "cpu" and on_one_host:
        return SHARED_BYTES
    return 0


def _during_zero_init(settings: Settings, weights: Weights, pinned: Breakdown) -> Pools:
    """Return the peak while zero.Init creates the model: a temporary partition, and those created."""
    piece = settings.item * settings.share(max(weights.all))
    if settings.parameters_on == "cpu":
        # DeepSpeed later copies the partitions of trained parameters into one more block.
        flat = power_of_two(settings.item * settings.share(weights.total))
        return {"pageable": piece, "pinned": pinned["parameters"] - flat}
    if settings.parameters_on == "nvme":
        buffers = settings.item * settings.parameter_buffers
        nvme = settings.item * settings.share(weights.parameters)
        return {"pageable": max(2 * piece, buffers), "pinned": buffers, "nvme": nvme}
    return {"pageable": 0}


def _pageable(settings: Settings, share: int) -> Breakdown:
    """Return the pageable memory after the first step; stages 1 and 2 pin the fp32 copy."""
    if settings.optimizer_on != "cpu":
        return {}
    states = {"optimizer states": settings.state_bytes * share}
    if settings.stage < 3:
        return states
    return {"master weights": MASTER_BYTES * share, **states}


def _temporary(settings: Settings, share: int, group: int) -> tuple[int, int]:
    """Return the temporary memory for creating the states: at initialization, and in the first step.

    Initialization pins copies of the weights; at stage 3 it creates zero gradients by sub-group, or moves
    the trained weights through the host (stage3.py, defragment).
    """
    if settings.optimizer_on == "gpu":
        if settings.stage < 3:
            return 0, 0
        return settings.item * share, 0
    if settings.optimizer_on == "nvme":
        return MASTER_BYTES * share, settings.state_bytes * share
    if settings.stage < 3:
        return (MASTER_BYTES + settings.item) * share, 0
    return MASTER_BYTES * share + 2 * 4 * group, 0


def _pinned(settings: Settings, weights: Weights) -> dict[str, int]:
    """Return the page-locked memory: gradients and fp32 copies of the partition, and swap buffers."""
    item, share = settings.item, settings.share(weights.total)
    pinned: dict[str, int] = {}
    if settings.optimizer_on != "gpu" and settings.pins_optimizer:
        pinned["gradients"] = power_of_two(item * share)
        if settings.optimizer_on == "cpu":
            pinned["gradients"] += sum(power_of_two(4 * numel) for numel in _sub_groups(settings, weights))
        if settings.stage < 3:
            # The fp32 copy, and a buffer for one gradient (stage_1_and_2.py).
            pinned["master weights"] = power_of_two(4 * share)
            pinned["buckets"] = power_of_two(item * weights.largest)
            if settings.accumulation > 1:
                pinned["gradients"] += _partitions(settings, weights.trained)
    if settings.optimizer_on == "nvme":
        pinned["swap buffers"] = settings.buffer_count * 4 * min(settings.sub_group, share)
    return _with_parameters(pinned, settings, weights)


def _sub_groups(settings: Settings, weights: Weights) -> list[int]:
    """Return the elements of each sub-group (stage3.py, _create_fp16_sub_groups)."""
    if settings.stage < 3:
        return [settings.share(weights.total)]
    groups = [0]
    for numel in weights.trained:
        if groups[-1] >= settings.sub_group:
            groups.append(0)
        groups[-1] += settings.share(numel)
    return groups


def _with_parameters(pinned: dict[str, int], settings: Settings, weights: Weights) -> dict[str, int]:
    item, share = settings.item, settings.share(weights.total)
    if settings.parameters_on == "cpu":
        pinned["parameters"] = power_of_two(item * share) + _partitions(settings, weights.all)
    if settings.parameters_on == "nvme":
        pinned["swap buffers"] = pinned.get("swap buffers", 0) + item * settings.parameter_buffers
        pinned["parameters"] = power_of_two(item * min(share, settings.most_in_cpu))
        if share > settings.most_in_cpu:
            # A buffer for the rest, which stage3.py sizes by whole parameters instead of partitions.
            pinned["buckets"] = power_of_two(item * weights.total)
    return pinned


def _partitions(settings: Settings, numels: Iterable[int]) -> int:
    """Return the rank's partitions of parameters, each page-locked separately."""
    return sum(power_of_two(settings.item * settings.share(numel)) for numel in numels)


def _on_nvme(settings: Settings, weights: Weights, *, trained: bool) -> int:
    """Return the bytes in files: fp32 copies, after the first step all optimizer states, and parameters."""
    nbytes, share = 0, settings.share(weights.total)
    if settings.parameters_on == "nvme":
        nbytes += settings.item * settings.share(weights.parameters)
    if settings.optimizer_on == "nvme":
        nbytes += MASTER_BYTES * share
        if trained:
            nbytes += (MASTER_BYTES + settings.state_bytes) * share
    return nbytes


def _without_zeros(pools: Pools) -> Pools:
    return {pool: nbytes for pool, nbytes in pools.items() if nbytes}
