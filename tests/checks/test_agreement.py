"""`doctor` and `train` judge recorded machines alike: what train refuses is an error, and the other way round."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.checks.recorded import all_recorded, machine_facts
from zlaunch.checks.across_hosts import compare
from zlaunch.checks.disks import HERE, TEMPORARY
from zlaunch.checks.host import check_host
from zlaunch.checks.report import judge
from zlaunch.checks.requirements import ANY_JOB, RUN_BYTES, Amount, DiskUse, Requirements, Tracker
from zlaunch.checks.result import Status
from zlaunch.errors import FATAL, Unavailable
from zlaunch.hosts.agent.examination import Examined
from zlaunch.hosts.cluster.topology import Host
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.interpreter import TRAINING
from zlaunch.hosts.machine.resources import weakest
from zlaunch.job.args import ScriptArgs
from zlaunch.launch.all_hosts import findings_of, findings_of_hosts

GIB = 1 << 30
HOME = Path("/home/me")
UNKNOWN = replace(
    ANY_JOB,
    directories={HERE: HOME, TEMPORARY: Path("/tmp")},
    writes=(DiskUse(HOME, RUN_BYTES, "the run directory", "`--run-dir DIR`"),),
)
LARGE = Requirements(
    ranks=8,
    gpu_bytes=40 * GIB,
    memory=Amount(200 * GIB, 300 * GIB, "8 ranks (rehearsal)"),
    shm_bytes=8 * 66 << 20,
    locked_bytes=GIB,
    uses_infiniband=True,
    crosses_hosts=True,
    writes=(DiskUse(HOME, 900 * GIB, "a checkpoint", "`-- --output_dir DIR`"),),
    monitors=(
        Tracker("wandb.enabled", "`wandb.enabled` is true", ("wandb",), "`--set wandb.enabled=false`"),
    ),
    args=ScriptArgs.of(("--report_to", "tensorbord")),
)
JOBS = {"an unknown job": UNKNOWN, "a large job": LARGE, "one that sends nothing": replace(UNKNOWN, ranks=1)}


def train_refuses(facts: dict[str, MachineFacts], needs: Requirements) -> bool:
    if any(one.python.missing.intersection(TRAINING) for one in facts.values()):
        return True  # `check_packages`
    try:
        weakest([one.machine for one in facts.values()])
    except Unavailable:
        return True
    findings = [finding for one in facts.values() for finding in findings_of(check_host(one, needs))]
    findings += findings_of_hosts(compare(facts, {}, None))
    return any(finding.severity in FATAL for finding in findings)


def doctor_errs(facts: dict[str, MachineFacts], needs: Requirements) -> bool:
    return (
        judge([Examined(Host(name, ()), 0.1, one) for name, one in facts.items()], needs).status
        is Status.ERROR
    )


@pytest.mark.parametrize("needs", JOBS.values(), ids=JOBS.keys())
@pytest.mark.parametrize("name", all_recorded())
def test_they_agree_on_a_machine(name: str, needs: Requirements) -> None:
    facts = {name: machine_facts(name)}
    assert train_refuses(facts, needs) == doctor_errs(facts, needs)


@pytest.mark.parametrize("other", all_recorded())
@pytest.mark.parametrize("name", ["laptop", "node-8xh100"])
def test_they_agree_on_two_hosts(name: str, other: str) -> None:
    facts = {name: machine_facts(name), f"other {other}": with_own_gpus(machine_facts(other))}
    assert train_refuses(facts, UNKNOWN) == doctor_errs(facts, UNKNOWN)


@pytest.mark.parametrize("name", ["laptop", "node-8xh100"])
def test_they_agree_on_one_machine_with_two_names(name: str) -> None:
    facts = {"w0": machine_facts(name), "w1": machine_facts(name)}
    assert train_refuses(facts, UNKNOWN) == doctor_errs(facts, UNKNOWN) == (name == "node-8xh100")


def with_own_gpus(facts: MachineFacts) -> MachineFacts:
    if facts.hardware is None:
        return facts
    gpus = tuple(replace(gpu, uuid=f"own {gpu.uuid}") for gpu in facts.hardware.gpus)
    return replace(facts, hardware=replace(facts.hardware, gpus=gpus))


REFUSED = {
    *("no-torch", "no-deepspeed", "silent-driver", "old-driver"),
    *("full-disk", "read-only-directory", "no-compiler-for-an-op"),
}
"""Where no job can train, or not the one at hand."""


@pytest.mark.parametrize("name", all_recorded())
def test_only_what_no_job_can_do_without_is_an_error(name: str) -> None:
    assert doctor_errs({name: machine_facts(name)}, UNKNOWN) == (name in REFUSED)
