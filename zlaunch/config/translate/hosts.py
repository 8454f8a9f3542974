"""Translate flags about hosts and devices, by how the launcher gets to the other hosts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto

from zlaunch.config.translate.flags import Command, GivenFlag, Role, Roles, implied
from zlaunch.config.translate.parts import (
    Note,
    Option,
    Piece,
    becomes,
    no_equivalent,
    not_needed,
    sets,
)
from zlaunch.config.translate.shell import is_open, path_of, readable
from zlaunch.config.translate.wrappers import hides_variables, starter_on_many
from zlaunch.errors import WrongUsage, ZlaunchError
from zlaunch.hosts.cluster.topology import Host, read_hostfile

VISIBLE = "CUDA_VISIBLE_DEVICES"
HOSTFILE = "hosts"
"""Name of a hostfile that the user must write."""

OF_HOSTS = ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "RANK", "WORLD_SIZE")
"""Variables that tell zlaunch which of several hosts it is on, and which no launcher reads."""

_OF_TASKS = ("SLURM_", "OMPI_", "PMI", "MV2_", "FLUX_")
"""Beginnings of the variables that number the tasks of what starts them."""

_NUMBER_OF_THIS = (Role.NODE_RANK, Role.MASTER_ADDR, Role.MASTER_PORT, Role.ENDPOINT)


_WITH_ONE_HOST: Mapping[Role, str] = {
    Role.HOSTS: "without a hostfile zlaunch uses one host",
    **dict.fromkeys(
        (Role.NODE_RANK, Role.NO_SSH, Role.HOST_STARTER, Role.MASTER_ADDR, Role.ENDPOINT), "there is one host"
    ),
    Role.MASTER_PORT: "zlaunch picks a free port",
}


class Way(Enum):
    """How a launcher starts the ranks of all hosts."""

    HERE = auto()
    """There are no other hosts."""
    BY_HOSTFILE = auto()
    """It reaches the hosts of a hostfile from one of them."""
    NO_SSH = auto()
    """It is started on each host of a hostfile."""
    ON_EACH = auto()
    """It is started on each host, and told where the first one is."""
    BY_TASKS = auto()
    """Something in front of it starts it on each host, and tells zlaunch which one that is."""
    IN_SLURM = auto()
    """It reaches the hosts of a Slurm job, of which zlaunch knows the nodes."""


def way_of(command: Command, roles: Roles) -> Way:
    """Tell how the ranks of other hosts are started."""
    starter = roles.get(Role.HOST_STARTER)
    is_each = starter is not None and starter.value == "standard"
    is_without_ssh = Role.NO_SSH in roles or (starter is not None and starter.value == "nossh")
    if num_hosts(roles) == 1 and Role.HOSTFILE not in roles:
        return Way.HERE
    reaches_others = bool(command.launcher.hostfile) or Role.HOSTFILE in roles
    if is_each or not reaches_others:
        return Way.BY_TASKS if _numbers_hosts(command, roles) else Way.ON_EACH
    if is_without_ssh:
        return Way.BY_TASKS if _numbers_hosts(command, roles) else Way.NO_SSH
    if _is_in_slurm(command):
        return Way.IN_SLURM
    return Way.BY_HOSTFILE


def _numbers_hosts(command: Command, roles: Roles) -> bool:
    """Whether something in front starts it on each host, and says which one that is.

    It does not if it starts a single task, or if the number on the command line is not its own.
    """
    if command.task_starter is None or command.num_tasks == 1:
        return False
    rank = roles.get(Role.NODE_RANK)
    is_asked_for = any(
        given.flag.key == "rdzv_backend" and given.value != "static" for given in command.given
    )
    if rank is None or rank.place is not None or is_asked_for or command.num_tasks is not None:
        return True
    return any(name in readable(rank.value) for name in _OF_TASKS)


def may_use_deepspeeds_launcher(command: Command) -> bool:
    """Whether DeepSpeed's launcher may start the ranks: zlaunch refuses it where Slurm names the hosts."""
    return bool(command.launcher.hostfile) and not (command.task_starter or _is_in_slurm(command))


