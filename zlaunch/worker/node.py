"""The part of zlaunch on each host of a job: `zlaunch.worker.node [ADDRESS PORT]`.

It gets an order from the coordinator, through its own stdin and stdout or by connecting to an address: where
the run is, and which launcher to start here. It passes on what the ranks of this host record if the hosts do
not share the run directory, and ends them as soon as the coordinator is gone.
"""

import contextlib
import errno
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO

from zlaunch.files import end_of, write_whole
from zlaunch.hosts.agent.channel import Channel, Message, wait_for_any
from zlaunch.hosts.agent.handshake import WrongSecret, connect
from zlaunch.process import (
    SAFE_PATH,
    SAVES,
    LauncherProcess,
    ignore_request_to_save,
    sender_of_sigterm,
    shield_from_sigterm,
)
from zlaunch.rundir.control import COORDINATOR, read_stop, write_stop
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import conform
from zlaunch.rundir.record import OrderRecord
from zlaunch.rundir.write import create_root
from zlaunch.secrets import SECRET
from zlaunch.worker.grace import LAUNCHER_SECONDS
from zlaunch.worker.mirror import MOST_BYTES, Changes, rank_files, write_part

ORDER_SECONDS = 60.0
"""How long to wait for the order."""

GOODBYE_SECONDS = 10.0
"""How long the coordinator may take to read the last records."""

REACH_SECONDS = 8.0
REACH_TRIES = 2
"""How long to try to reach the first host, less than a peer may be silent, and how often at each address."""

LOG_BYTES = 64 * 1024
NUMBER = "ZLAUNCH_NODE"
"""The variable that has the number of a host that connects by itself."""

TOKEN = "ZLAUNCH_TOKEN"  # noqa: S105 - the name of a variable
"""The variable with the secret of a run, which this program and the coordinator prove to each other."""


class Unreachable(OSError):
    """The first host does not get what this one sends."""


def check_reachable(address: str, port: int) -> None:
    """Raise Unreachable if nothing gets to the first host: torchrun would retry for minutes.

    It may not listen yet. A connection that it refuses or resets has reached it. A name without an address is
    looked up again by torchrun.
    """
    try:
        tries = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM) * REACH_TRIES
    except OSError:
        return
    deadline, last = time.monotonic() + REACH_SECONDS, OSError()
    for number, (family, kind, protocol, _, where) in enumerate(tries):
        share = (deadline - time.monotonic()) / (len(tries) - number)
        try:
            with socket.socket(family, kind, protocol) as connection:
                connection.settimeout(max(share, 0.01))
                connection.connect(where)
        except ConnectionError:
            return
        except OSError as error:
            last = error
        else:
            return
    told = f"it cannot connect to port {port} of the first host, {address}: {last.strerror or last}"
    raise Unreachable(last.errno, told)


