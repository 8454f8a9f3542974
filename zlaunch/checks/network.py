"""Checks of the network of a host: its interfaces, its own name, and the way to the model hub."""

from collections.abc import Iterator

from zlaunch.checks.requirements import Requirements
from zlaunch.checks.result import CheckResult, Status, judged
from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.facts import MachineFacts

_USED_BY = {"cuda": "NCCL_SOCKET_IFNAME", "cpu": "GLOO_SOCKET_IFNAME"}
"""Accelerator → the variable that its ranks use, in the order of `SOCKET_VARIABLES`."""


def interfaces(facts: MachineFacts, needs: Requirements) -> Iterator[CheckResult]:
    """Find variables that choose an interface which is not there."""
    if facts.network is None or facts.hardware is None:
        return
    names = sorted(interface.name for interface in facts.network.interfaces)
    for variable, value in {**facts.network.chosen, **needs.socket_variables}.items():
        wanted = tuple(prefix.lstrip("=").partition(":")[0] for prefix in value.split(","))
        if value.startswith("^") or any(name.startswith(wanted) for name in names):
            continue
        text, hint = f"there is no such interface; there are {', '.join(names)}", f"`unset {variable}`"
        if needs.crosses_hosts and variable == _USED_BY[facts.hardware.accelerator]:
            message = f"{variable} is `{value}`, but {text}"
            finding = Finding("no-interface", message, hint, severity=Severity.FAILS_LATER)
            yield judged(variable, f"{value}, but {text}", finding)
        else:
            yield CheckResult(variable, Status.WARNING, f"{value}, but {text}", hint)


def own_name(facts: MachineFacts, needs: Requirements) -> Iterator[CheckResult]:
    """Find a host whose name means the loopback to itself."""
    addresses, network = facts.own_addresses, facts.network
    if not needs.crosses_hosts or not addresses or network is None or network.chosen:
        return
    if all(address.startswith("127.") or address == "::1" for address in addresses):
        text = f"{network.hostname} is {addresses[0]} to itself: ranks on the CPU give that address to others"
        hint = "set GLOO_SOCKET_IFNAME to the interface that leads to the other hosts"
        yield CheckResult("own name", Status.NOTE, text, hint)


def model_hub(facts: MachineFacts, _: Requirements) -> Iterator[CheckResult]:
    """Show whether models can be downloaded."""
    hub = facts.hub
    if hub is None:
        return
    through = f" through {hub.proxy}" if hub.proxy else ""
    if hub.offline:
        text = f"offline: {hub.offline} is set; models come from the cache"
        yield CheckResult("model hub", Status.NOTE, text)
    elif hub.error is None:
        yield CheckResult("model hub", Status.OK, f"{hub.endpoint}{through}")
    else:
        text = f"{hub.endpoint} is not reachable{through}: {hub.error}"
        hint = "set HF_HUB_OFFLINE=1 to train with models from the cache, or HF_ENDPOINT to a mirror"
        yield CheckResult("model hub", Status.WARNING, text, hint)


def speed_text(megabits: int | None) -> str:
    """Write the speed of an interface: `100 Gbit/s`."""
    return "" if megabits is None else f"{megabits / 1000:g} Gbit/s"
