import re
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.making import ODD_NAME, PYTHON
from tests.running import ROOT
from zlaunch.errors import Unavailable
from zlaunch.hosts.agent.ssh import parse_survey, survey_hosts
from zlaunch.hosts.agent.survey import (
    MARK,
    HostSurvey,
    SurveyError,
    SurveyRequest,
    read_answer,
    read_request,
    to_json,
)
from zlaunch.hosts.cluster.topology import Host
from zlaunch.hosts.machine.op_cache import OpCache
from zlaunch.hosts.machine.ports import free_port
from zlaunch.hosts.machine.resources import Cgroup, Disk, FreeResources, Gpu, GpuProcess, Machine, weakest

GPU = Gpu(0, "NVIDIA H100", "GPU-1", 80 << 30, (9, 0), 70 << 30, (GpuProcess(7, "python a.py", "bob", 1),))
SURVEY = HostSurvey(
    Machine("w0.cluster", 96, 1 << 40, (GPU, replace(GPU, index=1)), (2,)),
    FreeResources(
        memory_bytes=1 << 39,
        cgroup=Cgroup("/sys/fs/cgroup/job", 3, 2),
        shm=Disk(9, 2, 1),
        disks={Path("/nvme"): Disk(1, 2, 1)},
        missing=frozenset({"debugpy"}),
        files={Path("/runs"): (12, 1 << 60)},
        left_locks=frozenset({Path("/ext/cpu_adam/lock")}),
    ),
    29500,
    PYTHON,
    OpCache(Path("/ext/own"), Path("/ext"), "torch 2.13"),
    "Address already in use",
)


@pytest.mark.parametrize("said", [SURVEY, SurveyError("torch has no CUDA", None)])
def test_what_a_host_says_arrives_whole(said: HostSurvey | SurveyError) -> None:
    assert read_answer(to_json(said)) == said


def test_an_answer_is_one_line_whatever_programs_are_called() -> None:
    odd = GpuProcess(7, "a\u2028b\udcff\n")
    said = replace(SURVEY, machine=replace(SURVEY.machine, gpus=(replace(GPU, processes=(odd,)),)))
    text = to_json(said)
    assert (text.splitlines(), read_answer(text)) == ([text], said)


def test_what_a_host_is_asked_arrives_whole() -> None:
    asked = SurveyRequest(
        {"DS_ACCELERATOR": "cpu"},
        Path("/runs"),
        (Path("/nvme"),),
        Path("/venv/bin/python"),
        ("torch",),
        ("debugpy",),
        5678,
    )
    assert read_request(to_json(asked)) == asked


def test_an_answer_is_found_among_what_a_login_prints() -> None:
    answer = f"Welcome!\n{MARK}{to_json(SURVEY)}\na warning at the end"
    assert parse_survey(Host("w0", ()), answer, 0) == replace(
        SURVEY, machine=replace(SURVEY.machine, hostname="w0")
    )


def test_a_host_that_cannot_run_this_python_is_refused_with_its_own_words() -> None:
    with pytest.raises(Unavailable, match=re.escape("w0 cannot run zlaunch with")) as refused:
        parse_survey(Host("w0", ()), "Welcome!\nsh: 1: /venv/bin/python: not found", 0)
    assert refused.value.message.endswith(": sh: 1: /venv/bin/python: not found")


def test_a_host_with_another_zlaunch_is_refused() -> None:
    with pytest.raises(Unavailable, match=r"^w0 has another release of zlaunch$"):
        parse_survey(Host("w0", ()), f'{MARK}{{"machine": {{}}}}', 0)


def test_what_keeps_a_host_from_an_answer_is_said_with_its_name() -> None:
    with pytest.raises(Unavailable, match="w0: torch has no CUDA"):
        parse_survey(Host("w0", ()), MARK + to_json(SurveyError("torch has no CUDA", None)), 0)


def test_a_lost_connection_comes_with_the_command_that_may_show_why() -> None:
    with pytest.raises(Unavailable) as lost:
        parse_survey(Host("w0", (), user="ann", port=2222), "", 255)
    assert lost.value.hint == "`ssh -v -p 2222 ann@w0 true` may show why"


@pytest.mark.parametrize(
    ("ssh", "said"),
    [
        ("exit 255", "not reachable over ssh without a password: w1"),
        ("echo zlaunch asks; exit 255", "the connection to w1 was lost"),
        ("echo Welcome; echo zlaunch asks; exec sleep 60", "w1 did not answer within 1 s"),
        ("echo zlaunch asks; printf 'no \\351t\\351'", "w1 cannot run zlaunch"),
    ],
    ids=["nobody gets in", "it breaks off", "it takes too long", "it speaks no UTF-8"],
)
def test_a_host_is_called_unreachable_only_where_nobody_got_in(
    ssh: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text(f"#!/bin/sh\n{ssh}\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("zlaunch.hosts.agent.ssh.CONNECT_SECONDS", 0)
    monkeypatch.setattr("zlaunch.hosts.agent.ssh.ANSWER_SECONDS", 1)
    with pytest.raises(Unavailable, match=said):
        survey_hosts([Host("w1", (0,))], SURVEY.machine)


RUNS_IT_HERE = """#!/bin/sh
for command; do :; done
cd / && exec sh -c "$command"
"""
WRAPPER = """#!/bin/sh
pwd > "$(dirname "$0")/started-in"
exec {python} "$@"
"""


def test_a_host_is_surveyed_in_this_directory_by_this_python_whatever_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ssh` hands its last argument to a real shell, as sshd does."""
    (odd := tmp_path / ODD_NAME).mkdir()
    for name, text in (("ssh", RUNS_IT_HERE), ("python", WRAPPER.format(python=sys.executable))):
        (odd / name).write_text(text)
        (odd / name).chmod(0o755)
    monkeypatch.chdir(odd)
    monkeypatch.setenv("PATH", f"{odd}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", f"{odd}:{ROOT}")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setattr(sys, "executable", str(odd / "python"))
    surveys = survey_hosts([Host("w1", (0,))], SURVEY.machine, SurveyRequest(run=odd))
    assert (odd / "started-in").read_text() == f"{odd}\n"
    assert odd in surveys.others["w1"].room.files
    assert surveys.others["w1"].path == f"{odd}:/usr/bin:/bin"


def test_hosts_of_which_only_some_have_gpus_are_refused_by_name() -> None:
    with pytest.raises(Unavailable, match="w0"):
        weakest([Machine("w0", 1, 1), SURVEY.machine])


@pytest.mark.parametrize("order", [1, -1])
def test_among_gpus_of_one_age_those_with_less_memory_are_the_weakest(order: int) -> None:
    sizes = {"w0": 81920, "w1": 40960}
    machines = [Machine(name, 1, 1, (replace(GPU, memory_bytes=size << 20),)) for name, size in sizes.items()]
    found = weakest(machines[::order])
    assert found.gpus[0].memory_bytes == 40960 << 20


def test_nobody_listens_on_a_free_port() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
