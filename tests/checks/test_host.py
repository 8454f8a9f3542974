"""Each check of one host: facts in which one thing is wrong, and the row that says so."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.checks.recorded import GIB, cpu_host, gpu_host, machine_facts, with_packages
from zlaunch.checks.disks import HERE, TEMPORARY
from zlaunch.checks.host import CHECKS, Check, check_host
from zlaunch.checks.requirements import ANY_JOB, ConfigAtHand, Requirements
from zlaunch.checks.result import CheckResult, Status
from zlaunch.errors import Finding
from zlaunch.hosts.machine.facts import GpuLinks, MachineFacts
from zlaunch.hosts.machine.op_states import OpState
from zlaunch.hosts.machine.resources import Cgroup, Disk, Driver
from zlaunch.job.file_kinds import OF_ANOTHER_PROGRAM

ANY = replace(ANY_JOB, directories={HERE: Path("/home/me"), TEMPORARY: Path("/tmp")})
OK, NOTE, WARNING, ERROR = Status.OK, Status.NOTE, Status.WARNING, Status.ERROR


def row(facts: MachineFacts, name: str, needs: Requirements = ANY) -> CheckResult:
    (found,) = [one for one in check_host(facts, needs) if one.name == name]
    return found


@pytest.mark.parametrize("facts", [cpu_host(), gpu_host()], ids=["on the CPU", "on a GPU"])
def test_of_a_healthy_host_nothing_is_wrong(facts: MachineFacts) -> None:
    assert {one.status for one in check_host(facts, ANY)} <= {OK, NOTE}


GPU = gpu_host().machine.gpus[0]
MISSING = {"cpu_adam": OpState("missing")}
BOTH_DISKS = {Path("/home/me"): Disk(1, GIB, GIB), Path("/tmp"): Disk(2, GIB, GIB)}


def with_disk(path: str, disk: Disk) -> MachineFacts:
    return cpu_host(free={"disks": {**BOTH_DISKS, Path(path): disk}})


WRONG: dict[str, tuple[MachineFacts, str, Status, str, str | None]] = {
    "no torch": (
        machine_facts("no-torch"),
        *("torch", ERROR, "not installed", "`/venv/bin/python -m pip install torch`"),
    ),
    "a deepspeed that is too old": (
        with_packages(cpu_host(), deepspeed="0.9.1"),
        *("deepspeed", WARNING, "0.9.1, older than", "pip install --upgrade deepspeed"),
    ),
    "a newer torch": (
        with_packages(cpu_host(), torch="3.0.0"),
        *("torch", NOTE, "newer than what zlaunch was tested with (2.13 to 2.15)", None),
    ),
    "a busy GPU": (
        machine_facts("busy-gpu"),
        *("GPU 0", WARNING, "9.0 GiB of 80.0 GiB free; in use: `python train.py` of ada (pid 4711)", "`kill 4711`"),
    ),
    "an old driver": (
        gpu_host(hardware={"driver": Driver("520", "11.8")}),
        *("driver", ERROR, "520, up to CUDA 11.8", "update the driver"),
    ),
    "a toolkit of another release": (
        gpu_host(compilers={"nvcc": "11.8"}),
        *("CUDA toolkit", WARNING, "11.8, but torch was built for 12.8", "install the CUDA 12 toolkit"),
    ),
    "no toolkit": (gpu_host(compilers={"nvcc": None}), "CUDA toolkit", WARNING, "no `nvcc`", "CUDA_HOME"),
    "GPUs that cannot reach each other": (
        gpu_host(hardware={"gpus": (GPU, replace(GPU, index=1))}, links=GpuLinks(peers=((True, False), (False, True)))),
        *("GPU peer access", WARNING, "not between 0 and 1", "`nvidia-smi topo -p2p r`"),
    ),
    "no compiler": (
        cpu_host(compilers={"cxx": None}),
        *("compilers", WARNING, "without a C++ compiler, native ops", "`apt-get install g++`"),
    ),
    "no compiler for an op that is missing": (
        cpu_host(compilers={"cxx": None}, ops=MISSING),
        *("compilers", ERROR, "the native ops of this job cannot be compiled", "`apt-get install g++`"),
    ),
    "no headers of Python": (
        cpu_host(compilers={"has_python_headers": False}),
        *("compilers", WARNING, "the headers of Python", "python3-dev"),
    ),
    "an op that was never compiled": (
        cpu_host(ops=MISSING),
        *("op cpu_adam", NOTE, "the first start does it (the optimizer is offloaded", None),
    ),
    "a stale op": (
        cpu_host(ops={"cpu_adam": OpState("stale", "its files have changed")}),
        *("op cpu_adam", NOTE, "compiles it again: its files have changed", None),
    ),
    "an op whose build was killed": (
        cpu_host(ops={"cpu_adam": OpState("left-lock", lock="/cache/cpu_adam/lock", age=7200)}),
        *("op cpu_adam", WARNING, "was killed 2 h 00 min ago", "`rm /cache/cpu_adam/lock`"),
    ),
    "a CPU without instructions for bf16": (
        cpu_host(hardware={"cpu_bf16": False}),
        *("GPUs", NOTE, "in fp32 by default: it has no instructions for bf16", None),
    ),
    "an op that is being compiled": (
        cpu_host(ops={"cpu_adam": OpState("locked", lock="/x", age=5, holder=12)}),
        *("op cpu_adam", NOTE, "process 12 is compiling it", None),
    ),
    "a limit of memory": (
        cpu_host(
            free={"cgroup": Cgroup("/job", limit_bytes=4 * GIB, used_bytes=3 * GIB)}
        ),
        *("memory", NOTE, "1.0 GiB left of a limit of 4.0 GiB (/job)", None),
    ),
    "the /dev/shm of a container": (
        cpu_host(free={"shm": Disk(1, 64 << 20, 64 << 20)}),
        *("/dev/shm", WARNING, "64 MiB of 64 MiB free", "--shm-size 1g"),
    ),
    "locked memory with InfiniBand": (
        cpu_host(free={"memlock_bytes": 65536, "has_infiniband": True}),
        *("locked memory", WARNING, "too little for InfiniBand", "ulimit"),
    ),
    "a directory that cannot be written": (
        with_disk("/home/me", Disk(1, GIB, GIB, is_writable=False)),
        *("disk: this directory", ERROR, "/home/me is not writable", "make /home/me writable"),
    ),
    "a full disk": (
        with_disk("/tmp", Disk(1, GIB, 1)),
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
def test_what_is_wrong_is_a_row_with_what_to_type(
    case: tuple[MachineFacts, str, Status, str, str | None],
) -> None:
    facts, name, status, words, typed = case
    found = row(facts, name)
    assert found.status is status, found
    assert words in found.value
    assert found.hint is None if typed is None else typed in str(found.hint)


def test_an_interface_may_be_named_by_its_beginning_or_excluded() -> None:
    for value in ("eth", "^docker0,lo", "=eth0"):
        names = [
            one.name for one in check_host(cpu_host(network={"chosen": {"NCCL_SOCKET_IFNAME": value}}), ANY)
        ]
        assert "NCCL_SOCKET_IFNAME" not in names


def test_a_ds_config_that_deepspeed_refuses_is_an_error_that_names_the_command() -> None:
    found = row(
        cpu_host(),
        "ds_config",
        Requirements(config=ConfigAtHand("ds.json", (Finding("x", "stage is 7"), Finding("y", "z")))),
    )
    assert (found.status, found.value) == (ERROR, "ds.json: stage is 7, and 1 more")
    assert found.hint == "`zlaunch config validate ds.json`"


def test_a_config_of_another_program_is_named_with_what_to_type() -> None:
    finding = Finding(OF_ANOTHER_PROGRAM, "`lf.yaml` is a config of LLaMA-Factory", "type this")
    found = row(cpu_host(), "ds_config", Requirements(config=ConfigAtHand("lf.yaml", (finding,))))
    assert (found.value, found.hint) == (finding.message, finding.hint)


def test_nvme_offload_needs_locked_memory() -> None:
    limited = cpu_host(free={"memlock_bytes": 65536})
    assert row(limited, "locked memory").status is OK
    assert row(limited, "locked memory", replace(ANY, locked_bytes=None)).status is WARNING


def test_a_topic_that_cannot_be_looked_at_is_one_error_in_its_own_words() -> None:
    failed = [one for one in check_host(machine_facts("silent-driver"), ANY) if one.status is ERROR]
    assert [one.name for one in failed] == ["GPUs"]
    assert failed[0].value.startswith("there is an NVIDIA device, but its driver does not answer")


@pytest.mark.parametrize("check", CHECKS)
def test_what_is_not_known_of_a_host_is_not_judged(check: Check) -> None:
    found = check(MachineFacts(cpu_host().python), ANY)
    assert {one.name for one in found} <= {
        "Python",
        "torch",
        "deepspeed",
        "transformers",
        "accelerate",
        "other packages",
    }
