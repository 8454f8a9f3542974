"""Runs that died, as evidence: the texts are those of the real programs."""

from collections.abc import Mapping
from typing import Any, cast

from zlaunch.diagnosis.evidence import ErrorEvidence, Evidence, JobEvidence, RankEvidence
from zlaunch.rundir.record import MachineSample
from zlaunch.worker.sampling import OomKills

GIB = 1 << 30
SITE = "/opt/venv/lib/python3.11/site-packages"


def frame(file: str, line: int, function: str, code: str) -> str:
    return f'  File "{file}", line {line}, in {function}\n    {code}\n'


def raised(kind: str, message: str, within: str = "", rank: int = 0, **known: Any) -> RankEvidence:
    """A rank whose script raised an exception; `within` are the frames below the user's own."""
    traceback = (
        "Traceback (most recent call last):\n"
        + frame("/home/ann/train.py", 42, "main", "trainer.train()")
        + within
        + f"{kind}: {message}\n"
    )
    error = ErrorEvidence(
        kind,
        message,
        traceback,
        {"file": "/home/ann/train.py", "line": 42, "function": "main"},
        known.get("phase", "training"),
        known.pop("time", 100.0),
    )
    return RankEvidence(
        **{
            "rank": rank,
            "host": "w1",
            "returncode": 1,
            "ended": 101.0,
            "phase": "training",
            "step": 7,
            "error": error,
            **known,
        }
    )


def printed(log: str, returncode: int | None = 1, rank: int = 0, **known: Any) -> RankEvidence:
    """A rank of which only the log and the status are left."""
    return RankEvidence(
        **{
            "rank": rank,
            "host": "w1",
            "returncode": returncode,
            "ended": 101.0,
            "phase": "training",
            "step": 7,
            "log": log,
            **known,
        }
    )


def stopped(rank: int = 1, **known: Any) -> RankEvidence:
    """A rank that the launcher stopped because another one had failed."""
    return RankEvidence(
        **{
            "rank": rank,
            "host": "w1",
            "returncode": -15,
            "stopped_by": 15,
            "ended": 103.0,
            "phase": "training",
            "step": 7,
            **known,
        }
    )


def machine(**known: int | None) -> dict[str, MachineSample]:
    return {"w1": cast("MachineSample", known)}


def kills(group: int | None = 0, machine: int | None = 0) -> dict[str, OomKills]:
    """Count the kills of the kernel on the only host."""
    return {"w1": OomKills(group, machine)}


def run(
    *ranks: RankEvidence,
    job: Mapping[str, Any] | None = None,
    machines: Mapping[str, MachineSample] | None = None,
    launcher_returncode: int = 1,
    **known: Any,
) -> Evidence:
    about = {"world_size": max(len(ranks), 1), **(job or {})}
    return Evidence(JobEvidence(**about), ranks, machines or {}, launcher_returncode, **known)


CUDA_OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which {free} is "
    "free. Including non-PyTorch memory, this process has 78.30 GiB memory in use. {others}Of the allocated memory "
    "76.02 GiB is allocated by PyTorch, and {between} is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
    "See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-"
    "memory-usage-with-pytorch-cuda-alloc-conf)"
)
GLOO_CLOSED = (
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:47526. This is typically caused by a remote worker crashing. Check the logs of the remote worker "
    "before reporting an error. GLHF! 🏖️"
)
GLOO_TIMEOUT = (
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
    "Timed out waiting 6000ms for recv operation to complete"
)
WATCHDOG = (
    "[rank{rank}]:[E1121 20:39:05.582000 ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={number}, OpType={kind}, NumelIn=4096, NumelOut=32768, Timeout(ms)=600000) ran for "
    "600029 milliseconds before timing out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
)
IN_USE = (
    "The server socket has failed to listen on any local network address. port: 29715, useIpv6: false, code: -98, "
    "name: EADDRINUSE, message: address already in use"
)
SEGFAULT = (
    "Fatal Python error: Segmentation fault\n\n"
    "Current thread 0x00007f9773beeb80 (most recent call first):\n"
    '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
    '  File "/home/ann/train.py", line 17 in <module>\n\n'
    "Extension modules: numpy._core._multiarray_umath, torch._C (total: 13)\n"
)
BUILD_FAILED = (
    "Error building extension 'cpu_adam': [1/3] g++ -MMD -MF cpu_adam.o.d -DTORCH_EXTENSION_NAME=cpu_adam -c "
    f"{SITE}/deepspeed/ops/csrc/adam/cpu_adam.cpp -o cpu_adam.o \nFAILED: [code=1] cpu_adam.o \n"
    f"g++ -MMD -MF cpu_adam.o.d -c {SITE}/deepspeed/ops/csrc/adam/cpu_adam.cpp -o cpu_adam.o \n"
    "<command-line>: fatal error: nope_missing.h: No such file or directory\ncompilation terminated.\n"
    "ninja: build stopped: subcommand failed.\n"
)
BUILD_LED_TO = (
    "Traceback (most recent call last):\n"
    + frame(
        f"{SITE}/torch/utils/cpp_extension.py", 2910, "_run_ninja_build", "raise RuntimeError(message) from e"
    )
    + f"RuntimeError: {BUILD_FAILED}\n\nThe above exception was the direct cause of the following exception:\n\n"
)


def built(kind: str, message: str, **known: Any) -> RankEvidence:
    """A rank in which an op did not compile: the compiler's words are in the chain of exceptions."""
    rank = raised(kind, message, phase="building ops", **known)
    assert rank.error is not None
    return RankEvidence(
        rank=rank.rank,
        host=rank.host,
        returncode=1,
        ended=101.0,
        phase="building ops",
        error=ErrorEvidence(kind, message, BUILD_LED_TO + rank.error.traceback, rank.error.frame),
    )


FORECAST = {
    "phases": [
        {"name": "load", "peak": {"gpu": GIB, "pageable": GIB // 2, "pinned": 0}, "end": {}},
        {"name": "step", "peak": {"gpu": 70 * GIB, "pageable": 2 * GIB, "pinned": GIB}, "end": {}},
    ]
}
BUS_IN_A_LOADER = (
    "DataLoader worker (pid 8123) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
    "shared memory. Please try to raise your shared memory limit."
)
NAN = float("nan")
