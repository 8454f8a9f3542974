"""What a plan needs is compared with what each of its hosts has, whatever has started zlaunch there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.asking import model
from tests.facts import facts_of
from tests.making import PYTHON, SHAPE, TWO_GPUS, over_ssh, script
from zlaunch.errors import Severity
from zlaunch.hosts.cluster.started_by import Member
from zlaunch.hosts.cluster.topology import Host, Reach, Topology
from zlaunch.hosts.machine.facts import Files, MachineFacts
from zlaunch.hosts.machine.interpreter import Interpreter, Package
from zlaunch.job.spec import JobSpec
from zlaunch.launch.all_hosts import check_all_hosts
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.prepare import check_facts
from zlaunch.launch.surroundings import Surroundings

HUGE = model(vocab_size=1 << 40)
MEMBERS = Topology((Host("box/0", (0,)), Host("box/1", (1,))), Reach.JOINED)
"""Two ranks of one machine, each with a zlaunch of its own."""
LEADER = Surroundings(Member(0, 2, "box", 29500, "srun"))


def a_job(topology: Topology, others: tuple[str, ...] = (), **known: Any) -> JobFacts:
    facts = facts_of(JobSpec(Path("train.py")), script(), topology=topology, model=SHAPE, **known)
    return replace(facts, others=dict.fromkeys(others, facts.here))


def on_other(facts: JobFacts, **changed: Any) -> JobFacts:
    return replace(facts, others={"box/1": replace(facts.here, **changed)})


def with_version(package: str, version: str) -> Interpreter:
    return replace(PYTHON, packages={**PYTHON.packages, package: Package(f"/venv/{package}", version)})


def codes(facts: JobFacts) -> list[str]:
    return [finding.code for finding in check_all_hosts(make_plan(facts))]


@pytest.mark.parametrize(
    ("package", "version", "severities"),
    [
        ("deepspeed", "2.0", [Severity.FAILS_LATER]),
        ("accelerate", "2.0", [Severity.ADVICE]),
        ("torch", "1.0+cu126", []),
        ("pydantic", "2.0", []),
    ],
)
def test_versions_of_members_are_judged_as_those_of_hosts_over_ssh(
    package: str, version: str, severities: list[Severity]
) -> None:
    facts = on_other(a_job(MEMBERS, surroundings=LEADER), python=with_version(package, version))
    found = [one for one in check_all_hosts(make_plan(facts)) if one.code == "other-version"]
    assert [one.severity for one in found] == severities


def test_a_member_may_have_its_script_at_another_path() -> None:
    facts = a_job(MEMBERS, surroundings=LEADER)
    there, here = (Files(hashes={Path(place) / "train.py": "a"}) for place in ("/there", "/here"))
    facts = replace(on_other(facts, files=there), here=replace(facts.here, files=here))
    assert codes(facts) == []


def test_a_member_that_is_one_of_several_on_a_machine_is_checked_for_its_own_rank() -> None:
    facts = replace(a_job(MEMBERS, ("box/1",), surroundings=LEADER), model=HUGE)
    assert "host-memory-short" in codes(facts)


@pytest.mark.parametrize(("host", "expected"), [("w0", ["monitor-missing"]), ("w1", []), ("login", [])])
def test_only_the_host_of_rank_0_needs_the_package_of_a_monitor(host: str, expected: list[str]) -> None:
    facts = a_job(over_ssh(Host("w0", (0,)), Host("w1", (0,))), ("w0", "w1"))
    facts = replace(facts, job=replace(facts.job, overrides=(("wandb.enabled", True),)))
    lacking = replace(PYTHON, packages={**PYTHON.packages, "wandb": None})
    if host == "login":
        facts = replace(facts, here=replace(facts.here, python=lacking))
    else:
        others: dict[str, MachineFacts] = dict(facts.others)
        facts = replace(facts, others={**others, host: replace(facts.here, python=lacking)})
    assert codes(facts) == expected


def test_a_dry_run_on_one_of_several_nodes_takes_no_gpu_to_be_used_twice() -> None:
    nodes = Topology((Host("node 0", (0, 1)), Host("node 1", (0, 1))), Reach.JOINED)
    check_facts(a_job(nodes, machine=TWO_GPUS, surroundings=LEADER))
