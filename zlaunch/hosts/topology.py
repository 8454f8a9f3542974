"""Hosts and their slots; the syntax of DeepSpeed's hostfile and filters.

A slot is one accelerator, or one CPU rank on a machine without accelerators.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from zlaunch.errors import Finding, InputMissing, Place, Refused, WrongUsage

_HOST_LINE = re.compile(
    r"(?P<name>[^\s:]+)(?::|\s+slots\s*=\s*)(?P<slots>\d{1,6})(?:\s+max_slots\s*=\s*\d+)?\s*(?:#.*)?"
)
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Host:
    """A machine and the devices that a job may use there."""

    name: str
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HostLine:
    """A host and its place in the hostfile."""

    host: Host
    place: Place


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a rank runs."""

    rank: int
    host: str
    local_rank: int
    device: int


class Reach(Enum):
    """How zlaunch reaches the hosts of a job."""

    HERE = "here"
    """There is only this one."""
    SSH = "ssh"
    SRUN = "srun"
    """As steps of the Slurm job that zlaunch runs in."""
    JOINED = "joined"
    """Each host has a zlaunch of its own, which takes part."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The hosts of a job, in the order of their ranks."""

    hosts: tuple[Host, ...]
    reach: Reach = Reach.HERE

    @property
    def spans_hosts(self) -> bool:
        """Whether ranks may run on other hosts, even if a filter leaves a single one."""
        return self.reach is not Reach.HERE

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return sum(len(host.devices) for host in self.hosts)

    @property
    def selection(self) -> str:
        """The slots as DeepSpeed's `--include` takes them: `w0:0,1@w1:3`."""
        return "@".join(f"{host.name}:{','.join(map(str, host.devices))}" for host in self.hosts)

    def slots(self) -> Iterator[Slot]:
        """Number the ranks: host by host, device by device."""
        rank = 0
        for host in self.hosts:
            for local_rank, device in enumerate(host.devices):
                yield Slot(rank, host.name, local_rank, device)
                rank += 1


def read_hostfile(file: Path) -> tuple[HostLine, ...]:
    """Read a hostfile; raise InputMissing if there is none, Refused with every bad line."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InputMissing(f"cannot read the hostfile `{file}`: {reason}") from None
    lines, findings = parse_hostfile(text, str(file))
    if not lines and not findings:
        findings = [
            Finding(
                "no-hosts", "the hostfile names no host", "write `HOST slots=N`", place=Place(str(file), 1, 1)
            )
        ]
    if findings:
        raise Refused(findings)
    return lines


def parse_hostfile(text: str, file: str) -> tuple[tuple[HostLine, ...], list[Finding]]:
    """Read lines `HOST slots=N` or `HOST:N`; blank lines and `#` comments are skipped."""
    lines: dict[str, HostLine] = {}
    findings: list[Finding] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        host, place = _host(line.strip()), Place(file, number, 1)
        if isinstance(host, Host) and host.name in lines:
            before = lines[host.name].place.line
            host = Finding("duplicate-host", f"`{host.name}` is on line {before} and on line {number}")
        if isinstance(host, Host):
            lines[host.name] = HostLine(host, place)
        else:
            findings.append(replace(host, place=place))
    return tuple(lines.values()), findings


def too_many_slots(lines: Iterable[HostLine], most: Mapping[str, int]) -> list[Finding]:
    """Find hosts with more slots than they can have."""
    return [
        Finding(
            "too-many-slots",
            f"`{line.host.name}` has {most[line.host.name]} slots, not {len(line.host.devices)}",
            f"write `{line.host.name} slots={most[line.host.name]}`",
            place=line.place,
        )
        for line in lines
        if len(line.host.devices) > most.get(line.host.name, len(line.host.devices))
    ]


def _host(line: str) -> Host | Finding:
    match = _HOST_LINE.fullmatch(line)
    if match is None:
        hint = "write `HOST slots=N` or `HOST:N`, with a number"
        return Finding("bad-host-line", f"`{line}` is not a hostfile line", hint)
    name, count = match["name"], int(match["slots"])
    if "@" in name:
        user, _, host = name.partition("@")
        hint = f"set `User {user}` for {host} in ~/.ssh/config"
        return Finding("bad-host-line", f"`{name}` contains a user name", hint)
    if not _HOST_NAME.fullmatch(name):
        return Finding("bad-host-line", f"`{name}` is not a host name", "write `HOST slots=N`")
    if count == 0:
        hint = "delete the line, or write how many GPUs it has"
        return Finding("no-slots", f"`{name}` has no slots", hint)
    return Host(name, tuple(range(count)))


def select(hosts: Sequence[Host], include: str | None, exclude: str | None) -> tuple[Host, ...]:
    """Keep what DeepSpeed's `--include` names, or drop what its `--exclude` names.

    The grammar is `HOST[:SLOT[,SLOT…]]`, joined by `@`. Raises WrongUsage for anything else.
    """
    if include and exclude:
        raise WrongUsage("`--include` and `--exclude` cannot be used together", "keep one of them")
    if include:
        named = _filter(include, hosts, "--include")
        kept = [replace(host, devices=tuple(named[host.name])) for host in hosts if host.name in named]
    elif exclude:
        named = _filter(exclude, hosts, "--exclude")
        kept = [
            replace(host, devices=tuple(d for d in host.devices if d not in named.get(host.name, ())))
            for host in hosts
        ]
    else:
        return tuple(hosts)
    if not any(host.devices for host in kept):
        raise WrongUsage("`--exclude` leaves no slot", "exclude fewer slots")
    return tuple(host for host in kept if host.devices)


def _filter(text: str, hosts: Iterable[Host], flag: str) -> dict[str, list[int]]:
    known = {host.name: host for host in hosts}
    named: dict[str, list[int]] = {}
    colons: dict[str, bool] = {}
    for term in text.split("@"):
        name, colon, slots = term.partition(":")
        if name not in known:
            raise WrongUsage(f"`{flag}`: there is no host `{name}`; there are {_list(known)}")
        if colon and not re.fullmatch(r"\d{1,6}(,\d{1,6})*", slots):
            raise WrongUsage(f"`{flag}`: `{term}` is not `HOST:SLOT,SLOT`", f"write `{name}:0,1`")
        if colons.get(name, bool(colon)) != bool(colon):
            raise WrongUsage(f"`{flag}`: `{name}` is given both with and without slots", "keep one of them")
        colons[name] = bool(colon)
        wanted = [int(slot) for slot in slots.split(",")] if colon else list(known[name].devices)
        if missing := [slot for slot in wanted if slot not in known[name].devices]:
            raise WrongUsage(
                f"`{flag}`: `{name}` has no slot {missing[0]}; it has {_list(known[name].devices)}"
            )
        named[name] = sorted({*named.get(name, []), *wanted})
    return named


def _list(items: Iterable[object]) -> str:
    return ", ".join(f"`{item}`" for item in items)
