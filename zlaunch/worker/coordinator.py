"""The launcher of a job on several hosts: `zlaunch.worker.coordinator RUN_DIR`, a torchrun on each of them.

It starts `zlaunch.worker.node` on every host, over ssh, srun or here, or waits until the zlaunch of each host
connects, and sends it an order. When one host fails or is lost, the others are stopped.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from zlaunch.files import print_line
from zlaunch.hosts.agent.channel import ALIVE_SECONDS, Channel, Message, wait_for_any
from zlaunch.hosts.agent.handshake import HandshakeListener
from zlaunch.process import PipedProgram, end_like
from zlaunch.rundir.control import COORDINATOR, ask_for_save, read_stop, write_stop
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import parse_record
from zlaunch.rundir.record import JobRecord, NodePlanRecord, NodeRecord, OrderRecord
from zlaunch.rundir.write import write_record
from zlaunch.worker.grace import HOSTS_SECONDS
from zlaunch.worker.mirror import Changes, control_files, is_rank_file, write_part
from zlaunch.worker.node import TOKEN
from zlaunch.worker.nsys import report_seconds

START_SECONDS = 120.0
"""How long a host may take to start zlaunch: Python may have to be read over a network first."""

FAILURE_SECONDS = 2.0
"""How long the ranks of other hosts may fail by themselves, so that their own errors are recorded."""


class _Host:
    """A host of the job, as the coordinator sees it."""

    def __init__(self, run_dir: RunDir, number: int, plan: NodePlanRecord) -> None:
        self.number = number
        self.name = plan["host"]
        self.plan = plan
        self._run_dir = run_dir
        self.channel: Channel | None = None
        self.process: PipedProgram | None = None
        self.changes: Changes | None = None
        """The control files to send; None where the host shares the run directory."""
        self.record = NodeRecord(node=number, host=self.name, started=time.time())

    @property
    def is_over(self) -> bool:
        return "returncode" in self.record or "lost" in self.record

    @property
    def has_failed(self) -> bool:
        return self.is_over and self.record.get("returncode") != 0

    def start(self) -> None:
        """Start its node program, unless it connects by itself."""
        if argv := self.plan["start"]:
            log = self._run_dir.node_log(self.number)
            try:
                with log.open("wb") as errors:
                    self.process = PipedProgram(argv, os.environ, errors)
            except OSError as error:
                self._fail(f"`{Path(argv[0]).name}` cannot be started: {error.strerror}")
                return
            self.welcome(Channel(*self.process.take_streams(), first=START_SECONDS))

    def welcome(self, channel: Channel) -> None:
        """Send the order to a host that is there."""
        self.channel = channel
        channel.send({"order": dict(_order(self._run_dir, self.number, self.plan))})

    def hear(self, deadline: float) -> None:
        """Read what it says, and tell it what has changed; lose it if it is not there at the deadline."""
        if self.is_over:
            return
        if self.channel is None:
            if time.monotonic() > deadline:
                self.lose(f"it did not connect within {START_SECONDS:.0f} s")
            return
        for message in self.channel.receive():
            self._take(self.channel, message)
        if self.changes is not None:
            for part in self.changes.of(control_files(self._run_dir)):
                self.channel.send(part)
        if self.channel.closed and not self.is_over:
            self.lose(self._why_lost())

    def _take(self, channel: Channel, message: Message) -> None:
        if isinstance(marker := message.get("marker"), str):
            is_shared = (self._run_dir.ranks / Path(marker).name).exists()
            if not is_shared:
                self.changes = Changes(self._run_dir)
            channel.send({"shared": is_shared})
        if isinstance(by := message.get("save"), str):
            ask_for_save(self._run_dir, by)
        if isinstance(failed := message.get("failed"), str):
            self._note({"error": failed})
        if isinstance(returncode := message.get("ended"), int):
            for line in str(message.get("log", "")).splitlines():
                print_line(f"{self.name}: {line}")
            channel.send({"goodbye": True})
            ending = NodeRecord(returncode=returncode, stopped_by=None, ended=time.time())
            if isinstance(stopped_by := message.get("stopped_by"), int):
                ending["stopped_by"] = stopped_by
            self._note(ending)
        if is_rank_file(str(message.get("file", "")), self.plan["ranks"]):
            write_part(self._run_dir, message)

    def _why_lost(self) -> str:
        assert self.channel is not None
        silent = f"nothing was heard from it for {self.channel.silent_seconds:.0f} s"
        if self.process is None:
            if self.channel.silent_seconds > ALIVE_SECONDS * 2:
                return silent
            return "it closed the connection"
        program, status = Path(self.plan["start"][0]).name, self.process.wait(1)
        if status is None:
            return silent
        if status < 0:
            return f"`{program}` killed by {signal.Signals(-status).name}"
        return f"`{program}` ended with status {status}"

    def _fail(self, why: str) -> None:
        """Record that nothing can be started there."""
        print_line(f"zlaunch: {self.name}: {why}")
        self._note({"error": why, "returncode": 1, "ended": time.time()})

    def lose(self, why: str) -> None:
        """Record that the host is gone."""
        error = self._last_error()
        print_line(": ".join(filter(None, (f"zlaunch: lost {self.name}", why, error))))
        self._note({"lost": why, "said": error, "ended": time.time()})

    def _last_error(self) -> str:
        """Return the last line that its node program, ssh or srun has printed."""
        log = self._run_dir.node_log(self.number)
        if not log.exists():
            return ""
        lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
        return next(reversed(lines), "")

    def _note(self, news: NodeRecord) -> None:
        self.record.update(news)
        with contextlib.suppress(OSError):
            write_record(self._run_dir.node_record(self.number), self.record)


def _order(run_dir: RunDir, number: int, plan: NodePlanRecord) -> OrderRecord:
    job = parse_record(run_dir.job.read_bytes(), JobRecord)
    files = [file for file in run_dir.order_files if file.exists()]
    rendezvous: list[str] = []
    if number:
        rendezvous = job.get("rendezvous", [])
    return {
        "node": number,
        "run_directory": str(run_dir.root),
        "working_directory": job["working_directory"],
        "files": {file.name: file.read_text("utf-8") for file in files},
        "argv": plan["argv"],
        "environment": {**job["environment"], **plan["environment"]},
        "ranks": plan["ranks"],
        "shielded": job.get("shielded", False),
        "shared": job.get("shared", False),
        "rendezvous": rendezvous,
        "report_seconds": report_seconds(job.get("profile")),
    }


def main(run_dir: RunDir) -> int:
    """Run a launcher on every host; return the status of the host that failed first."""
    job = parse_record(run_dir.job.read_bytes(), JobRecord)
    hosts = [_Host(run_dir, number, plan) for number, plan in enumerate(job["nodes"])]
    token, port, listener = os.environ.pop(TOKEN, ""), job["control_port"], None
    try:
        if port and token:
            listener = HandshakeListener(port, token)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        print_line(f"zlaunch cannot listen for the other hosts on port {port}: {why}; start again")
        return 1
    for host in hosts:
        host.start()
    for host in hosts:
        if host.channel is not None:
            host.channel.beat()
    grace = HOSTS_SECONDS + report_seconds(job.get("profile"))
    first = _until_all_are_over(run_dir, hosts, listener, grace)
    _end(hosts)
    if first is None:
        return 0
    return first.record.get("returncode", 1)


def _admit(listener: HandshakeListener | None, hosts: Sequence[_Host]) -> None:
    """Give their order to the hosts that have connected; close the listener when all are in."""
    if listener is None:
        return
    if all(host.channel is not None for host in hosts):
        listener.close()
        return
    for channel, hello in listener.accept():
        expected = [host for host in hosts if host.number == hello.get("node") and host.channel is None]
        if expected:
            expected[0].welcome(channel)
            channel.beat()
        else:
            channel.close()


def _until_all_are_over(
    run_dir: RunDir, hosts: Sequence[_Host], listener: HandshakeListener | None, grace: float
) -> _Host | None:
    """Wait until no host runs any more; return the one that failed first."""
    deadline = time.monotonic() + START_SECONDS
    first: _Host | None = None
    stop_at = end_at = float("inf")
    while not all(host.is_over for host in hosts) and time.monotonic() < end_at:
        wait_for_any([host.channel for host in hosts if host.channel and not host.is_over], 0.2)
        _admit(listener, hosts)
        for host in hosts:
            host.hear(deadline)
        failed = [host for host in hosts if host.has_failed]
        if failed and first is None:
            first, stop_at = failed[0], time.monotonic() + FAILURE_SECONDS
        if time.monotonic() > stop_at:
            try:
                write_stop(run_dir, signal.SIGTERM, COORDINATOR)
            except OSError:
                break  # hosts also stop when their connection is closed
        if read_stop(run_dir) is not None:
            end_at = min(end_at, time.monotonic() + grace)
    return first or next((host for host in hosts if host.has_failed), None)


def _end(hosts: Sequence[_Host]) -> None:
    """Close all connections, which ends what still runs there."""
    for host in hosts:
        if host.channel is not None:
            host.channel.close(linger=0.2)
    deadline = time.monotonic() + 1.0
    for host in hosts:
        if host.process is not None and host.process.wait(max(0.0, deadline - time.monotonic())) is None:
            host.process.kill()


if __name__ == "__main__":
    end_like(main(RunDir(Path(sys.argv[1]))))
