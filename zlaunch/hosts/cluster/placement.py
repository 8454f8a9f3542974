"""Decide which ranks run where."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.hosts.cluster.topology import Host, HostLine, Reach, Topology, select
from zlaunch.hosts.machine.resources import Machine
from zlaunch.job.spec import DeviceChoice, GpuChoice, JobSpec

DEFAULT_CPU_RANKS = 2
"""The minimum for which ZeRO partitions anything."""


def refuse_contradictions(job: JobSpec) -> None:
    """Raise WrongUsage for options about hosts and devices that contradict each other."""
    if job.gpus is not None and (job.include or job.exclude):
        raise WrongUsage("`--gpus` and `--include` or `--exclude` both choose devices", "keep one of them")
    if job.hostfile is not None and job.hosts is not None:
        raise WrongUsage("`--hostfile` and `--hosts` both name the hosts", "keep one of them")
    if job.gpus is not None and job.names_hosts:
        flag = "--hostfile"
        if job.hosts is not None:
            flag = "--hosts"
        raise WrongUsage("`--gpus` applies only to this machine", f"with `{flag}`, use `--include HOST:0,1`")


def choose_slots(lines: Iterable[HostLine], choice: DeviceChoice) -> Topology:
    """Choose the slots of a hostfile that a job uses; raise WrongUsage for one that is not there."""
    hosts = [line.host for line in lines]
    return Topology(select(hosts, choice.include, choice.exclude), reach=Reach.SSH)


def uncounted_hosts(lines: Iterable[HostLine]) -> list[Host]:
    """Return the hosts without a number of slots."""
    return [line.host for line in lines if not line.host.devices]


def count_slots(lines: Iterable[HostLine], machines: Mapping[str, Machine]) -> tuple[HostLine, ...]:
    """Give hosts without a number of slots one for each GPU, or what a machine without GPUs gets."""
    counted = []
    for line in lines:
        host = line.host
        if not host.devices:
            count = len(machines[host.name].gpus) or DEFAULT_CPU_RANKS
            host = replace(host, devices=tuple(range(count)))
        counted.append(replace(line, host=host))
    return tuple(counted)


def assign_ranks(machine: Machine, choice: DeviceChoice) -> Topology:
    """Choose the devices of this machine that a job uses; raise Unavailable if they do not exist."""
    if machine.gpus:
        devices = _chosen_devices(choice.gpus, machine)
    else:
        devices = tuple(range(_cpu_ranks(choice.gpus, machine)))
    return Topology(select([Host("localhost", devices)], choice.include, choice.exclude))


def most_slots(num_gpus: int, num_cores: int) -> int:
    """Most ranks a machine can have: one per GPU, or one per core but at least two."""
    return num_gpus or max(DEFAULT_CPU_RANKS, num_cores)


def _cpu_ranks(choice: GpuChoice | None, machine: Machine) -> int:
    if choice is None:
        return DEFAULT_CPU_RANKS
    if choice.devices is not None:
        raise Unavailable("this machine has no GPU to choose", "`--gpus 2` starts two ranks on the CPU")
    count = choice.count or DEFAULT_CPU_RANKS
    most = most_slots(0, machine.num_cores)
    if count > most:
        raise Unavailable(
            f"cannot start {count} ranks: this machine has no GPU, and {machine.num_cores} CPU cores",
            f"use `--gpus {most}` or less",
        )
    return count


def _chosen_devices(choice: GpuChoice | None, machine: Machine) -> tuple[int, ...]:
    visible = tuple(gpu.index for gpu in machine.gpus)
    names = ", ".join(str(index) for index in visible)
    if choice is None:
        return tuple(sorted(visible))
    if choice.devices is None:
        if (count := choice.count or 0) > len(visible):
            raise Unavailable(
                f"cannot use {count} GPUs: {len(visible)} are visible ({names})",
                f"use `--gpus {len(visible)}` or less",
            )
        return tuple(sorted(visible[: choice.count]))
    for device in choice.devices:
        if device in machine.hidden_gpus:
            raise Unavailable(f"GPU {device} is hidden by CUDA_VISIBLE_DEVICES; visible are {names}")
        if device not in visible:
            raise Unavailable(f"there is no GPU {device}; there are {names}")
    return tuple(sorted(choice.devices))
