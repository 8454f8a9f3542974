"""Checks of the GPUs of a host: who uses them, their driver and CUDA, and how they are connected."""

import re
from collections.abc import Iterator, Sequence
from itertools import combinations

from zlaunch.checks.requirements import Requirements
from zlaunch.checks.result import CheckResult, Status, judged
from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.resources import Gpu, GpuProcess
from zlaunch.units import gib, memory, numbers_of

_CELL = r"NV\d+|X|PIX|PXB|PHB|NODE|SYS|N/A"


def gpus(facts: MachineFacts, needs: Requirements) -> Iterator[CheckResult]:
    """Find GPUs that others use; whether an idle one is large enough is for the memory estimate."""
    if facts.hardware is None:
        return
    if not facts.hardware.gpus:
        text = "none; jobs train on the CPU"
        if facts.hardware.best_precision == "fp32":
            text += ", in fp32 by default: it has no instructions for bf16"
        yield CheckResult("GPUs", Status.NOTE, text)
    for gpu in facts.hardware.gpus:
        if gpu.is_busy:
            yield _busy(gpu, facts, needs)
        else:
            yield CheckResult(_gpu_name(gpu), Status.OK, _size(gpu))


def _gpu_name(gpu: Gpu) -> str:
    return f"GPU {gpu.index}"


def _size(gpu: Gpu) -> str:
    total = memory(gpu.memory_bytes)
    if gpu.free_bytes is None:
        return f"{gpu.name}, {total}"
    return f"{gpu.name}, {memory(gpu.free_bytes)} of {total} free"


def _busy(gpu: Gpu, facts: MachineFacts, needs: Requirements) -> CheckResult:
    hint = "`nvidia-smi` shows when it is free"
    if pids := " ".join(str(process.pid) for process in gpu.processes if process.command):
        hint = f"`kill {pids}` if it is yours"
    text = f"{_size(gpu)}; in use: {_users(gpu)}"
    if not needs.uses(gpu):
        return CheckResult(_gpu_name(gpu), Status.WARNING, text, hint)
    return judged(_gpu_name(gpu), text, _in_use(gpu, facts, needs), hint)


def _users(gpu: Gpu) -> str:
    return ", ".join(map(_user, gpu.processes)) or "a process that is not visible from here"


def _user(process: GpuProcess) -> str:
    text = "an unknown process"
    if process.command:
        text = f"`{process.command}`"
    if process.user:
        text += f" of {process.user}"
    text += f" (pid {process.pid})"
    if process.used_bytes is not None:
        text += f" uses {gib(process.used_bytes)} GiB"
    return text


def _in_use(gpu: Gpu, facts: MachineFacts, needs: Requirements) -> Finding:
    need, left, severity = needs.gpu_bytes, gpu.free_bytes, Severity.ADVICE
    parts = [f"GPU {gpu.index} is in use: {_users(gpu)}"]
    if left is not None:
        parts.append(f"{gib(left)} of {gib(gpu.memory_bytes)} GiB are free")
    if need is not None:
        parts.append(f"this job needs at least {gib(need)}")
    if need is not None and left is not None and need > left:
        severity = Severity.FAILS_LATER
    return Finding("gpu-busy", "; ".join(parts), _another(gpu, facts, needs), severity=severity)


def _another(gpu: Gpu, facts: MachineFacts, needs: Requirements) -> str:
    words, user = [], ""
    if facts.free is not None:
        user = facts.free.user
    if pids := [str(process.pid) for process in gpu.processes if process.command and process.user == user]:
        words.append(f"`kill {' '.join(pids)}` ends your processes")
    used = needs.devices or ()
    idle = [other.index for other in facts.machine.gpus if not other.is_busy and other.index not in used]
    if used and len(idle) >= len(used) and not needs.spans_hosts:
        devices = ",".join(map(str, idle[: len(used)]))
        words.append(f"`--gpus {devices}{',' * (len(used) == 1)}` uses idle GPUs")
    return ", ".join(words) or "wait until `nvidia-smi` shows that it is free"


