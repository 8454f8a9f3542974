"""Checks that compare hosts: versions, files, clocks, and the way to the first one."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

from zlaunch.checks.host import speed_text
from zlaunch.checks.row import Row, Status
from zlaunch.hosts.agent.examine import Clock, Examined, median_offset
from zlaunch.hosts.agent.questions import Facts
from zlaunch.job.stack import TESTED
from zlaunch.job.trainer_releases import numbers_of

MOST_SKEW_SECONDS = 1.0
_MUST_BE_EQUAL = ("torch", "deepspeed")
"""Ranks with different ones exchange messages that the others do not understand."""

HostRow = tuple[str, Row]
"""Name of a host, and a row of it."""


def compare(hosts: Sequence[Examined]) -> Iterator[HostRow]:
    """Compare the hosts that have answered."""
    answered = {one.name: one.facts for one in hosts if one.facts is not None and "python" in one.facts}
    yield from _same_machines(answered)
    yield from _pythons(answered)
    yield from _packages(answered)
    yield from _accelerators(answered)
    yield from _files(answered)
    yield from _clocks({one.name: one.clock for one in hosts if one.clock is not None})
    yield from _networks(hosts)
    yield from _rendezvous(hosts)
    yield from _packets(hosts)


def usual(values: Mapping[str, Hashable]) -> Hashable:
    """The value that most hosts have; of several, that of the first host."""
    return Counter(values.values()).most_common(1)[0][0] if values else None


def _same_machines(facts: Mapping[str, Facts]) -> Iterator[HostRow]:
    """Find hosts that are one machine under several names; containers on one machine are not."""
    first: dict[Hashable, str] = {}
    for name, one in facts.items():
        other = name if (identity := _identity(one)) is None else first.setdefault(identity, name)
        if other != name:
            text = f"the same machine as {other}: a job would start ranks on it twice"
            yield name, Row("machine", Status.WARNING, text, "name each machine once")


def _identity(facts: Facts) -> Hashable:
    """What only one machine, or one container on it, has; None if that is not certain.

    Restored copies of one virtual machine have the same boot id and hostname, but other addresses.
    """
    network = facts.get("network", {})
    identity = network.get("identity", {})
    addresses = frozenset(one["address"] for one in network.get("interfaces", ()) if one["name"] != "lo")
    is_certain = identity.get("boot") and identity.get("pid_namespace") and addresses - {None}
    return (*sorted(identity.items()), addresses) if is_certain else None


def _pythons(facts: Mapping[str, Facts]) -> Iterator[HostRow]:
    versions = {name: one["python"]["version"] for name, one in facts.items()}
    common = usual(versions)
    for name, version in versions.items():
        if version != common:
            is_far = numbers_of(version)[:2] != numbers_of(str(common))[:2]
            text = f"{version}, but {common} on the others"
            hint = "use the same environment on all hosts: `--python PATH`"
            yield name, Row("Python", Status.ERROR if is_far else Status.WARNING, text, hint)


def _packages(facts: Mapping[str, Facts]) -> Iterator[HostRow]:
    for package in TESTED:
        versions = {name: one["python"]["packages"].get(package) for name, one in facts.items()}
        common = usual(versions)
        for name, version in versions.items():
            if version == common:
                continue
            status = Status.ERROR if package in _MUST_BE_EQUAL else Status.WARNING
            text = f"{version or 'not installed'}, but {common or 'not installed'} on the others"
            wanted = package if common is None else f"{package}=={common}"
            python = facts[name]["python"]["executable"]
            hint = f"on {name}: `{python} -m pip install {wanted}`"
            yield name, Row(package, status, text, hint)


def _accelerators(facts: Mapping[str, Facts]) -> Iterator[HostRow]:
    """Hosts with and without GPUs cannot train together; other differences are only shown."""
    counts = {name: len(one["gpus"]) for name, one in facts.items() if "gpus" in one}
    for name, count in counts.items():
        if not count and any(counts.values()):
            yield (
                name,
                Row("GPUs", Status.ERROR, "none, but others have GPUs", f"remove {name} from the hosts"),
            )


def _files(facts: Mapping[str, Facts]) -> Iterator[HostRow]:
    names = [*dict.fromkeys(file for one in facts.values() for file in one.get("files", {}))]
    for file in names:
        hashes = {name: one["files"].get(file) for name, one in facts.items() if "files" in one}
        common = usual(hashes)
        for name, found in hashes.items():
            row = f"file {file.rpartition('/')[2]}"
            source = next((one for one, value in hashes.items() if value == common), "")
            hint = f"on {source}: `scp {file} {name}:{file}`"
            if found is None:
                yield name, Row(row, Status.ERROR, "is not there", hint)
            elif found != common:
                yield name, Row(row, Status.ERROR, "differs from that of the other hosts", hint)
            else:
                yield name, Row(row, Status.OK, "the same bytes")


def _clocks(clocks: Mapping[str, Clock]) -> Iterator[HostRow]:
    middle = median_offset([*clocks.values()])
    if len(clocks) < 2:
        return
    for name, clock in clocks.items():
        skew = clock.offset - middle
        text = f"{_signed(skew)} (±{_short(clock.error)})"
        if abs(skew) - clock.error > MOST_SKEW_SECONDS:
            hint = f"on {name}: `timedatectl set-ntp true`, or `chronyc makestep`"
            yield name, Row("clock", Status.WARNING, f"{text} from the others", hint, amount=skew)
        else:
            yield name, Row("clock", Status.OK, text, amount=skew)


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{_short(abs(seconds))}"


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _networks(hosts: Sequence[Examined]) -> Iterator[HostRow]:
    """The interface with which each host reaches the first one."""
    found = {one.name: one.interface(hosts[0]) for one in hosts}
    used = {name: interface for name, interface in found.items() if interface is not None}
    common = usual({name: interface["mtu"] for name, interface in used.items()})
    for name, interface in used.items():
        speed = speed_text(interface["speed"])
        text = f"{interface['name']}, MTU {interface['mtu']}{speed and ', '}{speed}"
        if interface["mtu"] == common:
            yield name, Row("interface", Status.OK, text)
        else:
            hint = f"on {name}: `ip link set {interface['name']} mtu {common}`"
            what = f"{text}, but MTU {common} on the others: large messages may stall"
            yield name, Row("interface", Status.WARNING, what, hint)


def _rendezvous(hosts: Sequence[Examined]) -> Iterator[HostRow]:
    first = hosts[0].name
    for one in hosts:
        if one.reach is None:
            continue
        port, addresses = one.reach.port, one.reach.addresses
        if one.name == first:
            error = next(iter(addresses.values()))
            yield (
                first,
                Row("rendezvous", Status.ERROR, f"cannot listen on port {port}: {error}", "`--port N`"),
            )
            continue
        failed = {address: error for address, error in addresses.items() if error is not None}
        if not failed:
            yield one.name, Row("rendezvous", Status.OK, f"a port of {first} is reachable")
        else:
            yield one.name, _unreached(first, port, failed, addresses)


def _packets(hosts: Sequence[Examined]) -> Iterator[HostRow]:
    """Whether packets as large as the interface allows arrive at the first host."""
    for one in hosts:
        if one.reach is not None and one.reach.mtu is not None:
            reached = [address for address, error in one.reach.addresses.items() if error is None]
            yield one.name, _mtu(one.name, hosts[0].name, reached[0], *one.reach.mtu)


def _mtu(name: str, first: str, address: str, size: int, state: str) -> Row:
    match state:
        case "arrives":
            return Row("MTU", Status.OK, f"packets of {size} bytes reach {first}")
        case "lost":
            text = (
                f"packets of {size} bytes do not reach {first}, but small ones do: large messages may stall"
            )
            hint = f"on {name}: `ping -M do -s 1400 {address}`, and other sizes, show what passes"
            return Row("MTU", Status.WARNING, text, hint)
        case "no ping":
            hint = f"on {name}: `apt-get install iputils-ping`"
            return Row("MTU", Status.NOTE, "not measured: there is no `ping`", hint)
    why = f"{first} does not answer `ping`" if state == "no answer" else f"`ping` failed: {state}"
    return Row("MTU", Status.NOTE, f"not measured: {why}")


def _unreached(first: str, port: int, failed: Mapping[str, str], addresses: Mapping[str, str | None]) -> Row:
    errors = ", ".join(f"{address} port {port}: {error}" for address, error in failed.items())
    hint = f"open TCP ports to {first} in its firewall and on the way: `ip route get {next(iter(failed))}`"
    if len(failed) < len(addresses):
        works = next(address for address in addresses if address not in failed)
        return Row(
            "rendezvous", Status.WARNING, f"{errors}; {works} is reachable", f"use {works} as its address"
        )
    return Row("rendezvous", Status.ERROR, f"cannot connect to {first}: {errors}", hint)
