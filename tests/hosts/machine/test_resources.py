import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.making import CPU_MACHINE, PYTHON, gpu, machine
from tests.running import ROOT, Program
from zlaunch.hosts.machine.probe import cgroups, disk_of, free_resources, probe_machine
from zlaunch.hosts.machine.resources import (
    Cgroup,
    FreeResources,
    GpuProcess,
    has_bf16_instructions,
    has_fp16_kernels,
    tightest,
    weakest,
)

GIB = 1 << 30


def test_a_machine_with_a_gpu_has_cuda() -> None:
    assert machine(gpu(0)).accelerator == "cuda"


def test_a_machine_without_a_gpu_has_its_cpu() -> None:
    assert CPU_MACHINE.accelerator == "cpu"


@pytest.mark.parametrize(
    ("of_machine", "why"),
    [
        ({}, "no NVIDIA GPU was found"),
        ({"hidden_gpus": (0, 1)}, "CUDA_VISIBLE_DEVICES hides all GPUs"),
        ({"is_cpu_asked": True}, "zlaunch was started with DS_ACCELERATOR=cpu"),
    ],
)
def test_a_machine_says_why_a_job_trains_on_its_cpu(of_machine: dict[str, Any], why: str) -> None:
    assert replace(CPU_MACHINE, **of_machine).why_cpu == why


def test_a_machine_whose_cpu_is_asked_for_is_not_searched_for_gpus() -> None:
    machine = probe_machine({"DS_ACCELERATOR": "cpu"}, PYTHON)
    assert (machine.accelerator, machine.is_cpu_asked) == ("cpu", True)