def cuda(facts: MachineFacts, needs: Requirements) -> Iterator[CheckResult]:
    """Compare the driver with what torch was built for, and that with the toolkit.

    A driver runs programs of its own major release of CUDA and older ones (CUDA compatibility guide), and
    DeepSpeed builds ops with a toolkit of torch's major release alone (`op_builder/builder.py`,
    `assert_no_cuda_mismatch`).
    """
    if facts.cuda is None or facts.hardware is None:
        return
    torch, has_gpus, driver = facts.cuda.torch, bool(facts.hardware.gpus), facts.hardware.driver
    if torch is None and not has_gpus:
        return
    if has_gpus and driver is None:
        yield CheckResult("driver", Status.NOTE, "it does not tell its version")
    if driver is not None:
        text = f"{driver.release}, up to CUDA {driver.cuda}"
        row = CheckResult("driver", Status.OK, text)
        is_used = any(map(needs.uses, facts.hardware.gpus))
        if is_used and torch is not None and numbers_of(torch)[0] > numbers_of(driver.cuda)[0]:
            row = judged("driver", text, _old_driver(torch, driver.cuda))
        yield row
    if torch is not None:
        yield CheckResult("torch's CUDA", Status.OK, torch)
    if torch is not None and facts.compilers is not None:
        yield _toolkit(torch, facts.compilers.nvcc)
    if facts.cuda.nccl is not None:
        yield CheckResult("NCCL", Status.OK, facts.cuda.nccl)


def _old_driver(torch: str, driver: str) -> Finding:
    return Finding(
        "old-driver",
        f"torch was built for CUDA {torch}, but the driver of the GPUs runs programs up to CUDA {driver}",
        f"update the driver, or install a torch that was built for CUDA {driver} or older",
        severity=Severity.FAILS_LATER,
    )


def _toolkit(torch: str, nvcc: str | None) -> CheckResult:
    major = numbers_of(torch)[0]
    hint = f"install the CUDA {major} toolkit, and set CUDA_HOME to its directory"
    if not nvcc:
        text = "no `nvcc`: native ops for GPUs cannot be compiled"
        return CheckResult("CUDA toolkit", Status.WARNING, text, hint)
    if numbers_of(nvcc)[0] != major:
        text = f"{nvcc}, but torch was built for {torch}: DeepSpeed compiles no ops for GPUs"
        return CheckResult("CUDA toolkit", Status.WARNING, text, hint)
    return CheckResult("CUDA toolkit", Status.OK, nvcc)


def links(facts: MachineFacts, _: Requirements) -> Iterator[CheckResult]:
    """Find pairs of GPUs that are slow to reach each other."""
    if facts.links is None:
        return
    peers, matrix = facts.links.peers, facts.links.matrix
    if peers is None:
        yield CheckResult("GPU peer access", Status.NOTE, "unknown: torch gives no answer")
    elif pairs := unreachable_pairs(peers):
        text = f"not between {_pairs(pairs)}: NCCL goes through the memory of the host"
        yield CheckResult("GPU peer access", Status.WARNING, text, "`nvidia-smi topo -p2p r` says why")
    else:
        yield CheckResult("GPU peer access", Status.OK, f"between all {len(peers)} GPUs")
    if matrix is None:
        return
    if slow := slow_pairs(matrix):
        yield CheckResult("NVLink", Status.NOTE, f"no NVLink between {_pairs(slow)}")
    else:
        yield CheckResult("NVLink", Status.OK, "NVLink between all GPUs")


def _pairs(pairs: Sequence[tuple[int, int]]) -> str:
    text = ", ".join(f"{first} and {second}" for first, second in pairs[:3])
    if len(pairs) > 3:
        text += f" and {len(pairs) - 3} more pairs"
    return text


def read_matrix(text: str) -> list[list[str]]:
    """Read `nvidia-smi topo -m`: for each GPU, how it is connected to each (`NV18`, `PIX`, `SYS`, `X`)."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    gpus = [
        row
        for row in rows
        if row and re.fullmatch(r"GPU\d+", row[0]) and row[1:2] and re.fullmatch(_CELL, row[1])
    ]
    return [row[1 : len(gpus) + 1] for row in gpus]


def slow_pairs(text: str) -> list[tuple[int, int]]:
    """Pairs of GPUs without NVLink between them."""
    matrix = read_matrix(text)
    pairs = combinations(range(len(matrix)), 2)
    return [(first, second) for first, second in pairs if not matrix[first][second].startswith("NV")]


def unreachable_pairs(peers: Sequence[Sequence[bool]]) -> list[tuple[int, int]]:
    """Pairs of GPUs that cannot read each other's memory."""
    pairs = combinations(range(len(peers)), 2)
    return [(first, second) for first, second in pairs if not (peers[first][second] and peers[second][first])]
