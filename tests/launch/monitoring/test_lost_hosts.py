"""The launcher's log of a job over pdsh says which host is lost, and never by what a rank ended with."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.launch.test_plan import DEFAULTS, HOSTS
from tests.making import over_ssh
from zlaunch.hosts.cluster.topology import Host
from zlaunch.job.spec import JobSpec
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.monitoring import lost_hosts
from zlaunch.launch.monitoring.lost_hosts import LostHosts
from zlaunch.launch.plan import LaunchPlan
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import read_record
from zlaunch.rundir.record import NodeRecord

GONE = "w1: client_loop: send disconnect: Broken pipe\n"
ENDED = "pdsh@here: w1: ssh exited with exit code 255\n"
KILLED = "pdsh@here: w1: ssh killed by signal 9\n"


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    layout = RunDir(tmp_path)
    layout.ranks.mkdir()
    layout.logs.mkdir()
    job = JobSpec(script=Path("train.py"), launcher="deepspeed")
    return make_plan(replace(DEFAULTS, job=job, topology=HOSTS, layout=layout))


def lost(plan: LaunchPlan, log: str) -> str | None:
    """How the second host was lost, as two looks at a log find it."""
    plan.layout.launcher_log.write_text(log)
    hosts = LostHosts(plan)
    hosts.look()
    hosts.look()
    return read_record(plan.layout.node_record(1), NodeRecord).get("lost") if hosts.any else None


def test_a_host_whose_ssh_says_what_broke_is_lost(plan: LaunchPlan) -> None:
    assert lost(plan, GONE + ENDED) == "`ssh` ended with status 255"


def test_a_host_whose_ssh_was_killed_is_lost(plan: LaunchPlan) -> None:
    assert lost(plan, KILLED) == "`ssh` killed by SIGKILL"


def test_a_rank_that_ended_with_255_is_no_lost_host(plan: LaunchPlan) -> None:
    plan.layout.rank_record(2).write_text('{"rank": 2, "returncode": 255}')
    assert lost(plan, GONE + ENDED) is None


def test_a_status_without_a_word_waits_for_the_record_of_a_rank(
    plan: LaunchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lost(plan, ENDED) is None
    monkeypatch.setattr(lost_hosts, "RECORD_SECONDS", -1.0)
    assert lost(plan, ENDED) == "`ssh` ended with status 255"


def test_a_host_is_found_by_the_name_that_slurm_has_for_it_which_has_no_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "NodeName=w1 CPUTot=1 State=DOWN* Reason=Not responding [slurm@2026-11-25T03:21:08]"
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\n[ "$4" = w0,w1 ] && echo "{said}"\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    hosts = over_ssh(Host("w0.cluster.org", (0,)), Host("w1.cluster.org", (0,)))
    layout = RunDir(tmp_path / "run")
    layout.ranks.mkdir(parents=True)
    plan = make_plan(replace(DEFAULTS, topology=hosts, layout=layout))
    assert LostHosts(plan).ended_job(signal.SIGTERM, {"SLURM_JOB_ID": "7"})
    record = read_record(layout.node_record(1), NodeRecord)
    assert (record["host"], record["said"]) == ("w1.cluster.org", "DOWN*, Not responding")
