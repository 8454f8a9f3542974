"""Hosts and their slots; the syntax of DeepSpeed's hostfile, with more that ssh needs, and of its filters.

A slot is one accelerator, or one CPU rank on a machine without accelerators.
"""

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from ipaddress import ip_address
from pathlib import Path

from zlaunch.errors import Finding, InputMissing, Place, Refused, WrongUsage
from zlaunch.frozen import dataclass

_IPV6 = r"[0-9A-Fa-f:.]+(?:%[\w.-]+)?"
"""With the interface of a link-local address: `fe80::1%eth0`."""
_NAME = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?\.?"
_TARGET = (
    rf"(?a)(?:(?P<user>[A-Za-z_][\w.@-]*)@)?"
    rf"(?:\[(?P<address>{_IPV6})\]|(?P<name>{_NAME}|(?=[^:]*:[^:]*:){_IPV6}))"
    r"(?::(?P<slots>\d{1,6}))?"
)
_OPTIONS = {
    "slots": r"(?a)\d{1,6}",
    "max_slots": r"(?a)\d+",
    "port": r"(?a)[1-9]\d{0,4}",
    "addr": rf"(?a){_NAME}|{_IPV6}|\[{_IPV6}\]",
    "python": r"/\S+|\w[\w.+-]*",
}
_VALUES = {
    "slots": "not a number of slots",
    "max_slots": "not a number of slots",
    "port": "not a port",
    "addr": "neither a host name nor an address",
    "python": "neither an absolute path nor the name of a program",
}
"""What a value of these options is if it is wrong."""
_FOUR_NUMBERS = r"(?a)\d+(\.\d+){3}"
_HOW = "write `HOST slots=N`, or `USER@HOST slots=N port=P addr=ADDRESS python=/PATH`"


@dataclass(frozen=True, slots=True)
class Host:
    """A machine and the devices that a job may use there."""

    name: str
    devices: tuple[int, ...]
    """None of them until it was counted, in a line that does not say."""
    user: str | None = None
    port: int | None = None
    """User and port of its sshd; None for what ssh's own configuration says."""
    addr: str | None = None
    """The address at which the other hosts reach it."""
    python: str | None = None
    """The interpreter of its ranks: a path, or a program on its PATH; None for the one of the job."""

    def line(self) -> str:
        """Write it as a line of a hostfile."""
        line = f"{self.name} slots={max(self.devices) + 1}"
        if self.user:
            line = f"{self.user}@{line}"
        if self.port:
            line += f" port={self.port}"
        if self.addr:
            line += f" addr={self.addr}"
        if self.python:
            line += f" python={self.python}"
        return line


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

    @property
    def is_inside_job(self) -> bool:
        """Whether zlaunch runs on the nodes of a job that something else has started."""
        return self in (Reach.SRUN, Reach.JOINED)


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
        reason: str | None = "not a text file"
        if isinstance(error, OSError):
            reason = error.strerror
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


def read_hosts(file: Path | None, words: str | None) -> tuple[HostLine, ...]:
    """Read the hosts of a job from its hostfile or from `--hosts`."""
    if file is not None:
        return read_hostfile(file)
    if words is None:
        return ()
    return parse_hosts(words)


def parse_hostfile(text: str, file: str) -> tuple[tuple[HostLine, ...], list[Finding]]:
    """Read `HOST slots=N` lines; blank lines and `#` comments are skipped."""
    numbered = enumerate(text.removeprefix("\ufeff").split("\n"), start=1)  # of some editors
    return _read_lines(
        (line.strip(), Place(file, number, 1))
        for number, line in numbered
        if line.strip() and not line.lstrip().startswith("#")
    )


def parse_hosts(text: str) -> tuple[HostLine, ...]:
    """Read the value of `--hosts`: lines of a hostfile, with commas between them; raise WrongUsage."""
    lines, findings = _read_lines((word.strip(), Place("--hosts", 1, 1)) for word in text.split(","))
    if findings:
        raise WrongUsage(f"`--hosts {text}`: {findings[0].message}", "write `--hosts HOST:8,HOST:4`")
    return lines


def _read_lines(texts: Iterable[tuple[str, Place]]) -> tuple[tuple[HostLine, ...], list[Finding]]:
    lines: dict[object, HostLine] = {}
    findings: list[Finding] = []
    for line, place in texts:
        host = _host(line)
        if isinstance(host, Finding):
            findings.append(replace(host, place=place))
        elif (first := lines.get(_identity(host.name))) is not None:
            findings.append(_duplicate(first, HostLine(host, place)))
        else:
            lines[_identity(host.name)] = HostLine(host, place)
    return tuple(lines.values()), findings


