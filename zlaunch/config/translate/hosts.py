"""Translate flags about hosts and devices."""

import re
from collections.abc import Iterator

from zlaunch.config.translate.flags import Command, GivenFlag, Role, Roles, implied
from zlaunch.config.translate.parts import Note, Option, Piece, becomes, no_equivalent, not_needed

VISIBLE = "CUDA_VISIBLE_DEVICES"
HOSTFILE = "hosts"
"""Name of a hostfile that the user must write."""


def num_hosts(roles: Roles) -> int:
    """The number of hosts; of a range, the largest."""
    hosts = roles.get(Role.HOSTS)
    most = "1"
    if hosts:
        most = hosts.value.rpartition(":")[2]
    if most.isdigit():
        return int(most)
    return 1


def is_for_several_hosts(roles: Roles) -> bool:
    """Whether hosts are reached over the network, even if there is only one."""
    return num_hosts(roles) > 1 or Role.HOSTFILE in roles


def visible_devices(command: Command) -> GivenFlag | None:
    """Read the device numbers from a variable in front of the command."""
    value = command.environment.get(VISIBLE, "")
    if not re.fullmatch(r"\d+(,\d+)*", value):
        return None
    return implied(f"{VISIBLE}={value}", value)


def host_options(command: Command, roles: Roles) -> Iterator[Piece]:
    """Translate flags about hosts and devices."""
    for role, name in ((Role.INCLUDE, "--include"), (Role.EXCLUDE, "--exclude")):
        if role in roles:
            yield from becomes(roles[role], name, roles[role].value)
    if is_for_several_hosts(roles):
        yield from _several_hosts(command, roles)
    else:
        if Role.HOSTS in roles:
            yield not_needed(roles[Role.HOSTS], "without a hostfile zlaunch uses one host")
        yield from _one_host(command, roles)


def _several_hosts(command: Command, roles: Roles) -> Iterator[Piece]:
    hostfile = roles.get(Role.HOSTFILE)
    name = hostfile.value if hostfile else HOSTFILE
    yield Option("--hostfile", name)
    if hostfile:
        yield Note(hostfile.written, f"`--hostfile {name}`")
    if Role.HOSTS in roles:
        yield from _count_of_hosts(command, roles, name)
    for role in (Role.RANKS, Role.ALL_RANKS):
        if role in roles:
            yield not_needed(roles[role], f"`slots=` in `{name}` sets the ranks per host")
    for devices in (roles.get(Role.DEVICES), visible_devices(command)):
        if devices:
            yield no_equivalent(devices, "with a hostfile, use `--include HOST:0,1`")


def _count_of_hosts(command: Command, roles: Roles, name: str) -> Iterator[Piece]:
    hosts = roles[Role.HOSTS]
    if Role.HOSTFILE not in roles:
        slots = _ranks_per_host(roles) or "N"
        text = f"`--hostfile {name}`: write a line `HOST slots={slots}` for each host into `{name}`"
        yield Note(hosts.written, text)
    elif command.launcher.counts_hosts:
        yield no_equivalent(hosts, f"zlaunch uses all hosts in `{name}`, or those that `--include` names")
    else:
        yield not_needed(hosts, f"`{name}` names the hosts")
    if ":" in hosts.value:
        yield no_equivalent(hosts, "the number of hosts cannot change while a job runs")


def _ranks_per_host(roles: Roles) -> str | None:
    if Role.RANKS in roles:
        if roles[Role.RANKS].value.isdigit():
            return roles[Role.RANKS].value
        return None
    total = ""
    if Role.ALL_RANKS in roles:
        total = roles[Role.ALL_RANKS].value
    if total.isdigit():
        return str(int(total) // num_hosts(roles))
    return None


def _one_host(command: Command, roles: Roles) -> Iterator[Piece]:
    visible, chosen = visible_devices(command), roles.get(Role.DEVICES)
    filtered = Role.INCLUDE in roles or Role.EXCLUDE in roles
    if visible and (chosen or filtered):
        yield not_needed(visible, f"{command.launcher.name} ignores it here")
        visible = None
    ranks = roles.get(Role.RANKS) or roles.get(Role.ALL_RANKS)
    if ranks is None and command.launcher.ranks and not filtered:
        ranks = implied(command.launcher.name, command.launcher.ranks)
    if ranks and not ranks.value.isdigit():
        yield from _in_words(ranks)
        ranks = None
    devices = chosen or visible
    if devices:
        yield from _devices_by_number(command, devices, ranks)
    elif ranks:
        yield from becomes(ranks, "--gpus", ranks.value)


def _in_words(ranks: GivenFlag) -> Iterator[Piece]:
    if ranks.value in ("gpu", "auto"):
        yield not_needed(ranks, "zlaunch starts a rank on each GPU")
    else:
        yield no_equivalent(ranks, "zlaunch starts a rank on each GPU, or one on the CPU without GPUs")


def _devices_by_number(command: Command, devices: GivenFlag, ranks: GivenFlag | None) -> Iterator[Piece]:
    """Choose devices by number, one for each rank."""
    numbers = devices.value.replace(" ", "").rstrip(",").split(",")
    used = numbers[: int(ranks.value)] if ranks else numbers
    text = ",".join(used) + ("," if len(used) == 1 else "")
    yield from becomes(devices, "--gpus", text)
    if ranks is None:
        return
    if int(ranks.value) > len(numbers):
        yield no_equivalent(ranks, f"only {len(numbers)} are chosen, and zlaunch starts one rank on each")
    elif command.launcher.hostfile and devices == visible_devices(command):
        yield Note(
            ranks.written, f"`--gpus {text}`; {command.launcher.name} itself would take the first GPUs of all"
        )
    else:
        yield not_needed(ranks, "zlaunch starts one rank on each of these devices")
