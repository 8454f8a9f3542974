"""Asking other hosts, all at once, before anything starts there; and this one for a port."""

import socket
from collections.abc import Mapping, Sequence

from zlaunch.errors import Unavailable
from zlaunch.machine import Gpu, Machine
from zlaunch.process import output_of

CONNECT_SECONDS = 10
_MARK = "zlaunch asks"
NO_GPUS = "No devices were found"
"""What nvidia-smi says where there is a driver and no GPU."""
_GPU_FIELDS = "index,name,uuid,memory.total,compute_cap"
_QUESTION = (
    f"echo {_MARK}; nproc; awk '/MemTotal/ {{print $2}}' /proc/meminfo; "
    "awk '/MemAvailable/ {print $1, $2}' /proc/meminfo; "
    f"nvidia-smi --query-gpu={_GPU_FIELDS} --format=csv,noheader,nounits 2>/dev/null"
)
"""What a login prints before the mark is no answer; without a driver the last line stays out."""


def ask_machines(names: Sequence[str]) -> Mapping[str, Machine]:
    """Ask each host over ssh what it has; raise Unavailable naming all that do not answer."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=32) as pool:
        answers = dict(zip(names, pool.map(_ask, names), strict=True))
    if silent := [name for name, machine in answers.items() if machine is None]:
        raise Unavailable(
            f"not reachable over ssh without a password: {', '.join(silent)}",
            f"make `ssh -o BatchMode=yes {silent[0]} true` work first",
        )
    return {name: machine for name, machine in answers.items() if machine is not None}


def machines_of(names: Sequence[str], here: Machine) -> Mapping[str, Machine]:
    """Ask each host what it has, but for this machine under any of its names, which is known."""
    local = {name: here for name in names if name in ("localhost", "127.0.0.1", here.hostname)}
    return {**local, **ask_machines([name for name in names if name not in local])}


def free_port() -> int:
    """Find a port on this host that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _ask(name: str) -> Machine | None:
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"]
    # nvidia-smi may be missing, which is an answer too
    answer = output_of(["ssh", *options, name, f"{_QUESTION}; true"], timeout=3 * CONNECT_SECONDS)
    return None if answer is None else read_answer(name, answer)


def read_answer(name: str, answer: str) -> Machine | None:
    """Read what a host answered; None if it is no answer."""
    _, mark, said = answer.partition(f"{_MARK}\n")
    lines = said.splitlines()
    if not mark or len(lines) < 2 or not all(line.isdecimal() for line in lines[:2]):
        return None
    available = [int(line.split()[1]) * 1024 for line in lines[2:] if line.startswith("MemAvailable:")]
    gpus = tuple(_gpu(name, line) for line in lines[2 + len(available) :] if line.strip() != NO_GPUS)
    scarcest = (name, available[0]) if available else None
    return Machine(name, int(lines[0]), int(lines[1]) * 1024, gpus, scarcest=scarcest)


def _gpu(host: str, line: str) -> Gpu:
    """Read a line of nvidia-smi; raise Unavailable for one that describes no GPU a job could use."""
    try:
        index, name, uuid, mebibytes, capability = line.split(", ")
        major, minor = capability.split(".")
        return Gpu(int(index), name, uuid, int(mebibytes) << 20, (int(major), int(minor)))
    except ValueError:
        raise Unavailable(
            f"{host}: `nvidia-smi` answers `{line.strip()}`, which tells of no GPU that could be used",
            f"see `ssh {host} nvidia-smi`, or take {host} out of the hostfile",
        ) from None
