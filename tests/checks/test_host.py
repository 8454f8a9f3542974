"""Each check of one host: facts in which one thing is wrong, and the row that says so."""

from dataclasses import replace
from typing import Any

import pytest

from tests.checks.healthy import GIB, GPU, cpu_host, gpu_host
from zlaunch.checks.host import JobNeeds, check_host
from zlaunch.checks.row import Row, Status
from zlaunch.errors import Finding
from zlaunch.hosts.agent.questions import Facts

ANY = JobNeeds()
OK, NOTE, WARNING, ERROR = Status.OK, Status.NOTE, Status.WARNING, Status.ERROR


def row(facts: Facts, name: str, subject: JobNeeds = ANY) -> Row:
    (found,) = [one for one in check_host(facts, subject) if one.name == name]
    return found


@pytest.mark.parametrize("facts", [cpu_host(), gpu_host()], ids=["on the CPU", "on a GPU"])
def test_of_a_healthy_host_nothing_is_wrong(facts: Facts) -> None:
    assert {one.status for one in check_host(facts, JobNeeds())} <= {OK, NOTE}


PACKAGES = cpu_host()["python"]["packages"]
BUSY = {
    **GPU,
    "free_bytes": 9 * GIB,
    "is_busy": True,
    "processes": [{"pid": 4711, "command": "python train.py", "user": "ada", "used_bytes": 70 * GIB}],
}
OP = {"state": "missing", "why": "", "folder": "/cache"}

