"""What ssh says when it does not get in, told apart, and what to type then."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from zlaunch.hosts.agent.ssh import CONNECT_SECONDS, destination
from zlaunch.hosts.cluster.topology import Host
from zlaunch.process import output_of

_SSH = Path("~/.ssh")


class SshTarget(NamedTuple):
    """A host as ssh's own configuration resolves it."""

    asked: Host
    address: str
    port: str

    @property
    def typed(self) -> str:
        """How ssh is told the host, with its user and port if the hostfile has them."""
        return shlex.join(destination(self.asked))

    @property
    def scan(self) -> str:
        """The command that takes note of its host key; ssh-keyscan reads no configuration."""
        port = ""
        if self.port != "22":
            port = f"-p {self.port} "
        return f"`ssh-keyscan -H {port}{self.address} >> ~/.ssh/known_hosts`"


def target_of(host: Host) -> SshTarget:
    """Ask ssh where a host is."""
    printed = output_of(["ssh", "-G", *destination(host)], CONNECT_SECONDS) or ""
    settings = dict(line.split(" ", 1) for line in printed.splitlines() if " " in line)
    return SshTarget(host, settings.get("hostname", host.name), settings.get("port", "22"))


class SshFailure(NamedTuple):
    """Why a host cannot be reached, and what to type."""

    message: str
    hint: str


def explain(printed: str, host: Host) -> SshFailure:
    """Explain what ssh printed."""
    target = target_of(host)
    for pattern, write in _CAUSES:
        if re.search(pattern, printed, re.IGNORECASE):
            return write(target, printed)
    last = printed.strip().rpartition("\n")[2].strip() or "ssh printed nothing"
    return SshFailure(last, f"`ssh -v -o BatchMode=yes {target.typed} true` may show why")


def _changed_key(target: SshTarget, printed: str) -> SshFailure:
    remove = f"ssh-keygen -R {target.address}"
    if match := re.search(r"ssh-keygen -f .*", printed):
        remove = match[0].strip()
    message = "its host key has changed: it was reinstalled, or another machine answers"
    return SshFailure(message, f"if it was reinstalled: `{remove}`, then {target.scan}")


def _unknown_key(target: SshTarget, _: str) -> SshFailure:
    return SshFailure(
        "its host key is not known here", f"{target.scan}; compare it with the host's own first"
    )


def _denied(target: SshTarget, _: str) -> SshFailure:
    hint = f"`ssh-copy-id {target.typed}`"
    if not any(_SSH.expanduser().glob("id_*.pub")):
        hint = f"`ssh-keygen -t ed25519`, then {hint}"
    return SshFailure("the host asks for a password: it accepts none of your ssh keys", hint)


def _refused(target: SshTarget, _: str) -> SshFailure:
    where = f"set `Port` for {target.asked.name} in ~/.ssh/config"
    if target.asked.port:
        where = "correct `port=` in the hostfile"
    hint = f"start sshd there (`systemctl start ssh`), or {where}"
    return SshFailure(f"connection refused: no ssh server listens on port {target.port}", hint)


def _timeout(target: SshTarget, _: str) -> SshFailure:
    hint = f"check that it is on, and that no firewall drops port {target.port}: `ping {target.address}`"
    return SshFailure(f"no answer from {target.address} within {CONNECT_SECONDS} s", hint)


def _no_route(target: SshTarget, _: str) -> SshFailure:
    return SshFailure(
        f"there is no route to {target.address}", f"`ip route get {target.address}` shows the way taken"
    )


def _no_name(target: SshTarget, _: str) -> SshFailure:
    where = f"set `HostName` for {target.asked.name} in ~/.ssh/config"
    hint = f"check the spelling, or {where}; a job on this machine alone needs no hostfile"
    return SshFailure(f"the name {target.address} cannot be resolved", hint)


def _open_key(_: SshTarget, printed: str) -> SshFailure:
    key = "~/.ssh/id_ed25519"
    if match := re.search(r"Permissions \d+ for '([^']+)'", printed):
        key = match[1]
    return SshFailure(f"others can read the key {key}, so ssh does not use it", f"`chmod 600 {key}`")


def _dropped(target: SshTarget, _: str) -> SshFailure:
    hint = f"try again; if it stays, raise `MaxStartups` in /etc/ssh/sshd_config of {target.asked.name}"
    return SshFailure("its ssh server closed the connection before the login", hint)


def _bad_config(_: SshTarget, printed: str) -> SshFailure:
    line = next(complaint for complaint in printed.splitlines() if "onfiguration option" in complaint)
    return SshFailure(line.strip(), "correct ~/.ssh/config")


_CAUSES: tuple[tuple[str, Callable[[SshTarget, str], SshFailure]], ...] = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", _changed_key),
    (r"UNPROTECTED PRIVATE KEY FILE", _open_key),
    ("Host key verification failed|host key is known for", _unknown_key),
    (r"Permission denied \(|Too many authentication failures", _denied),
    ("Connection refused", _refused),
    ("timed out", _timeout),
    ("No route to host|Network is unreachable", _no_route),
    ("Could not resolve hostname|Name or service not known", _no_name),
    ("Bad configuration option", _bad_config),
    ("kex_exchange_identification|Connection (closed|reset) by", _dropped),
)
"""Pattern in what ssh says → its explanation; the first match counts."""
