"""Notice that a host is gone where no coordinator does: over pdsh, or as Slurm says.

pdsh itself would wait for the other hosts, whose ranks wait for the one that is gone. What it prints goes to
the launcher's log; ssh ends with 255 for an error of its own, or is killed. Slurm ends the whole job if it
takes a node down, with the same signal as for anything else.
"""

import contextlib
import re
import signal
import time
from collections.abc import Mapping

from zlaunch.hosts.cluster.slurm import nodes_down
from zlaunch.hosts.cluster.topology import Host
from zlaunch.launch.launcher import PDSH
from zlaunch.launch.plan import LaunchPlan
from zlaunch.rundir.read import read_rank_records, read_record
from zlaunch.rundir.record import NodeRecord, RankRecord
from zlaunch.rundir.write import write_record

ALIVE_OPTIONS = "-o ServerAliveInterval=5 -o ServerAliveCountMax=2"
"""Options with which ssh ends when a host or its link is down; otherwise it would wait for hours."""

_ENDED = re.compile(r"^pdsh@[^:\s]+: (\S+): ssh (?:killed by signal (\d+)|exited with exit code 255)$")
_SAID = re.compile(r"^(\S+): ((?:Timeout, server|client_loop:|Connection |ssh:|kex_).*)$")
_BROKEN = 255

RECORD_SECONDS = 10.0
"""How long the record of a rank may take to arrive over a shared file system."""


class LostHosts:
    """Reads the launcher's log of a job, and records the hosts that are gone."""

    def __init__(self, plan: LaunchPlan) -> None:
        """Look at a job that DeepSpeed's runner starts over pdsh; at any other, see nothing."""
        self._plan = plan
        self._is_over_pdsh = plan.topology.spans_hosts and plan.backend.starter == PDSH
        self._read = 0
        self._rest = ""
        self._said: dict[str, str] = {}
        self._unexplained: dict[str, float] = {}
        """Hosts whose ssh ended with 255 without a word of its own → when that was."""
        self.any = False
        """Whether a host was lost."""

    def look(self) -> None:
        """Record what is new."""
        if self._is_over_pdsh and not self.any:
            for line in self._new_lines():
                if said := _SAID.match(line):
                    self._said[said[1]] = said[2]
                elif ended := _ENDED.match(line):
                    self._take(ended[1], ended[2])
            for label, since in self._unexplained.items():
                if time.monotonic() - since > RECORD_SECONDS:
                    self._record(label, f"ended with status {_BROKEN}")

    def ended_job(self, stopped_by: int | None, environ: Mapping[str, str]) -> bool:
        """Whether the loss of a host ended the job; Slurm is asked about a signal in one of its jobs."""
        is_asked = stopped_by == signal.SIGTERM and "SLURM_JOB_ID" in environ
        if is_asked and self._plan.topology.spans_hosts:
            names = [host.name.partition(".")[0] for host in self._plan.topology.hosts]
            for name, why in nodes_down(names).items():
                _record(self._plan, names.index(name), "Slurm has taken it down", why)
                self.any = True
        return self.any

    def _new_lines(self) -> list[str]:
        try:
            with self._plan.layout.launcher_log.open("rb") as log:
                log.seek(self._read)
                new = log.read()
        except OSError:
            return []
        self._read += len(new)
        *lines, self._rest = (self._rest + new.decode("utf-8", "replace")).split("\n")
        return lines

    def _take(self, label: str, number: str | None) -> None:
        """Record a host whose ssh has ended; 255 without a word may be the status of its own ranks."""
        if number is not None:
            self._record(label, f"killed by {signal.Signals(int(number)).name}", may_be_rank=False)
        elif label in self._said:
            self._record(label, f"ended with status {_BROKEN}")
        else:
            self._unexplained[label] = time.monotonic()

    def _record(self, label: str, how: str, *, may_be_rank: bool = True) -> None:
        hosts = self._plan.topology.hosts
        node = next((node for node, host in enumerate(hosts) if _is_called(host, label)), None)
        if node is None or (may_be_rank and self._has_ended(hosts[node])):
            return
        _record(self._plan, node, f"`ssh` {how}", self._said.get(label, ""))
        self.any = True

    def _has_ended(self, host: Host) -> bool:
        """Whether a rank of a host has ended by itself."""
        records = read_rank_records(self._plan.layout, RankRecord)
        own = (records.get(slot.rank, {}) for slot in self._plan.topology.slots() if slot.host == host.name)
        return any("returncode" in record and record.get("stopped_by") is None for record in own)


def _record(plan: LaunchPlan, node: int, lost: str, said: str) -> None:
    file, host = plan.layout.node_record(node), plan.topology.hosts[node].name
    news: NodeRecord = {"node": node, "host": host, "ended": time.time(), "lost": lost, "said": said}
    with contextlib.suppress(OSError):
        write_record(file, {**read_record(file, NodeRecord), **news})


def _is_called(host: Host, label: str) -> bool:
    """Whether pdsh names a host so; it may leave out the domain."""
    return label in (host.name, host.name.partition(".")[0])
