import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from zlaunch.errors import Unavailable
from zlaunch.hosts import read_answer
from zlaunch.machine import Cgroup, Disk, Gpu, GpuProcess, Machine, Room, Survey, weakest
from zlaunch.ports import free_port
from zlaunch.survey import MARK, Inquiry, read_inquiry, read_survey, to_json

GPU = Gpu(0, "NVIDIA H100", "GPU-1", 80 << 30, (9, 0), 70 << 30, (GpuProcess(7, "python a.py", "bob", 1),))
SURVEY = Survey(
    Machine("w0.cluster", 96, 1 << 40, (GPU, replace(GPU, index=1)), (2,)),
    Room(
        memory_bytes=1 << 39,
        cgroup=Cgroup("/sys/fs/cgroup/job", 3, 2),
        shm=Disk(9, 2, 1),
        disks={Path("/nvme"): Disk(1, 2, 1)},
        missing=frozenset({"debugpy"}),
        files={Path("/runs"): 12},
        left_locks=frozenset({Path("/ext/cpu_adam/lock")}),
    ),
    29500,
    "Address already in use",
)


def test_what_a_host_says_arrives_whole() -> None:
    assert read_survey(to_json(SURVEY)) == SURVEY


def test_what_a_host_is_asked_arrives_whole() -> None:
    asked = Inquiry({"DS_ACCELERATOR": "cpu"}, Path("/runs"), (Path("/nvme"),), ("debugpy",), 5678)
    assert read_inquiry(to_json(asked)) == asked


def test_an_answer_is_found_among_what_a_login_prints() -> None:
    answer = f"Welcome!\n{MARK}{to_json(SURVEY)}\na warning at the end"
    assert read_answer("w0", answer) == replace(SURVEY, machine=replace(SURVEY.machine, hostname="w0"))


def test_a_host_that_cannot_run_this_python_is_refused_with_its_own_words() -> None:
    with pytest.raises(Unavailable, match=re.escape("w0 cannot run zlaunch with")) as refused:
        read_answer("w0", "Welcome!\nsh: 1: /venv/bin/python: not found")
    assert refused.value.message.endswith(": sh: 1: /venv/bin/python: not found")


def test_a_host_with_another_zlaunch_is_refused() -> None:
    with pytest.raises(Unavailable, match="w0 cannot run zlaunch"):
        read_answer("w0", f'{MARK}{{"machine": {{}}}}')


def test_what_keeps_a_host_from_an_answer_is_said_with_its_name() -> None:
    with pytest.raises(Unavailable, match="w0: torch has no CUDA"):
        read_answer("w0", MARK + json.dumps({"error": "torch has no CUDA", "hint": None}))


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
