"""What other hosts lack: each is judged as this machine is, and named."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.making import gpu
from zlaunch.checks.remote import SharedPaths, check_remote_hosts
from zlaunch.checks.resources import check_resources
from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.resources import Disk, FreeResources, GpuProcess
from zlaunch.launch.requirements import DiskUse, ResourceRequirements

RUNS, SCRIPT, LOCK = Path("/home/runs"), Path("/home/train.py"), Path("/ext/cpu_adam/lock")
COMMON = SharedPaths(RUNS, (SCRIPT,), frozenset({"cpu_adam"}), {RUNS: (7, 1)})
HEALTHY = FreeResources(files={RUNS: (7, 1), SCRIPT: (8, 1)})
WITH_LOCK = replace(HEALTHY, left_locks=frozenset({LOCK}), files={**HEALTHY.files, LOCK: (5, 1)})
DEMAND = ResourceRequirements(ranks=1)


def judged(
    rooms: dict[str, FreeResources], demand: ResourceRequirements = DEMAND, common: SharedPaths = COMMON
) -> list[Finding]:
    return check_remote_hosts(dict.fromkeys(rooms, demand), rooms, common)


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
    (finding,) = judged({"w0": HEALTHY, "w1": FreeResources(files=files)})
    assert (finding.code, finding.where, finding.severity) == ("not-shared", "w1", severity)
    assert said in finding.message


def test_a_build_that_was_killed_elsewhere_is_named() -> None:
    (finding,) = judged({"w1": WITH_LOCK})
    assert (finding.code, finding.hint) == ("build-lock", f"on w1: `rm {LOCK}`")


@pytest.mark.parametrize(
    "common",
    [replace(COMMON, files={**COMMON.files, LOCK: (5, 1)}), replace(COMMON, ops=frozenset({"async_io"}))],
    ids=["it is here too, where it is removed", "nobody needs the op"],
)
def test_a_lock_that_keeps_nobody_waiting_is_passed_over(common: SharedPaths) -> None:
    assert judged({"w1": WITH_LOCK}, common=common) == []


def test_who_is_on_a_gpu_of_another_host_is_named() -> None:
    busy = replace(gpu(0), processes=(GpuProcess(7, "python a.py", "bob", 1 << 30),))
    (finding,) = judged({"w1": HEALTHY}, ResourceRequirements(ranks=1, gpus=(busy,)))
    assert (finding.code, finding.where) == ("gpu-busy", "w1")
    assert "`python a.py` of bob (pid 7)" in finding.message


@pytest.mark.parametrize(("free_here", "hosts"), [(1 << 20, []), (2 << 20, ["w1"])])
def test_a_full_disk_that_hosts_share_with_this_machine_is_said_once(
    free_here: int, hosts: list[str]
) -> None:
    demand = ResourceRequirements(
        ranks=1, writes=(DiskUse(RUNS, 9 << 20, "a checkpoint", "`-- --output_dir DIR`"),)
    )
    here = check_resources(demand, replace(HEALTHY, disks={RUNS: Disk(1, 8 << 20, free_here)}))
    rooms = {"w1": replace(HEALTHY, disks={RUNS: Disk(2, 8 << 20, 1 << 20)})}
    found = check_remote_hosts({"w1": demand}, rooms, COMMON, here)
    assert [finding.where for finding in found] == hosts
    assert all(finding.hint == "use `-- --output_dir DIR` on a larger disk" for finding in found)


def test_what_is_short_here_too_is_still_said_of_a_host() -> None:
    demand, room = (
        ResourceRequirements(ranks=1, locked_bytes=2 << 20),
        replace(HEALTHY, memlock_bytes=1 << 20),
    )
    (finding,) = check_remote_hosts({"w1": demand}, {"w1": room}, COMMON, check_resources(demand, room))
    assert (finding.code, finding.where) == ("memlock-too-small", "w1")


def test_hosts_that_lack_the_same_are_named_together() -> None:
    (finding,) = judged({f"w{number}": FreeResources(files={RUNS: (7, 1)}) for number in range(5)})
    assert finding.where == "w0, w1, w2 and 2 more"