WRONG: dict[str, tuple[Facts, str, Status, str, str | None]] = {
    "no torch": (
        cpu_host(python={"packages": {"deepspeed": "0.19.8"}}),
        *("torch", ERROR, "not installed", "`/venv/bin/python -m pip install torch`"),
    ),
    "a deepspeed that is too old": (
        cpu_host(python={"packages": {**PACKAGES, "deepspeed": "0.9.1"}}),
        *("deepspeed", WARNING, "0.9.1, older than", "pip install --upgrade deepspeed"),
    ),
    "a newer torch": (
        cpu_host(python={"packages": {**PACKAGES, "torch": "3.0.0"}}),
        *("torch", NOTE, "newer than what zlaunch was tested with (2.13)", None),
    ),
    "a busy GPU": (
        gpu_host(gpus=[BUSY]),
        *("GPU 0", WARNING, "9.0 GiB of 80.0 GiB free; in use by python train.py of ada (pid 4711", "`kill 4711`"),
    ),
    "an old driver": (
        gpu_host(cuda={"driver_cuda": "11.8", "torch_cuda": "12.8", "driver": "520", "nvcc": "12.8", "nccl": None}),
        *("driver", ERROR, "520, up to CUDA 11.8", "update the driver"),
    ),
    "a toolkit of another release": (
        gpu_host(cuda={"nvcc": "11.8"}),
        *("CUDA toolkit", WARNING, "11.8, but torch was built for 12.8", "install the CUDA 12 toolkit"),
    ),
    "no toolkit": (gpu_host(cuda={"nvcc": None}), "CUDA toolkit", WARNING, "no `nvcc`", "CUDA_HOME"),
    "GPUs that cannot reach each other": (
        gpu_host(gpus=[GPU, {**GPU, "index": 1}], links={"matrix": None, "peers": [[True, False], [False, True]]}),
        *("GPU peer access", WARNING, "not between 0 and 1", "`nvidia-smi topo -p2p r`"),
    ),
    "no compiler": (
        cpu_host(compilers={"c++": None}),
        *("compilers", WARNING, "without a C++ compiler, native ops", "`apt-get install g++`"),
    ),
    "no compiler for an op that is missing": (
        cpu_host(compilers={"c++": None}, ops={"cpu_adam": OP}),
        *("compilers", ERROR, "the native ops of this job cannot be compiled", "`apt-get install g++`"),
    ),
    "no headers of Python": (
        cpu_host(python={"headers": False}),
        *("compilers", WARNING, "the headers of Python", "python3-dev"),
    ),
    "an op that was never compiled": (
        cpu_host(ops={"cpu_adam": OP}),
        *("op cpu_adam", NOTE, "the first start does it (the optimizer is offloaded", None),
    ),
    "a stale op": (
        cpu_host(ops={"cpu_adam": {**OP, "state": "stale", "why": "its files have changed"}}),
        *("op cpu_adam", NOTE, "compiles it again: its files have changed", None),
    ),
    "an op whose build was killed": (
        cpu_host(ops={"cpu_adam": {"state": "left-lock", "lock": "/cache/cpu_adam/lock", "age": 7200, "holder": None}}),
        *("op cpu_adam", WARNING, "was killed 2 h 00 min ago", "`rm /cache/cpu_adam/lock`"),
    ),
    "an op that is being compiled": (
        cpu_host(ops={"cpu_adam": {"state": "locked", "lock": "/x", "age": 5, "holder": 12}}),
        *("op cpu_adam", NOTE, "process 12 is compiling it", None),
    ),
    "a limit of memory": (
        cpu_host(
            room={
                "available_bytes": GIB,
                "cgroup": {"path": "/job", "limit_bytes": 4 * GIB, "used_bytes": 3 * GIB, "free_bytes": GIB},
            }
        ),
        *("memory", NOTE, "1.0 GiB left of a limit of 4.0 GiB (/job)", None),
    ),
    "the /dev/shm of a container": (
        cpu_host(room={"shm": {"device": 1, "total_bytes": 64 << 20, "free_bytes": 64 << 20}}),
        *("/dev/shm", WARNING, "64 MiB of 64 MiB free", "--shm-size 1g"),
    ),
    "locked memory with InfiniBand": (
        cpu_host(room={"memlock_bytes": 65536, "infiniband": True}),
        *("locked memory", WARNING, "too little for InfiniBand", "ulimit"),
    ),
    "a directory that cannot be written": (
        cpu_host(disks={"this directory": {"path": "/ro", "writable": False, "free_bytes": 1, "total_bytes": 1}}),
        *("disk: this directory", ERROR, "/ro is not writable", "make /ro writable"),
    ),
    "a full disk": (
        cpu_host(disks={"temporary files": {"path": "/tmp", "writable": True, "free_bytes": 1, "total_bytes": GIB}}),
        *("disk: temporary files", WARNING, "of 1.0 GiB free in /tmp", "`du -sh /tmp/*`"),
    ),
    "a hub that is not reachable": (
        cpu_host(hub={"error": "huggingface.co: timed out"}),
        *("model hub", WARNING, "is not reachable: huggingface.co: timed out", "HF_HUB_OFFLINE=1"),
    ),
    "a hub that is switched off": (
        cpu_host(hub={"offline": "HF_HUB_OFFLINE"}),
        *("model hub", NOTE, "offline: HF_HUB_OFFLINE is set", None),
    ),
    "an interface that does not exist": (
        cpu_host(network={"chosen": {"NCCL_SOCKET_IFNAME": "ib0"}}),
        *("NCCL_SOCKET_IFNAME", WARNING, "ib0, but there is no such interface", "`unset NCCL_SOCKET_IFNAME`"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_a_row_with_what_to_type(case: tuple[Facts, str, Status, str, str | None]) -> None:
    facts, name, status, words, typed = case
    found = row(facts, name)
    assert found.status is status, found
    assert words in found.value
    assert found.hint is None if typed is None else typed in str(found.hint)


def test_an_interface_may_be_named_by_its_beginning_or_excluded() -> None:
    for value in ("eth", "^docker0,lo", "=eth0"):
        names = [
            one.name
            for one in check_host(cpu_host(network={"chosen": {"NCCL_SOCKET_IFNAME": value}}), JobNeeds())
        ]
        assert "NCCL_SOCKET_IFNAME" not in names


def test_a_ds_config_that_deepspeed_refuses_is_an_error_that_names_the_command() -> None:
    found = row(cpu_host(), "ds_config", JobNeeds("ds.json", (Finding("x", "stage is 7"), Finding("y", "z"))))
    assert (found.status, found.value) == (ERROR, "ds.json: stage is 7, and 1 more")
    assert found.hint == "`zlaunch config validate ds.json`"


def test_nvme_offload_needs_locked_memory() -> None:
    limited = cpu_host(room={"memlock_bytes": 65536})
    assert row(limited, "locked memory").status is OK
    assert row(limited, "locked memory", replace(JobNeeds(), needs_nvme=True)).status is WARNING


def test_a_topic_that_cannot_be_looked_at_is_an_error_in_its_own_words() -> None:
    facts: dict[str, Any] = {**cpu_host()}
    for topic in ("machine", "gpus", "cuda"):
        del facts[topic]
        facts["errors"] = {**facts["errors"], topic: ["the driver does not answer", "`nvidia-smi`"]}
    failed = [one for one in check_host(facts, JobNeeds()) if one.status is ERROR]
    assert failed == [Row("GPUs", ERROR, "the driver does not answer", "`nvidia-smi`")]
