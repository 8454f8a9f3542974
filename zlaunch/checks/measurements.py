"""Verdicts on what hosts have measured among each other: clocks, and the way to the first one."""

from collections.abc import Iterator, Mapping, Sequence

from zlaunch.checks.across_hosts import HostResult, usual
from zlaunch.checks.network import speed_text
from zlaunch.checks.result import CheckResult, Status
from zlaunch.hosts.agent.examination import Clock, Examined, median_offset

MOST_SKEW_SECONDS = 1.0


def judge_measurements(hosts: Sequence[Examined]) -> Iterator[HostResult]:
    """Judge clocks, interfaces, and connections to the first host."""
    yield from _clocks({host.name: host.clock for host in hosts if host.clock is not None})
    yield from _networks(hosts)
    yield from _rendezvous(hosts)
    yield from _packets(hosts)


def _clocks(clocks: Mapping[str, Clock]) -> Iterator[HostResult]:
    middle = median_offset([*clocks.values()])
    if len(clocks) < 2:
        return
    for name, clock in clocks.items():
        skew = clock.offset - middle
        text = f"{_signed(skew)} (±{_brief(clock.error)})"
        if abs(skew) - clock.error > MOST_SKEW_SECONDS:
            hint = f"on {name}: `timedatectl set-ntp true`, or `chronyc makestep`"
            yield name, CheckResult("clock", Status.WARNING, f"{text} from the others", hint, amount=skew)
        else:
            yield name, CheckResult("clock", Status.OK, text, amount=skew)


def _signed(seconds: float) -> str:
    if seconds < 0:
        return f"-{_brief(-seconds)}"
    return f"+{_brief(seconds)}"


def _brief(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.1f} ms"


def _networks(hosts: Sequence[Examined]) -> Iterator[HostResult]:
    """The interface with which each host reaches the first one."""
    interfaces = {host.name: host.interface(hosts[0]) for host in hosts}
    used = {name: interface for name, interface in interfaces.items() if interface is not None}
    common = usual({name: interface.mtu for name, interface in used.items()})
    for name, interface in used.items():
        speed = speed_text(interface.speed)
        text = f"{interface.name}, MTU {interface.mtu}{speed and ', '}{speed}"
        if interface.mtu == common:
            yield name, CheckResult("interface", Status.OK, text)
        else:
            hint = f"on {name}: `ip link set {interface.name} mtu {common}`"
            what = f"{text}, but MTU {common} on the others: large messages may stall"
            yield name, CheckResult("interface", Status.WARNING, what, hint)


def _rendezvous(hosts: Sequence[Examined]) -> Iterator[HostResult]:
    first = hosts[0].name
    for host in hosts:
        if host.reach is None:
            continue
        port, addresses = host.reach.port, host.reach.addresses
        if host.name == first:
            text = f"cannot listen on port {port}: {next(iter(addresses.values()))}"
            yield first, CheckResult("rendezvous", Status.ERROR, text, "`--port N`")
            continue
        failed = {address: error for address, error in addresses.items() if error is not None}
        if not failed:
            yield host.name, CheckResult("rendezvous", Status.OK, f"a port of {first} is reachable")
        else:
            yield host.name, _unreached(first, port, failed, addresses)


def _packets(hosts: Sequence[Examined]) -> Iterator[HostResult]:
    """Whether packets as large as the interface allows arrive at the first host."""
    for host in hosts:
        if host.reach is not None and host.reach.mtu is not None:
            reached = [address for address, error in host.reach.addresses.items() if error is None]
            yield host.name, _mtu(host.name, hosts[0].name, reached[0], *host.reach.mtu)


def _mtu(name: str, first: str, address: str, size: int, state: str) -> CheckResult:
    match state:
        case "arrives":
            return CheckResult("MTU", Status.OK, f"packets of {size} bytes reach {first}")
        case "lost":
            text = (
                f"packets of {size} bytes do not reach {first}, but small ones do: large messages may stall"
            )
            hint = f"on {name}: `ping -M do -s 1400 {address}`, and other sizes, show what passes"
            return CheckResult("MTU", Status.WARNING, text, hint)
        case "no ping":
            hint = f"on {name}: `apt-get install iputils-ping`"
            return CheckResult("MTU", Status.NOTE, "not measured: there is no `ping`", hint)
        case "no answer":
            why = f"{first} does not answer `ping`"
        case _:
            why = f"`ping` failed: {state}"
    return CheckResult("MTU", Status.NOTE, f"not measured: {why}")


def _unreached(
    first: str, port: int, failed: Mapping[str, str], addresses: Mapping[str, str | None]
) -> CheckResult:
    errors = ", ".join(f"{address} port {port}: {error}" for address, error in failed.items())
    hint = f"open TCP ports to {first} in its firewall and on the way: `ip route get {next(iter(failed))}`"
    if len(failed) < len(addresses):
        works = next(address for address in addresses if address not in failed)
        return CheckResult(
            "rendezvous", Status.WARNING, f"{errors}; {works} is reachable", f"use {works} as its address"
        )
    return CheckResult("rendezvous", Status.ERROR, f"cannot connect to {first}: {errors}", hint)