def _is_in_slurm(command: Command) -> bool:
    """Whether it runs once for an allocation of Slurm, of which zlaunch takes all nodes."""
    environ = command.around.environ
    front = (*command.around.front, *command.front)
    if command.task_starter or hides_variables(front):
        return False
    if "1" in (environ.get("SLURM_JOB_NUM_NODES"), environ.get("SLURM_NNODES")):
        return False
    words = [*command.environment.values(), *command.args.words, *(given.value for given in command.given)]
    return bool(environ.get("SLURM_JOB_ID")) or any("SLURM_" in readable(word) for word in words)


def num_hosts(roles: Roles) -> int | None:
    """The number of hosts; of a range, the largest; None if only the shell knows it."""
    hosts = roles.get(Role.HOSTS)
    if hosts is None:
        return 1
    most = hosts.value.rpartition(":")[2]
    if is_open(most):
        return None
    if most.isdigit():
        return int(most)
    return 1


def visible_devices(command: Command) -> GivenFlag | None:
    """Read the device numbers from a variable in front of the command."""
    value = command.environment.get(VISIBLE, "")
    if not re.fullmatch(r"\d+(,\d+)*", value):
        return None
    return implied(f"{VISIBLE}={value}", value)


def host_options(command: Command, roles: Roles) -> Iterator[Piece]:
    """Translate flags about hosts and devices."""
    way = way_of(command, roles)
    yield from _variables(command, way)
    yield from _address_by_mpi(command, way)
    match way:
        case Way.HERE:
            if command.task_starter and command.num_tasks != 1:
                yield Note(command.task_starter, "zlaunch trains one job with all tasks that it starts")
            yield from _filters(roles)
            yield from _one_host(command, roles)
        case Way.BY_HOSTFILE | Way.NO_SSH:
            yield from _from_hostfile(command, roles, way)
        case Way.ON_EACH:
            yield from _on_each(command, roles)
        case Way.BY_TASKS:
            yield from _without_names(command, roles, f"`{command.task_starter}` starts it on each host")
        case Way.IN_SLURM:
            yield from _without_names(command, roles, "zlaunch takes the nodes of the Slurm job")


def _address_by_mpi(command: Command, way: Way) -> Iterator[Note]:
    """Note what zlaunch needs to know of the hosts that MPI starts it on."""
    if way not in (Way.HERE, Way.BY_TASKS) or command.num_tasks == 1:
        return
    if command.task_starter not in (None, "srun"):
        known = [*command.prefix, *command.environment, *command.around.environ]
        if not any("MASTER_ADDR" in word for word in known):
            why = "on several hosts, add `-x MASTER_ADDR=HOST` with the host of rank 0"
            yield Note(command.task_starter, why)


def _variables(command: Command, way: Way) -> Iterator[Note]:
    """Note the variables that the launcher does not read, but zlaunch does."""
    for name in OF_HOSTS:
        value = command.environment.get(name)
        if value is not None and way is not Way.ON_EACH:
            about = f"{name}={value}"
            yield Note(about, f"left out: {command.launcher.name} does not read it, and zlaunch would")


def _filters(roles: Roles) -> Iterator[Piece]:
    for role, name in ((Role.INCLUDE, "--include"), (Role.EXCLUDE, "--exclude")):
        if role in roles:
            yield from becomes(roles[role], name, roles[role].value)


def _from_hostfile(command: Command, roles: Roles, way: Way) -> Iterator[Piece]:
    yield from _filters(roles)
    hostfile = roles.get(Role.HOSTFILE)
    name = HOSTFILE
    if hostfile is not None:
        name = hostfile.value
    yield Option("--hostfile", name)
    if hostfile is not None:
        yield Note(hostfile.written, f"`--hostfile {name}`")
        if not path_of(name).exists():
            yield Note(
                name, "is not here: DeepSpeed would train on this machine alone, and zlaunch would stop"
            )
    else:
        slots = _ranks_per_host(roles) or "N"
        text = f"`--hostfile {name}`: write a line `HOST slots={slots}` for each host into `{name}`"
        yield Note(roles[Role.HOSTS].written, text)
    yield from _slots_of_hostfile(command, roles, name)
    for devices in (roles.get(Role.DEVICES), visible_devices(command)):
        if devices:
            yield no_equivalent(devices, "with a hostfile, use `--include HOST:0,1`")
    if way is Way.NO_SSH:
        yield from _number_of_host(roles, name)
        return
    starter = roles.get(Role.HOST_STARTER)
    if starter is not None:
        yield not_needed(starter, "zlaunch starts other hosts over ssh")
    for role in _NUMBER_OF_THIS:
        if role in roles:
            yield not_needed(
                roles[role], "zlaunch starts all hosts from one of them, which meet at the first"
            )


