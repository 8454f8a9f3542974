"""One table for all hosts: equal results are one row, and who deviates is named."""

from dataclasses import replace
from typing import Any

import pytest

from tests.checks.recorded import GIB, changed, cpu_host, gpu_host, with_packages
from zlaunch.checks.report import DoctorReport, judge, merged
from zlaunch.checks.requirements import ANY_JOB
from zlaunch.checks.result import CheckResult, Status
from zlaunch.cli.views.doctor import table_lines
from zlaunch.hosts.agent.answers import NoAnswer
from zlaunch.hosts.agent.examination import Clock, Examined, Reachability
from zlaunch.hosts.cluster.topology import Host
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.network import Interface
from zlaunch.whereabouts import Whereabouts

NAMES = [f"node{number:02}" for number in range(64)]
SEVERAL = replace(ANY_JOB, crosses_hosts=True)


def answered(name: str, facts: MachineFacts | None = None, **topics: Any) -> Examined:
    reach = None if name == NAMES[0] else Reachability(29500, {"10.0.0.1": None}, "10.0.0.1")
    found = changed(facts or cpu_host(), **topics)
    return Examined(Host(name, ()), 0.5, found, None, Clock(0.0, 0.001), reach)


def report(*others: Examined, size: int = 64) -> DoctorReport:
    """Report on healthy hosts, and these in their places."""
    changed = {one.name: one for one in others}
    return judge([changed.get(name) or answered(name) for name in NAMES[:size]], SEVERAL)


def test_64_healthy_hosts_take_as_many_lines_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [*table_lines(report())]
    assert len(lines) < 30
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "nothing is wrong; 64 of 64 hosts answered; the slowest, node00, after 0.50 s"


def test_64_hosts_that_are_all_unreachable_still_fit_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    failed = [
        Examined(Host(name, ()), 0.0, None, NoAnswer("ssh", "connection refused", "`ssh x`"))
        for name in NAMES
    ]
    lines = [*table_lines(judge(failed, ANY_JOB))]
    assert max(map(len, lines)) <= 80
    assert lines[0].endswith("node00, node01, node02, node03 and 60 more: connection refused")


def judged(name: str, one: DoctorReport) -> list[tuple[Status, str]]:
    return [(row.status, row.value) for row in merged(one) if row.name == name]


def test_hosts_with_another_version_are_named_and_the_others_counted() -> None:
    other = with_packages(cpu_host(), deepspeed="0.18.2")
    rows = judged("deepspeed", report(*(answered(NAMES[i], other) for i in (3, 17))))
    assert rows == [
        (Status.OK, "62 hosts: 0.19.8"),
        (Status.ERROR, "node03, node17: 0.18.2, but 0.19.8 on the others"),
    ]


def test_of_amounts_the_least_is_shown_with_its_host() -> None:
    poor = answered(NAMES[5], free={"memory_bytes": 10 * GIB})
    assert judged("memory", report(poor)) == [
        (Status.OK, "10.0 GiB of 64.0 GiB available (least, node05) to 60.0 GiB of 64.0 GiB available")
    ]


def test_a_host_that_does_not_answer_comes_first() -> None:
    silent = Examined(Host(NAMES[9], ()), 0.0, None, NoAnswer("ssh", "connection refused", "start sshd"))
    assert merged(report(silent))[0] == CheckResult(
        "ssh", Status.ERROR, "node09: connection refused", "start sshd"
    )


def test_a_host_without_gpus_among_others_is_an_error() -> None:
    hosts = [answered(NAMES[0], gpu_host()), answered(NAMES[1])]
    rows = judge(hosts, ANY_JOB).rows[NAMES[1]]
    assert [row.value for row in rows if row.name == "GPUs"] == ["none, but others have GPUs"]


BOOTED = Whereabouts("w0", "0f3c", "pid:[4026531836]")


def test_two_names_of_one_machine_are_named() -> None:
    one, other = (answered(name, network={"identity": BOOTED}) for name in NAMES[:2])
    assert judged("machine", report(one, other, size=3)) == [
        (Status.WARNING, "node01: the same machine as node00: a job would start ranks on it twice")
    ]


def test_two_names_of_one_machine_with_gpus_cannot_train_together() -> None:
    one, other = (answered(name, gpu_host(), network={"identity": BOOTED}) for name in NAMES[:2])
    rows = judge([one, other], SEVERAL).rows[NAMES[1]]
    assert [row.status for row in rows if row.name == "machine"] == [Status.ERROR]


@pytest.mark.parametrize(
    "difference",
    [
        {"identity": BOOTED._replace(pid_namespace="pid:[4026532999]")},
        {"identity": BOOTED._replace(host="w1")},
        {"interfaces": (Interface("eth0", "10.0.0.2", 1500),)},
    ],
    ids=["another container", "another hostname", "another address"],
)
def test_containers_and_copies_of_a_machine_are_not_taken_for_one(difference: dict[str, Any]) -> None:
    hosts = [answered(NAMES[0], network={"identity": BOOTED})]
    hosts.append(answered(NAMES[1], network={"identity": BOOTED, **difference}))
    assert judged("machine", report(*hosts, size=2)) == []


def test_hosts_that_do_not_tell_who_they_are_are_not_taken_for_one() -> None:
    silent = Whereabouts("w0", "", "")
    hosts = [answered(name, network={"identity": silent}) for name in NAMES[:2]]
    assert judged("machine", report(*hosts, size=2)) == []


def test_a_clock_is_compared_with_those_of_most_hosts_and_not_with_the_one_here() -> None:
    """Here it is an hour late."""
    hosts = [Examined(Host(name, ()), 0.1, cpu_host(), None, Clock(3600.0, 0.001)) for name in NAMES[:3]]
    hosts.append(Examined(Host(NAMES[3], ()), 0.1, cpu_host(), None, Clock(3595.0, 0.001)))
    rows = {
        name: row for name, rows in judge(hosts, ANY_JOB).rows.items() for row in rows if row.name == "clock"
    }
    assert [rows[name].status for name in NAMES[:4]] == [Status.OK] * 3 + [Status.WARNING]


def test_a_skew_that_a_slow_connection_may_explain_is_no_finding() -> None:
    hosts = [
        Examined(Host(name, ()), 0.1, cpu_host(), None, Clock(offset, 3.0))
        for name, offset in zip(NAMES, (0, 3), strict=False)
    ]
    assert judge(hosts, ANY_JOB).status is not Status.WARNING


def test_a_second_address_that_is_not_reachable_is_a_warning() -> None:
    reach = Reachability(29500, {"10.0.0.1": None, "172.17.0.1": "Connection timed out"}, "10.0.0.1")
    other = Examined(Host(NAMES[1], ()), 0.1, cpu_host(), None, None, reach)
    (row,) = judged("rendezvous", report(other, size=2))
    assert row == (
        Status.WARNING,
        "node01: 172.17.0.1 port 29500: Connection timed out; 10.0.0.1 is reachable",
    )
