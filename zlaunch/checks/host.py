"""The checks of one host: functions from its facts to rows, in the order of the table.

An error means that no job, or not the one at hand, can train; a warning, that some jobs fail or are slow.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zlaunch.checks.gpu_links import slow_pairs, unreachable_pairs
from zlaunch.checks.row import Row, Status
from zlaunch.dsconfig.native_ops import OPS
from zlaunch.errors import Finding
from zlaunch.hosts.agent.questions import Facts
from zlaunch.hosts.machine.interpreter import ESTIMATING
from zlaunch.job.stack import TESTED, SoftwareStack
from zlaunch.job.trainer_releases import numbers_of
from zlaunch.units import duration, memory

SHM = "/dev/shm"  # noqa: S108 - nothing is written there
CONTAINER_SHM_BYTES = 64 << 20
LEAST_DISK_BYTES = 1 << 30
_OK, _NOTE, _WARNING, _ERROR = Status.OK, Status.NOTE, Status.WARNING, Status.ERROR


@dataclass(frozen=True)
class JobNeeds:
    """What the rows are for."""

    ds_config: str | None = None
    """The file at hand; None if there is none."""
    findings: tuple[Finding, ...] = ()
    """Mistakes in it with which DeepSpeed fails."""
    shown_by: str | None = None
    """The command that shows them, if it is not `zlaunch config validate`."""
    needs_nvme: bool = False
    over_network: bool = False
    """Whether the host is one of several."""


def check_host(facts: Facts, subject: JobNeeds) -> list[Row]:
    """Judge a host; a topic that could not be looked at is an error of its own."""
    rows = [
        Row(_NAMES.get(topic, topic), _ERROR, message, hint)
        for topic, (message, hint) in _distinct(facts["errors"]).items()
    ]
    for topic, check in CHECKS:
        if topic in facts:
            rows += check(facts, subject)
    return rows


def _distinct(errors: Mapping[str, list[str | None]]) -> dict[str, tuple[str, str | None]]:
    """Leave out topics that failed for the same reason as an earlier one."""
    found: dict[str, tuple[str, str | None]] = {}
    for topic, (message, hint) in errors.items():
        if (str(message), hint) not in found.values():
            found[topic] = (str(message), hint)
    return found


def _python(facts: Facts, _: JobNeeds) -> Iterator[Row]:
    python = facts["python"]
    yield Row("Python", _OK, f"{python['version']}, {python['executable']}")


def _packages(facts: Facts, _: JobNeeds) -> Iterator[Row]:
    python = facts["python"]
    found = python["packages"]
    stack = SoftwareStack({name: found.get(name) or None for name in TESTED})
    for name in TESTED:
        yield _package(name, found, stack, python["executable"])
    others = [
        f"{name} {version}".strip() for name, version in found.items() if name not in (*TESTED, "typer")
    ]
    if others:
        yield Row("other packages", _OK, ", ".join(others))


def _package(name: str, found: Mapping[str, str], stack: SoftwareStack, python: str) -> Row:
    if name not in found:
        missing = _ERROR if name in ESTIMATING[:2] else _WARNING
        return Row(name, missing, "not installed", f"`{python} -m pip install {name}`")
    version = found[name] or "unknown version"
    oldest, newest = TESTED[name]
    tested = newest if oldest == newest else f"{oldest} to {newest}"
    if stack.is_tested(name):
        return Row(name, _OK, version)
    if numbers_of(version) > numbers_of(newest):
        return Row(name, _NOTE, f"{version}, newer than what zlaunch was tested with ({tested})")
    older = f"{version}, older than what zlaunch was tested with ({tested})"
    is_too_old = name in {"deepspeed", "transformers"}
    return Row(name, _WARNING if is_too_old else _NOTE, older, f"`{python} -m pip install --upgrade {name}`")


def _gpus(facts: Facts, _: JobNeeds) -> Iterator[Row]:
    gpus = facts["gpus"]
    if not gpus:
        yield Row("GPUs", _NOTE, "none; jobs train on the CPU")
    for gpu in gpus:
        free, total = gpu["free_bytes"], gpu["memory_bytes"]
        left = "" if free is None else f"{memory(free)} of "
        text = f"{gpu['name']}, {left}{memory(total)}{'' if free is None else ' free'}"
        holders = ", ".join(_holder(one) for one in gpu["processes"])
        if not gpu["is_busy"]:
            yield Row(f"GPU {gpu['index']}", _OK, text)
            continue
        who = holders or "a process that is not visible from here"
        pids = " ".join(str(one["pid"]) for one in gpu["processes"] if one["command"])
        hint = f"`kill {pids}` if it is yours" if pids else "`nvidia-smi` shows when it is free"
        yield Row(f"GPU {gpu['index']}", _WARNING, f"{text}; in use by {who}", hint)


def _holder(process: Mapping[str, Any]) -> str:
    name = process["command"] or "an unknown process"
    user = f" of {process['user']}" if process["user"] else ""
    used = "" if process["used_bytes"] is None else f", {memory(process['used_bytes'])}"
    return f"{name}{user} (pid {process['pid']}{used})"


def _cuda(facts: Facts, _: JobNeeds) -> Iterator[Row]:
    """Compare the driver with what torch was built for, and that with the toolkit.

    A driver runs programs of its own major release of CUDA and older ones (CUDA compatibility guide), and
    DeepSpeed builds ops with a toolkit of torch's major release alone (`op_builder/builder.py`,
    `assert_no_cuda_mismatch`).
    """
    cuda = facts["cuda"]
    torch, driver, nvcc = cuda["torch_cuda"], cuda["driver_cuda"], cuda["nvcc"]
    if torch is None and not facts.get("gpus"):
        return
    if driver is not None:
        text = f"{cuda['driver']}, up to CUDA {driver}"
        is_old = torch is not None and numbers_of(torch)[0] > numbers_of(driver)[0]
        hint = f"update the driver, or install a torch that was built for CUDA {driver} or older"
        yield Row("driver", _ERROR if is_old else _OK, text, hint if is_old else None)
    elif facts.get("gpus"):
        yield Row("driver", _NOTE, "its version is unknown: `nvidia-smi` gives no answer")
    if torch is not None:
        yield Row("torch's CUDA", _OK, torch)
        yield _toolkit(torch, nvcc)
    if cuda["nccl"] is not None:
        yield Row("NCCL", _OK, cuda["nccl"])


def _toolkit(torch: str, nvcc: str | None) -> Row:
    major = numbers_of(torch)[0]
    hint = f"install the CUDA {major} toolkit, and set CUDA_HOME to its directory"
    if not nvcc:
        return Row("CUDA toolkit", _WARNING, "no `nvcc`: native ops for GPUs cannot be compiled", hint)
    if numbers_of(nvcc)[0] != major:
        text = f"{nvcc}, but torch was built for {torch}: DeepSpeed compiles no ops for GPUs"
        return Row("CUDA toolkit", _WARNING, text, hint)
    return Row("CUDA toolkit", _OK, nvcc)


def _links(facts: Facts, _: JobNeeds) -> Iterator[Row]:
    links = facts["links"]
    if links is None:
        return
    if links["peers"] is None:
        yield Row("GPU peer access", _NOTE, "unknown: torch gives no answer")
    elif pairs := unreachable_pairs(links["peers"]):
        text = f"not between {_pairs(pairs)}: NCCL goes through the memory of the host"
        yield Row("GPU peer access", _WARNING, text, "`nvidia-smi topo -p2p r` says why")
    else:
        yield Row("GPU peer access", _OK, f"between all {len(links['peers'])} GPUs")
    if links["matrix"] is not None:
        slow = slow_pairs(links["matrix"])
        text = f"no NVLink between {_pairs(slow)}" if slow else "NVLink between all GPUs"
        yield Row("NVLink", _NOTE if slow else _OK, text)


def _pairs(pairs: list[tuple[int, int]]) -> str:
    more = f" and {len(pairs) - 3} more pairs" if len(pairs) > 3 else ""
    return ", ".join(f"{one} and {other}" for one, other in pairs[:3]) + more


def _compilers(facts: Facts, subject: JobNeeds) -> Iterator[Row]:
    found, missing = facts["compilers"], []
    python = facts["python"]["executable"]
    if found["c++"] is None:
        missing.append(("a C++ compiler", "`apt-get install g++`"))
    if found["ninja"] is None:
        missing.append(("ninja", f"`{python} -m pip install ninja`"))
    if not facts["python"]["headers"]:
        missing.append(("the headers of Python", "`apt-get install python3-dev`"))
    if not missing:
        yield Row("compilers", _OK, f"C++ {found['c++']}, ninja {found['ninja']}".replace(" ,", ","))
        return
    to_build = any(one["state"] != "ready" for one in facts.get("ops", {}).values())
    what = ", ".join(name for name, _ in missing)
    why = "the native ops of this job cannot be compiled" if to_build else "native ops cannot be compiled"
    hints = ", ".join(hint for _, hint in missing)
    yield Row("compilers", _ERROR if to_build else _WARNING, f"without {what}, {why}", hints)


def _ops(facts: Facts, subject: JobNeeds) -> Iterator[Row]:
    if subject.ds_config is not None:
        fatal = subject.findings
        hint = f"`{subject.shown_by or f'zlaunch config validate {subject.ds_config}'}`"
        text = f"{subject.ds_config}: {fatal[0].message}" if fatal else subject.ds_config
        more = f", and {len(fatal) - 1} more" if len(fatal) > 1 else ""
        yield Row("ds_config", _ERROR if fatal else _OK, text + more, hint if fatal else None)
    for name, op in facts["ops"].items():
        yield _op(name, op)


def _op(name: str, op: Mapping[str, Any]) -> Row:
    title = f"op {name}"
    match op["state"]:
        case "ready":
            return Row(title, _OK, "compiled")
        case "missing":
            return Row(title, _NOTE, f"not compiled yet; the first start does it ({OPS[name].why})")
        case "stale":
            return Row(title, _NOTE, f"the first start compiles it again: {op['why']}")
        case "locked":
            who = "another user, container or host" if op["holder"] is None else f"process {op['holder']}"
            return Row(title, _NOTE, f"{who} is compiling it, for {duration(op['age'])} so far")
    text = f"its build was killed {duration(op['age'])} ago; without zlaunch, ranks wait for the lock forever"
    return Row(title, _WARNING, text, f"`rm {op['lock']}`")


def _memory(facts: Facts, _: JobNeeds) -> Iterator[Row]:
    room = facts["room"]
    total, cores = facts.get("machine", {}).get("memory_bytes"), facts.get("machine", {}).get("cores")
    if cores is not None:
        yield Row("CPU cores", _OK, str(cores))
    available, group = room["available_bytes"], room["cgroup"]
    if available is None:
        return
    text = memory(available) + ("" if total is None else f" of {memory(total)}") + " available"
    is_limited = group is not None and group["free_bytes"] == available
    if is_limited:
        text = f"{memory(available)} left of a limit of {memory(group['limit_bytes'])} ({group['path']})"
    yield Row("memory", _NOTE if is_limited else _OK, text, amount=available)


def _shm(facts: Facts, _: JobNeeds) -> Iterator[Row]:
    shm, left = facts["room"]["shm"], facts["room"]["shm_left_bytes"]
    if shm is None:
        yield Row(SHM, _WARNING, "it does not exist; NCCL and dataloader workers need it")
        return
    text = f"{memory(shm['free_bytes'])} of {memory(shm['total_bytes'])} free"
    if shm["free_bytes"] <= CONTAINER_SHM_BYTES:
        hint = f"`docker run --shm-size 1g`, or `mount -o remount,size=1g {SHM}`"
        hint += f"; `rm {SHM}/deepspeed_allreduce_buffer_*` frees {memory(left)}" if left else ""
        text += "; NCCL and dataloader workers may need more"
        yield Row(SHM, _WARNING, text, hint, amount=shm["free_bytes"])
    else:
        yield Row(SHM, _OK, text, amount=shm["free_bytes"])


def _memlock(facts: Facts, subject: JobNeeds) -> Iterator[Row]:
    limit, infiniband = facts["room"]["memlock_bytes"], facts["room"]["infiniband"]
    if limit is None:
        yield Row("locked memory", _OK, "no limit")
        return
    users = [
        name for name, uses in (("NVMe offload", subject.needs_nvme), ("InfiniBand", infiniband)) if uses
    ]
    text = f"limited to {memory(limit)}" + (f", too little for {' and '.join(users)}" if users else "")
    hint = "`ulimit -l unlimited`, or `docker run --ulimit memlock=-1`" if users else None
    yield Row("locked memory", _WARNING if users else _OK, text, hint)


def _disks(facts: Facts, _: JobNeeds) -> Iterator[Row]:
    for name, disk in facts["disks"].items():
        free, total = disk["free_bytes"], disk["total_bytes"]
        text = f"{memory(free)} of {memory(total)} free in {disk['path']}"
        title = f"disk: {name}"
        if not disk["writable"]:
            hint = f"make {disk['path']} writable" if name != "temporary files" else "set TMPDIR"
            yield Row(
                title,
                _ERROR if name == "this directory" else _WARNING,
                f"{disk['path']} is not writable",
                hint,
            )
        elif free < LEAST_DISK_BYTES:
            yield Row(
                title, _WARNING, text, f"`du -sh {disk['path']}/*` shows what takes the space", amount=free
            )
        else:
            yield Row(title, _OK, text, amount=free)


def _hub(facts: Facts, _: JobNeeds) -> Iterator[Row]:
    hub = facts["hub"]
    if hub is None:
        return
    through = f" through {hub['proxy']}" if hub["proxy"] else ""
    if hub["offline"]:
        yield Row("model hub", _NOTE, f"offline: {hub['offline']} is set; models come from the cache")
    elif hub["error"] is None:
        yield Row("model hub", _OK, f"{hub['endpoint']}{through}")
    else:
        hint = "set HF_HUB_OFFLINE=1 to train with models from the cache, or HF_ENDPOINT to a mirror"
        yield Row("model hub", _WARNING, f"{hub['endpoint']} is not reachable{through}: {hub['error']}", hint)


def _network(facts: Facts, subject: JobNeeds) -> Iterator[Row]:
    network = facts["network"]
    names = {one["name"] for one in network["interfaces"]}
    for variable, value in network["chosen"].items():
        wanted = [one.lstrip("=") for one in value.lstrip("^").split(",")]
        is_there = value.startswith("^") or any(name.startswith(one) for one in wanted for name in names)
        if not is_there:
            text = f"{value}, but there is no such interface; there are {', '.join(sorted(names))}"
            yield Row(variable, _ERROR if subject.over_network else _WARNING, text, f"`unset {variable}`")
    if subject.over_network:
        own = network["own_addresses"]
        if own and all(one.startswith("127.") or one == "::1" for one in own) and not network["chosen"]:
            text = (
                f"{network['hostname']} is {own[0]} to itself: ranks on the CPU give that address to others"
            )
            hint = "set GLOO_SOCKET_IFNAME to the interface that leads to the other hosts"
            yield Row("own name", _NOTE, text, hint)


def speed_text(megabits: int | None) -> str:
    """Write the speed of an interface: `100 Gbit/s`."""
    return "" if megabits is None else f"{megabits / 1000:g} Gbit/s"


CHECKS: tuple[tuple[str, Callable[[Facts, JobNeeds], Iterator[Row]]], ...] = (
    ("python", _python),
    ("python", _packages),
    ("gpus", _gpus),
    ("cuda", _cuda),
    ("links", _links),
    ("compilers", _compilers),
    ("ops", _ops),
    ("room", _memory),
    ("room", _shm),
    ("room", _memlock),
    ("disks", _disks),
    ("network", _network),
    ("hub", _hub),
)
"""The topic that a check needs, and the check."""

_NAMES = {"python": "Python", "machine": "GPUs", "ops": "native ops", "room": "memory", "hub": "model hub"}
"""Topic → the row of an error about it."""
