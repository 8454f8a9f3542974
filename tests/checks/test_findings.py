"""What other hosts lack: each is judged as this machine is, and named."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checks.recorded import changed, machine_facts
from tests.making import PYTHON
from zlaunch.checks.across_hosts import HostResult
from zlaunch.checks.host import check_host
from zlaunch.checks.requirements import DiskUse, Requirements
from zlaunch.checks.shared_paths import SharedPaths, check_paths
from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.facts import Files, MachineFacts
from zlaunch.hosts.machine.resources import Disk, FreeResources
from zlaunch.launch.all_hosts import findings_of, findings_of_hosts

RUNS, SCRIPT = Path("/home/runs"), Path("/home/train.py")
SHARED = SharedPaths(RUNS, (SCRIPT,), {RUNS: (7, 1)})
ASKED = frozenset({RUNS, SCRIPT})
DEMAND = Requirements(ranks=1)


def host(there: dict[Path, tuple[int, int]], **free: Any) -> MachineFacts:
    return MachineFacts(PYTHON, free=FreeResources(**free), files=Files(ASKED, there))


HEALTHY = host({RUNS: (7, 1), SCRIPT: (8, 1)})


def judged(
    hosts: dict[str, MachineFacts], demand: Requirements = DEMAND, here: Collection[Finding] = ()
) -> list[Finding]:
    return findings_of_hosts(_verdicts(hosts, demand), here)


def _verdicts(hosts: dict[str, MachineFacts], demand: Requirements) -> Iterator[HostResult]:
    for name, facts in hosts.items():
        for result in (*check_host(facts, demand), *check_paths(facts, SHARED)):
            yield name, result


def test_hosts_that_lack_nothing_give_no_cause_for_words() -> None:
    assert judged({"w0": HEALTHY, "w1": HEALTHY}) == []


@pytest.mark.parametrize(
    ("files", "severity", "said"),
    [
        ({SCRIPT: (8, 1)}, Severity.FAILS_LATER, "there is no `/home/runs`"),
        ({RUNS: (9, 1), SCRIPT: (8, 1)}, Severity.ADVICE, "a different directory than here"),
        ({RUNS: (7, 2), SCRIPT: (8, 1)}, Severity.ADVICE, "a different directory than here"),
        ({RUNS: (7, 1)}, Severity.FAILS_LATER, "there is no `/home/train.py`"),
    ],
)
def test_what_a_host_does_not_see_is_named(
    files: dict[Path, tuple[int, int]], severity: Severity, said: str
) -> None:
    (finding,) = judged({"w0": HEALTHY, "w1": host(files)})
    assert (finding.code, finding.where, finding.severity) == ("not-shared", "w1", severity)
    assert said in finding.message


def test_who_is_on_a_gpu_of_another_host_is_named() -> None:
    busy = changed(machine_facts("busy-gpu"), files=HEALTHY.files)
    (finding,) = judged({"w1": busy}, replace(DEMAND, devices=(0,)))
    assert (finding.code, finding.where) == ("gpu-busy", "w1")
    assert "`python train.py` of ada (pid 4711)" in finding.message


@pytest.mark.parametrize(("free_here", "hosts"), [(1 << 20, []), (2 << 20, ["w1"])])
def test_a_full_disk_that_hosts_share_with_this_machine_is_said_once(
    free_here: int, hosts: list[str]
) -> None:
    use = DiskUse(RUNS, 9 << 20, "a checkpoint", "`-- --output_dir DIR`")
    demand = replace(DEMAND, writes=(use,))
    there = {RUNS: (7, 1), SCRIPT: (8, 1)}
    here = findings_of(check_host(host(there, disks={RUNS: Disk(1, 8 << 20, free_here)}), demand))
    found = judged({"w1": host(there, disks={RUNS: Disk(2, 8 << 20, 1 << 20)})}, demand, here)
    assert [finding.where for finding in found] == hosts
    assert all(finding.hint == "use `-- --output_dir DIR` on a larger disk" for finding in found)


def test_what_is_short_here_too_is_still_said_of_a_host() -> None:
    demand = replace(DEMAND, locked_bytes=2 << 20)
    limited = host({RUNS: (7, 1), SCRIPT: (8, 1)}, memlock_bytes=1 << 20)
    (finding,) = judged({"w1": limited}, demand, findings_of(check_host(limited, demand)))
    assert (finding.code, finding.where) == ("memlock-too-small", "w1")


def test_hosts_that_lack_the_same_are_named_together() -> None:
    (finding,) = judged({f"w{number}": host({RUNS: (7, 1)}) for number in range(5)})
    assert finding.where == "w0, w1, w2 and 2 more"


def test_a_node_that_did_not_look_for_a_path_was_started_elsewhere() -> None:
    elsewhere = replace(HEALTHY, files=Files(frozenset({RUNS}), {RUNS: (7, 1)}))
    (finding,) = judged({"w1": elsewhere})
    assert finding.message.startswith("its zlaunch did not look for `/home/train.py`")


def test_what_is_written_to_one_disk_is_added_up_in_whatever_order_it_is_named() -> None:
    places = {Path(f"/{number}"): Disk(1 + number % 2, 8 << 20, 4 << 20) for number in range(3)}
    uses = tuple(DiskUse(path, 3 << 20, f"part {path}", "`--run-dir DIR`") for path in places)
    demand = replace(DEMAND, writes=uses)
    (finding,) = findings_of(check_host(host({}, disks=places), demand))
    assert "but the job needs 3.0 MiB for part /0, 3.0 MiB for part /2" in finding.message