def _number_of_host(roles: Roles, hostfile: str) -> Iterator[Piece]:
    yield Option("--no-ssh")
    for role in (Role.NO_SSH, Role.HOST_STARTER):
        if role in roles:
            yield Note(roles[role].written, "`--no-ssh`")
    if (rank := roles.get(Role.NODE_RANK)) is not None:
        yield from becomes(rank, "--node-rank", rank.value)
    if (port := roles.get(Role.MASTER_PORT)) is not None:
        yield from sets(port, "MASTER_PORT", port.value)
    if (address := roles.get(Role.MASTER_ADDR)) is not None:
        first = next(iter(_hosts_of(hostfile)), None)
        why = f"the hosts meet at the first one of `{hostfile}`"
        if first is not None and address.value not in (first.addr, first.name):
            why += f"; write `{first.name} slots={len(first.devices)} addr={address.value}` there to keep it"
        yield not_needed(address, why)


def _hosts_of(hostfile: str) -> tuple[Host, ...]:
    """Read a hostfile; nothing if it cannot be read here."""
    try:
        lines = read_hostfile(path_of(hostfile))
    except ZlaunchError:
        return ()
    return tuple(line.host for line in lines)


def _slots_of_hostfile(command: Command, roles: Roles, hostfile: str) -> Iterator[Piece]:
    """Choose the slots as the launcher does: the first hosts, and the first devices of each."""
    count, ranks = roles.get(Role.HOSTS), _each(roles)
    counts = [given for given in (count, ranks) if given is not None and Role.HOSTFILE in roles]
    is_filtered = Role.INCLUDE in roles or Role.EXCLUDE in roles
    if Role.HOSTFILE not in roles or is_filtered:
        for given in (ranks,) if count is None or Role.HOSTFILE not in roles else (count, ranks):
            if given is not None:
                yield not_needed(given, f"`{hostfile}` says how many ranks each host has")
        return
    if not counts:
        return
    if not command.launcher.counts_hosts and count is not None:
        yield not_needed(count, f"`{hostfile}` names the hosts")
    every = _hosts_of(hostfile)
    if not every:
        for given in counts:
            if command.launcher.counts_hosts or given is ranks:
                yield no_equivalent(
                    given,
                    f"`{hostfile}` cannot be read here; zlaunch uses all its slots, or `--include HOST:0,1`",
                )
        return
    yield from _first_slots(command, roles, every)


def _first_slots(command: Command, roles: Roles, every: Sequence[Host]) -> Iterator[Piece]:
    hosts = list(every)
    count, ranks = roles.get(Role.HOSTS), _each(roles)
    if count is not None and command.launcher.counts_hosts and count.value.isdigit():
        hosts = hosts[: int(count.value)]
    if ranks is not None and (each := _ranks_per_host(roles)) is not None:
        wanted = tuple(range(int(each)))
        short = next((host for host in hosts if len(host.devices) < len(wanted)), None)
        if short is not None:
            yield no_equivalent(ranks, f"`{short.name}` has only {len(short.devices)} slots in the hostfile")
        hosts = [replace(host, devices=host.devices[: len(wanted)]) for host in hosts]
    chosen = [given for given in (count, ranks) if given is not None]
    if not command.launcher.counts_hosts:
        chosen = [given for given in chosen if given is not count]
    if hosts == list(every):
        for given in chosen:
            yield not_needed(given, "the hostfile says the same")
        return
    text = "@".join(f"{host.name}:{','.join(map(str, host.devices))}" for host in hosts)
    yield Option("--include", text)
    for given in chosen:
        yield Note(given.written, f"`--include {text}`")


