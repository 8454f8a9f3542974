import re
import socket

import pytest

from zlaunch.errors import Unavailable
from zlaunch.hosts import free_port, read_answer
from zlaunch.machine import Machine, weakest

ANSWER = "Welcome!\nzlaunch asks\n96\n2113389312\n"
GPUS = "0, NVIDIA H100 80GB HBM3, GPU-1, 81559, 9.0\n1, NVIDIA H100 80GB HBM3, GPU-2, 81559, 9.0\n"


def test_a_greeting_before_the_answer_is_no_part_of_it() -> None:
    assert read_answer("w0", ANSWER) == Machine("w0", 96, 2113389312 * 1024)


def test_a_host_with_gpus_names_them() -> None:
    machine = read_answer("w0", ANSWER + GPUS)
    assert machine is not None
    assert [gpu.compute_capability for gpu in machine.gpus] == [(9, 0), (9, 0)]


def test_a_host_says_how_much_of_its_memory_is_available() -> None:
    answers = [f"{ANSWER}MemAvailable: {kibibytes}\n{GPUS}" for kibibytes in (3, 2)]
    machines = [read_answer(name, answer) for name, answer in zip(("w0", "w1"), answers, strict=True)]
    found = weakest([machine for machine in machines if machine])
    assert (found.scarcest, len(found.gpus)) == (("w1", 2048), 2)


@pytest.mark.parametrize("answer", ["", "96\n2113389312\n", "zlaunch asks\n", "zlaunch asks\nno\nno\n"])
def test_what_is_no_answer_is_none(answer: str) -> None:
    assert read_answer("w0", answer) is None


def test_hosts_of_which_only_some_have_gpus_are_refused_by_name() -> None:
    machines = [read_answer("w0", ANSWER), read_answer("w1", ANSWER + GPUS)]
    with pytest.raises(Unavailable, match="w0"):
        weakest([machine for machine in machines if machine])


def test_a_driver_that_finds_no_gpu_is_a_host_without_gpus() -> None:
    assert read_answer("w0", f"{ANSWER}No devices were found\n") == Machine("w0", 96, 2113389312 * 1024)


@pytest.mark.parametrize(
    "line",
    [
        "0, NVIDIA GB10, GPU-1, [N/A], 12.1",
        "0, NVIDIA H100, GPU-1, 81559, [Unknown Error]",
        "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error",
        "Failed to initialize NVML: Driver/library version mismatch",
    ],
)
def test_an_answer_that_is_no_gpu_is_refused_with_its_host_and_its_words(line: str) -> None:
    with pytest.raises(Unavailable, match=re.escape(f"w0: `nvidia-smi` answers `{line}`")):
        read_answer("w0", f"{ANSWER}{GPUS}{line}\n")


@pytest.mark.parametrize("order", [1, -1])
def test_among_gpus_of_one_age_those_with_less_memory_are_the_weakest(order: int) -> None:
    sizes = {"w0": 81920, "w1": 40960}
    machines = [
        read_answer(name, f"{ANSWER}0, NVIDIA A100, GPU-1, {size}, 8.0\n") for name, size in sizes.items()
    ]
    found = weakest([machine for machine in machines if machine][::order])
    assert found.gpus[0].memory_bytes == 40960 << 20


def test_nobody_listens_on_a_free_port() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