@pytest.mark.parametrize(
    ("capability", "precision"),
    [((6, 1), "fp32"), ((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((10, 0), "bf16")],
)
def test_the_best_format_follows_the_age_of_the_gpu(capability: tuple[int, int], precision: str) -> None:
    assert machine(gpu(0, capability)).best_precision == precision


def test_the_oldest_gpu_decides_the_format() -> None:
    assert machine(gpu(0, (9, 0)), gpu(1, (7, 5))).best_precision == "fp16"


@pytest.mark.parametrize(("cpu_bf16", "best"), [(True, "bf16"), (False, "fp32"), (None, "bf16")])
def test_a_cpu_without_instructions_for_bf16_trains_in_fp32(cpu_bf16: bool | None, best: str) -> None:
    assert replace(CPU_MACHINE, cpu_bf16=cpu_bf16).best_precision == best


def test_the_host_without_instructions_for_bf16_decides_for_all() -> None:
    hosts = [replace(CPU_MACHINE, cpu_bf16=has) for has in (True, False, None)]
    assert weakest(hosts).best_precision == "fp32"


@pytest.mark.parametrize(
    ("cpuinfo", "architecture", "has_fp16"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 f16c\n", "x86_64", False),
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_fp16 amx_tile\n", "x86_64", True),
        ("flags\t\t: avx2 avx_vnni avx_ne_convert\n", "x86_64", True),
        ("Features\t: fp asimd fphp asimdhp\n", "aarch64", None),
        ("", "x86_64", None),
    ],
)
def test_a_cpu_says_whether_it_has_fp16_kernels(
    cpuinfo: str, architecture: str, has_fp16: bool | None
) -> None:
    assert has_fp16_kernels(cpuinfo, architecture) is has_fp16


@pytest.mark.parametrize(
    ("cpuinfo", "architecture", "has_bf16"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 f16c\n", "x86_64", True),
        ("flags\t\t: fpu avx512f avx512bw avx512_vnni\n", "x86_64", False),
        ("flags\t\t: avx2 avx_vnni avx_ne_convert\n", "x86_64", True),
        ("flags\t\t: avx2 fma f16c\n", "x86_64", False),
        ("Features\t: fp asimd bf16 i8mm\n", "aarch64", True),
        ("Features\t: fp asimd fphp asimdhp\n", "aarch64", False),
        ("", "x86_64", None),
        ("features : edat\n", "s390x", None),
    ],
)
def test_a_cpu_says_whether_it_has_instructions_for_bf16(
    cpuinfo: str, architecture: str, has_bf16: bool | None
) -> None:
    assert has_bf16_instructions(cpuinfo, architecture) is has_bf16


def group(limit: int, used: int, path: str = "/g") -> Cgroup:
    return Cgroup(path, limit, used)


def test_what_is_available_is_the_least_of_the_machine_and_its_control_group() -> None:
    for memory, used, available in ((8, 1, 3), (2, 1, 2), (8, 9, 0)):
        assert FreeResources(memory_bytes=memory, cgroup=group(4, used)).available_bytes == available


def test_nothing_is_known_of_a_machine_that_says_nothing() -> None:
    assert FreeResources().available_bytes is None


def test_a_gpu_is_busy_with_a_process_or_with_memory_that_nobody_admits_to() -> None:
    for changes, is_busy in (
        ({}, False),
        ({"free_bytes": 138 * GIB}, False),
        ({"free_bytes": 100 * GIB}, True),
        ({"processes": (GpuProcess(1),)}, True),
    ):
        assert replace(gpu(0), **changes).is_busy is is_busy


def nested(root: Path, limits: Sequence[tuple[int | None, int]], version: int) -> Path:
    """Make control groups inside of each other, the outermost first, and a process in the innermost."""
    limit_file, used_file, prefix = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        2: ("memory.max", "memory.current", ""),
    }[version]
    unlimited = {1: str(9223372036854771712), 2: "max"}[version]
    mount = root / "fs"
    directory = mount
    for limit, used in limits:
        directory /= "g"
        directory.mkdir(parents=True)
        (directory / limit_file).write_text(unlimited if limit is None else str(limit))
        (directory / used_file).write_text(str(used + 30))
        (directory / "memory.stat").write_text(
            f"cache 99\n{prefix}active_file 10\n{prefix}inactive_file 20\n"
        )
    process = root / "proc"
    process.mkdir()
    path = "/g" * len(limits)
    own, mounted = {
        1: (f"3:cpu:/elsewhere\n4:cpuset,memory:{path}\n0::/\n", "cgroup cgroup rw,cpuset,memory"),
        2: (f"0::{path}\n", "cgroup2 cgroup2 rw"),
    }[version]
    (process / "cgroup").write_text(own)
    (process / "mountinfo").write_text(
        f"20 1 0:1 / / rw - ext4 /dev/sda rw\n35 31 0:32 / {mount} rw,relatime shared:9 - {mounted}\n"
    )
    return process


LIMITS = st.lists(st.tuples(st.none() | st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=5)


@given(LIMITS, st.sampled_from([1, 2]))
def test_the_smallest_room_on_the_way_up_counts(
    tmp_path_factory: pytest.TempPathFactory, limits: list[tuple[int | None, int]], version: int
) -> None:
    process = nested(tmp_path_factory.mktemp("cgroup"), limits, version)
    rooms = [max(0, limit - used) for limit, used in limits if limit is not None]
    found = tightest(cgroups(process))
    assert (None if found is None else found.free_bytes) == min(rooms, default=None)


def test_a_container_that_sees_only_its_own_group_reads_that_one(tmp_path: Path) -> None:
    process = nested(tmp_path, [(1000, 100)], version=1)
    mounts = (process / "mountinfo").read_text()
    (process / "mountinfo").write_text(mounts.replace(f" / {tmp_path}/fs ", f" /docker/abc {tmp_path}/fs/g "))
    (process / "cgroup").write_text("4:memory:/docker/abc\n")
    assert [one.free_bytes for one in cgroups(process)] == [900]


def test_a_group_above_the_namespace_of_a_container_is_its_mount(tmp_path: Path) -> None:
    process = nested(tmp_path, [(1000, 100)], version=2)
    (process / "mountinfo").write_text((process / "mountinfo").read_text().replace("/fs ", "/fs/g "))
    (process / "cgroup").write_text("0::/../..\n")
    assert [one.free_bytes for one in cgroups(process)] == [900]


def test_without_control_groups_nothing_limits(tmp_path: Path) -> None:
    assert list(cgroups(tmp_path)) == []


def test_a_directory_that_will_be_made_is_on_the_disk_of_the_nearest_that_is_there(tmp_path: Path) -> None:
    """Its free space changes between two questions."""
    there, later = disk_of(tmp_path), disk_of(tmp_path / "not" / "yet")
    assert there is not None
    assert later is not None
    assert replace(later, free_bytes=there.free_bytes) == there


def status(folder: Path, capabilities: str) -> Path:
    (folder / "self").mkdir()
    (folder / "self" / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    return folder


@pytest.mark.parametrize(
    ("capabilities", "is_bound"), [("00000000a80425fb", True), ("000001fffeffffff", False)]
)
def test_a_limit_of_locked_memory_binds_whoever_lacks_the_capability(
    tmp_path: Path, capabilities: str, is_bound: bool
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    most = 1 << 16
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, hard))
    try:
        found = free_resources([], status(tmp_path, capabilities)).memlock_bytes
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    assert found == (most if is_bound else None)


FAKE_NVML = """
class NVMLError(Exception):
    pass

class Of:
    def __init__(self, **values):
        self.__dict__.update(values)

def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlSystemGetDriverVersion(): return "550.54.15"
def nvmlSystemGetCudaDriverVersion_v2(): return 12040
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return "NVIDIA H100 80GB HBM3"
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}"
def nvmlDeviceGetMemoryInfo(handle): return Of(total=100, free=40, used=60)
def nvmlDeviceGetCudaComputeCapability(handle): return (9, 0)
def nvmlDeviceGetComputeRunningProcesses(handle):
    if handle == 1:
        raise NVMLError("not supported")
    return [Of(pid=PID, usedGpuMemory=60), Of(pid=4194999, usedGpuMemory=None)]
"""


def test_the_driver_names_what_runs_on_a_gpu(tmp_path: Path) -> None:
    with Program[bytes]([sys.executable, "-c", "input()", "--token", "secret"], stdin=-1) as other:
        (tmp_path / "pynvml.py").write_text(FAKE_NVML.replace("PID", str(other.pid)))
        program = (
            "import dataclasses, json; from zlaunch.hosts.machine.probe import _gpus\n"
            "print(json.dumps([dataclasses.asdict(gpu) for gpu in _gpus()[0]]))"
        )
        env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
        )
        other.communicate(b"\n")
    first, second = json.loads(done.stdout)
    seen, unseen = first["processes"]
    assert (first["free_bytes"], second["processes"]) == (40, [])
    assert (seen["pid"], seen["used_bytes"], seen["command"]) == (other.pid, 60, Path(sys.executable).name)
    assert (unseen["command"], unseen["used_bytes"]) == (None, None)


@pytest.mark.parametrize("asked", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"])
def test_a_gpu_that_is_lost_is_named_as_the_driver_names_it(asked: str, tmp_path: Path) -> None:
    lost = f"def {asked}(_): raise NVMLError('GPU is lost')"
    (tmp_path / "pynvml.py").write_text(f"{FAKE_NVML}\n{lost}\n")
    program = (
        "from zlaunch.errors import *; from zlaunch.hosts.machine.probe import _gpus\n"
        "try: _gpus()\n"
        "except Unavailable as error: print(error.message)"
    )
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert "GPU is lost" in done.stdout


def test_a_buffer_that_another_job_takes_away_meanwhile_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays").write_bytes(b"123")
    found = [tmp_path / "gone", tmp_path / "stays"]
    monkeypatch.setattr(Path, "glob", lambda self, _: found if self == Path("/dev/shm") else [])
    assert free_resources([]).shm_left_bytes == 3


@pytest.mark.parametrize(
    ("answers", "together"),
    [((True, True), True), ((True, False), False), ((None, False), False), ((True, None), None)],
)
def test_hosts_have_fp16_together_only_if_each_has_it(
    answers: tuple[bool | None, ...], together: bool | None
) -> None:
    machines = [replace(CPU_MACHINE, cpu_fp16=answer) for answer in answers]
    assert weakest(machines).cpu_fp16 is together