def _each(roles: Roles) -> GivenFlag | None:
    """The flag that says how many ranks a host has, or all hosts together."""
    return roles.get(Role.RANKS) or roles.get(Role.ALL_RANKS)


def _ranks_per_host(roles: Roles) -> str | None:
    """The ranks of each host; None unless that is a number."""
    ranks = roles.get(Role.RANKS)
    if ranks is not None:
        if ranks.value.isdigit():
            return ranks.value
        return None
    total, count = roles.get(Role.ALL_RANKS), num_hosts(roles)
    if total is not None and total.value.isdigit() and count:
        return str(int(total.value) // count)
    return None


def _on_each(command: Command, roles: Roles) -> Iterator[Piece]:
    """Tell each zlaunch which of the hosts it is on, as the launcher was told."""
    hosts, rank = roles[Role.HOSTS], roles.get(Role.NODE_RANK)
    _refuse_one_number_for_many(command, rank)
    yield from sets(hosts, "NNODES", hosts.value.rpartition(":")[2])
    if ":" in hosts.value:
        yield no_equivalent(hosts, "the number of hosts cannot change while a job runs")
    if rank is None:
        numbered = implied(command.launcher.name, command.environment.get("NODE_RANK", "0"))
        yield from sets(numbered, "NODE_RANK", numbered.value)
        if "NODE_RANK" not in command.environment:
            yield Note("NODE_RANK", "number the hosts from 0: write 1 on the next one, and so on")
    else:
        yield from sets(rank, "NODE_RANK", rank.value)
    yield from _first_host(command, roles)
    yield from _ranks_of_node(command, roles)
    if (starter := roles.get(Role.HOST_STARTER)) is not None:
        why = "zlaunch, too, is started on each host"
        if starter.value != "standard":
            why = (
                "without a hostfile, zlaunch is started on each host; with one, give `--hostfile FILE` on one"
            )
        yield not_needed(starter, why)
    for role in (Role.HOSTFILE, Role.INCLUDE, Role.EXCLUDE):
        if role in roles:
            yield not_needed(
                roles[role], f"{command.launcher.name} does not read it: it is started on each host"
            )


def _refuse_one_number_for_many(command: Command, rank: GivenFlag | None) -> None:
    """Raise WrongUsage where each host would be told the same number."""
    name, is_told_one = starter_on_many((*command.around.front, *command.front)) or ("", True)
    if is_told_one or (rank is not None and not rank.value.isdigit()):
        return
    raise WrongUsage(
        f"`{name}` starts the same command on each host, and zlaunch would not know which of them it is on",
        "start it on one of them: `zlaunch train --hosts HOST,HOST …` starts the ranks of all over ssh",
    )


def _first_host(command: Command, roles: Roles) -> Iterator[Piece]:
    endpoint, address, port = (
        roles.get(role) for role in (Role.ENDPOINT, Role.MASTER_ADDR, Role.MASTER_PORT)
    )
    if endpoint is not None:
        name, _, number = endpoint.value.rpartition(":")
        if not name:
            name, number = endpoint.value, ""
        yield from sets(endpoint, "MASTER_ADDR", name)
        if number:
            yield from sets(endpoint, "MASTER_PORT", number)
        for unused in (address, port):
            if unused is not None:
                yield not_needed(unused, f"`{endpoint.written}` says where the hosts meet")
        return
    if address is not None:
        yield from sets(address, "MASTER_ADDR", address.value)
    elif "MASTER_ADDR" not in command.environment:
        local = implied(command.launcher.name, "127.0.0.1")
        yield from sets(local, "MASTER_ADDR", local.value)
        yield Note("MASTER_ADDR", "write the name of the first host, if the hosts are several machines")
    if port is not None:
        yield from sets(port, "MASTER_PORT", port.value)


def _ranks_of_node(command: Command, roles: Roles) -> Iterator[Piece]:
    """Choose the devices of this host."""
    each, written = _ranks_per_host(roles), _each(roles)
    of_hosts = (*_WITH_ONE_HOST, Role.ALL_RANKS)
    kept = {role: given for role, given in roles.items() if role not in of_hosts}
    if each is not None and written is not None:
        kept[Role.RANKS] = replace(written, value=each)
    elif written is not None and written.flag.becomes is Role.ALL_RANKS:
        yield no_equivalent(written, "zlaunch starts a rank on each device of a host; add `--gpus N` for N")
    yield from _one_host(command, kept)


def _without_names(command: Command, roles: Roles, why: str) -> Iterator[Piece]:
    """Leave out what zlaunch is told by what has started it."""
    left_out = (*_NUMBER_OF_THIS, Role.HOSTFILE, Role.HOSTS, Role.NO_SSH, Role.HOST_STARTER)
    for role in left_out:
        if role in roles:
            yield not_needed(roles[role], why)
    for role in (Role.INCLUDE, Role.EXCLUDE):
        if role in roles:
            yield no_equivalent(roles[role], f"{why}, and all of them; choose devices with `--gpus`")
    kept: dict[Role, GivenFlag] = {**roles}
    kept.pop(Role.INCLUDE, None)
    kept.pop(Role.EXCLUDE, None)
    yield from _ranks_of_node(command, kept)


def _one_host(command: Command, roles: Roles) -> Iterator[Piece]:
    if num_hosts(roles) == 1:
        for role in _WITH_ONE_HOST:
            if role in roles and not _is_written_by_accelerate(role, roles):
                yield not_needed(roles[role], _WITH_ONE_HOST[role])
    visible, chosen = visible_devices(command), roles.get(Role.DEVICES)
    filtered = Role.INCLUDE in roles or Role.EXCLUDE in roles
    if visible and (chosen or filtered):
        yield not_needed(visible, f"{command.launcher.name} ignores it here")
        visible = None
    ranks = _each(roles)
    if ranks is None and command.launcher.ranks and not filtered:
        ranks = implied(command.launcher.name, command.launcher.ranks)
    if ranks and not (ranks.value.isdigit() or is_open(ranks.value)):
        yield from _ranks_in_words(ranks)
        ranks = None
    devices = chosen or visible
    if devices:
        yield from _devices_by_number(command, devices, ranks)
    elif ranks:
        yield from becomes(ranks, "--gpus", ranks.value)


def _is_written_by_accelerate(role: Role, roles: Roles) -> bool:
    """Whether a field is one that `accelerate config` writes for one host, too."""
    return role is Role.NODE_RANK and roles[role].place is not None


def _ranks_in_words(ranks: GivenFlag) -> Iterator[Piece]:
    if ranks.value in ("gpu", "auto"):
        yield not_needed(ranks, "zlaunch starts a rank on each GPU")
    else:
        yield no_equivalent(ranks, "zlaunch starts a rank on each GPU, or one on the CPU without GPUs")


def _devices_by_number(command: Command, devices: GivenFlag, ranks: GivenFlag | None) -> Iterator[Piece]:
    """Choose devices by number, one for each rank."""
    numbers = devices.value.replace(" ", "").rstrip(",").split(",")
    used = numbers
    if ranks is not None and ranks.value.isdigit():
        used = numbers[: int(ranks.value)]
    text = ",".join(used)
    if len(used) == 1:
        text += ","
    yield from becomes(devices, "--gpus", text)
    if ranks is None:
        return
    if not ranks.value.isdigit():
        yield no_equivalent(ranks, f"{len(numbers)} devices are chosen, and zlaunch starts one rank on each")
    elif int(ranks.value) > len(numbers):
        yield no_equivalent(ranks, f"only {len(numbers)} are chosen, and zlaunch starts one rank on each")
    elif command.launcher.hostfile and devices == visible_devices(command):
        yield Note(
            ranks.written, f"`--gpus {text}`; {command.launcher.name} itself would take the first GPUs of all"
        )
    else:
        yield not_needed(ranks, "zlaunch starts one rank on each of these devices")