def _duplicate(first: HostLine, second: HostLine) -> Finding:
    where = f"on line {first.place.line} and on line {second.place.line}"
    if first.place.line == second.place.line:
        where = "named twice"
    if first.host.name != second.host.name:
        where += f", there as `{second.host.name}`"
    message = f"`{first.host.name}` is {where}"
    return Finding("duplicate-host", message, "delete one of the two", place=second.place)


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
    if not line:
        return Finding("bad-host-line", "a host has no name", _HOW)
    words = re.sub(r"\s*=\s*", "=", re.split(r"(?:^|\s)#", line)[0]).split()
    match = re.fullmatch(_TARGET, words[0])
    if match is None or not _is_name(match["address"] or match["name"]):
        before, colon, behind = words[0].rpartition(":")
        if colon and re.fullmatch(_TARGET, before):
            return Finding("bad-host-line", f"`{words[0]}`: `{behind}` is not a number of slots", _HOW)
        return Finding("bad-host-line", f"`{line}` does not begin with a host name", _HOW)
    given, wrong = _host_options(words[1:])
    if wrong is not None:
        return Finding("bad-host-line", wrong, _HOW)
    name, slots = match["address"] or match["name"], match["slots"]
    if slots is not None and "slots" in given:
        return Finding("bad-host-line", f"`{line}` gives the slots twice", _HOW)
    slots = slots or given.get("slots")
    if slots is not None and int(slots) == 0:
        hint = "delete the line, or write how many GPUs it has"
        return Finding("no-slots", f"`{name}` has no slots", hint)
    devices = tuple(range(int(slots or 0)))
    port = int(given.get("port", 0)) or None
    addr = None
    if "addr" in given:
        addr = given["addr"].strip("[]")
    return Host(name, devices, match["user"], port, addr, given.get("python"))


def _is_name(name: str) -> bool:
    """Whether a word is a host name or an address; four numbers are an address, or nothing."""
    with contextlib.suppress(ValueError):
        return not (":" in name or re.fullmatch(_FOUR_NUMBERS, name)) or bool(ip_address(name))
    return False


def _identity(name: str) -> object:
    """What two names of the same host have in common, as far as the names themselves say."""
    with contextlib.suppress(ValueError):
        return ip_address(name)
    return name.lower().removesuffix(".")


def _host_options(words: Iterable[str]) -> tuple[dict[str, str], str | None]:
    """Read `NAME=VALUE` words; return them, and what is wrong with the first that is."""
    given: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in _OPTIONS:
            return given, f"`{word}` is not an option of a host"
        if name in given:
            return given, f"`{name}=` is given twice"
        if not re.fullmatch(_OPTIONS[name], value) or not _is_possible(name, value):
            return given, f"`{word}`: {_VALUES[name]}"
        given[name] = value
    return given, None


def _is_possible(name: str, value: str) -> bool:
    if name == "port":
        return int(value) < 1 << 16
    return name != "addr" or _is_name(value.strip("[]"))


def beyond_deepspeed(lines: Iterable[HostLine]) -> list[Finding]:
    """Find settings of hosts for which DeepSpeed's runner has no option."""
    return [finding for line in lines if (finding := _not_for_deepspeed(line)) is not None]


def _not_for_deepspeed(line: HostLine) -> Finding | None:
    host = line.host
    settings: dict[str, object] = {"User": host.user, "Port": host.port}
    if ":" in host.name:
        settings["HostName"] = host.name
    given = [f"`{name} {value}`" for name, value in settings.items() if value is not None]
    if host.python is not None:
        message = f"DeepSpeed's launcher takes one Python for all hosts, not one for `{host.name}`"
        hint = "use `--launcher torchrun`, or `--python PATH` for all hosts"
        return Finding("not-for-deepspeed", message, hint, place=line.place)
    if not given and host.addr is None:
        return None
    hint = "use `--launcher torchrun`"
    if host.addr is None:
        hint = f"{hint}, or set {', '.join(given)} for it in ~/.ssh/config"
    message = f"DeepSpeed's launcher has no option for the user, port or address of `{host.name}`"
    return Finding("not-for-deepspeed", message, hint, place=line.place)


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
        name, colon, slots = _term(term, known)
        if name not in known:
            raise WrongUsage(f"`{flag}`: there is no host `{name}`; there are {_enumeration(known)}")
        if colon and not re.fullmatch(r"\d{1,6}(,\d{1,6})*", slots):
            raise WrongUsage(f"`{flag}`: `{term}` is not `HOST:SLOT,SLOT`", f"write `{name}:0,1`")
        if colons.get(name, bool(colon)) != bool(colon):
            raise WrongUsage(f"`{flag}`: `{name}` is given both with and without slots", "keep one of them")
        colons[name] = bool(colon)
        wanted = list(known[name].devices)
        if colon:
            wanted = [int(slot) for slot in slots.split(",")]
        if missing := [slot for slot in wanted if slot not in known[name].devices]:
            raise WrongUsage(
                f"`{flag}`: `{name}` has no slot {missing[0]}; it has {_enumeration(known[name].devices)}"
            )
        named[name] = sorted({*named.get(name, []), *wanted})
    return named


def _term(term: str, known: Collection[str]) -> tuple[str, str, str]:
    """Split `HOST:SLOTS`; an IPv6 address has colons, too."""
    name, colon, slots = term.rpartition(":")
    if term.strip("[]") in known or not colon:
        return term.strip("[]"), "", ""
    return name.strip("[]"), colon, slots


def _enumeration(items: Iterable[object]) -> str:
    return ", ".join(f"`{item}`" for item in items)