class _Node:
    """One host of a running job."""

    def __init__(self, channel: Channel, order: OrderRecord) -> None:
        self._channel = channel
        self._order = order
        self.run_dir = RunDir(Path(order["run_directory"]))
        self._changes = Changes(self.run_dir)
        self._is_shared: bool | None = None
        """Whether the coordinator sees this run directory; None until it has answered."""
        self._next_look = 0.0
        self.child: LauncherProcess | None = None
        self._is_asked_to_save = False
        self._marker: Path | None = None

    def prepare(self) -> None:
        """Go to the working directory, and make the run directory unless it is there; raise OSError."""
        os.chdir(self._order["working_directory"])
        create_root(self.run_dir, is_shared=self._order.get("shared", False))
        self.run_dir.ranks.mkdir(exist_ok=True)
        self.run_dir.logs.mkdir(exist_ok=True)
        for name, text in self._order["files"].items():
            file = self.run_dir.root / name
            if not file.exists():
                write_whole(file, text)
            elif file.read_text("utf-8") != text:
                raise OSError(
                    errno.EEXIST, "another run on this host has the same directory", str(self.run_dir.root)
                )
        self._marker = marker = self.run_dir.ranks / f".node-{self._order['node']}-{secrets.token_hex(8)}"
        marker.touch()
        self._channel.send({"marker": marker.name})

    def run(self, log: IO[bytes]) -> int:
        """Start the launcher and wait for its end."""
        inherited = {name: value for name, value in os.environ.items() if name not in (TOKEN, NUMBER, SECRET)}
        environment = {**inherited, **SAFE_PATH, **self._order["environment"]}
        tell = None
        if self._order["shielded"]:
            shield_from_sigterm()
            tell = partial(write_stop, self.run_dir, by=COORDINATOR)
        grace = LAUNCHER_SECONDS + self._order.get("report_seconds", 0.0)
        self.child = LauncherProcess(self._order["argv"], environment, log, grace, tell=tell)
        signal.signal(SAVES, self._ask_to_save)  # of Slurm, which sends it to each step
        self._channel.beat()
        return self.child.wait(self.tick)

    def _ask_to_save(self, _number: int, _frame: FrameType | None) -> None:
        self._is_asked_to_save = True

    def tick(self) -> None:
        """Obey the coordinator, and send it what is new."""
        if self._is_asked_to_save:
            self._is_asked_to_save = False
            self._channel.send({"save": SAVES.name})
        # Slurm sends it to the steps of a job, and not to a zlaunch that a batch script has started.
        if sender_of_sigterm() is not None:
            self._channel.send({"save": signal.SIGTERM.name})
        for message in self._channel.receive():
            self._obey(message)
        if self.child is not None:
            if (number := read_stop(self.run_dir)) is not None:
                self.child.on_signal(number, None)
            if self._channel.closed:
                self.child.on_signal(signal.SIGTERM, None)
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + 1.0
            self.send_changes()

    def _obey(self, message: Message) -> None:
        if isinstance(shared := message.get("shared"), bool):
            self._is_shared = shared
            if self._marker is not None:
                self._marker.unlink(missing_ok=True)
        write_part(self.run_dir, message)

    def send_changes(self) -> None:
        """Send what the ranks of this host have written, if the coordinator cannot see it."""
        if self._is_shared is False:
            for file in rank_files(self.run_dir, self._order["ranks"]):
                if self._channel.waiting_bytes < MOST_BYTES:  # the rest is sent when the peer has taken it
                    for message in self._changes.of([file]):
                        self._channel.send(message)

    def say_goodbye(self, returncode: int, log: str) -> None:
        """Report the end, and wait until the coordinator has read it."""
        deadline, waiting = time.monotonic() + GOODBYE_SECONDS, -1
        stopped_by = None
        if self.child is not None:
            stopped_by = self.child.stopped_by
        while not self._channel.closed and time.monotonic() < deadline:
            self.send_changes()
            if waiting == 0 == self._channel.waiting_bytes:
                break
            if self._channel.waiting_bytes != waiting:  # it is being read
                waiting, deadline = self._channel.waiting_bytes, time.monotonic() + GOODBYE_SECONDS
            wait_for_any([self._channel], 0.2)
            self._channel.receive()
        self._channel.send({"ended": returncode, "stopped_by": stopped_by, "log": log})
        self._channel.wait_for("goodbye", GOODBYE_SECONDS)


def main(channel: Channel) -> int:
    """Carry out one order, and return what the launcher returned."""
    message = channel.wait_for("order", ORDER_SECONDS)
    if message is None or not isinstance(message["order"], dict):
        sys.stderr.write("error: zlaunch.worker.node got no order\n")
        return 1
    order = conform(message["order"], OrderRecord)
    node = _Node(channel, order)
    with tempfile.TemporaryFile() as log:
        try:
            node.prepare()
            if len(rendezvous := order.get("rendezvous", [])) == 2:
                check_reachable(rendezvous[0], int(rendezvous[1]))
            returncode = node.run(log)
        except Unreachable as error:
            channel.send({"failed": str(error.strerror)})
            returncode = 1
        except OSError as error:
            channel.send({"failed": f"{error.strerror}: {error.filename}"})
            returncode = 1
        node.say_goodbye(returncode, end_of(log, LOG_BYTES))
    return returncode


def _connected(address: str, port: int) -> Channel:
    """Connect to the coordinator as the host that this one is in its run."""
    hello = {"node": int(os.environ.get(NUMBER, "0"))}
    try:
        return connect((address, port), os.environ.get(TOKEN, ""), hello, ORDER_SECONDS)
    except (OSError, WrongSecret) as error:
        sys.exit(f"error: zlaunch.worker.node cannot connect to {address} port {port}: {error}")


def own_streams() -> Channel:
    """Take over stdin and stdout; what else prints to stdout from here on goes to stderr."""
    reader, writer = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return Channel(reader, writer)


if __name__ == "__main__":
    ignore_request_to_save()  # until there is a coordinator to tell
    if len(sys.argv) > 1:
        coordinator = _connected(sys.argv[1], int(sys.argv[2]))
    else:
        coordinator = own_streams()
    sys.exit(main(coordinator) and 1)
