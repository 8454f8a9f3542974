"""What a host tells about itself: one function for each topic, all of it plain JSON.

Imports delay the answer of every host, so only what is needed is imported, and nothing is judged here.
"""

import hashlib
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zlaunch.errors import ZlaunchError
from zlaunch.files import nearest
from zlaunch.hosts.agent.questions import Questions
from zlaunch.hosts.agent.reached import connection
from zlaunch.hosts.machine.hub import reach_hub
from zlaunch.hosts.machine.interpreter import Interpreter, inspect_python
from zlaunch.hosts.machine.network import interfaces
from zlaunch.hosts.machine.op_states import look_at_ops
from zlaunch.hosts.machine.probe import free_resources, probe_machine
from zlaunch.hosts.machine.resources import Machine
from zlaunch.process import ours, output_of
from zlaunch.whereabouts import whereabouts

PACKAGES = ("huggingface_hub", "safetensors", "tokenizers", "bitsandbytes", "flash_attn", "mpi4py", "triton")
"""Packages that are shown if they are there, besides those that every description of a Python covers."""

_VERSION = re.compile(r"\d+(?:\.\d+)+")
_PROGRAM_SECONDS = 20.0
_PEER_SECONDS = 60.0


class _Look:
    """What several topics need, looked up once."""

    def __init__(self, questions: Questions) -> None:
        self.questions = questions
        self.environ = {**os.environ, **questions.environ}
        path = None if questions.python is None else Path(questions.python)
        self.python: Interpreter = inspect_python(path, PACKAGES)
        self._machine: Machine | None = None

    @property
    def machine(self) -> Machine:
        """The hardware; raise Unavailable if its GPUs cannot be used."""
        if self._machine is None:
            self._machine = probe_machine(self.environ, self.python)
        return self._machine

    def program(self, name: str) -> str | None:
        """Find a program as a rank would: in the environment of its Python, or on PATH."""
        folders = [*self.python.not_on_path(self.environ), self.environ.get("PATH", os.defpath)]
        return shutil.which(name, path=os.pathsep.join(folders))

    def torch_cuda(self) -> str | None:
        """The CUDA release that torch was built for, as `12.8`."""
        return _named_in("cuda", self.python.folder("torch") / "version.py")


def _named_in(name: str, file: Path) -> str | None:
    found = re.search(rf"^{name}\b[^=]*=\s*['\"]([^'\"]+)", file.read_text("utf-8"), re.MULTILINE)
    return found[1] if found else None


def _python(look: _Look) -> Any:
    python = look.python
    found = {name: one for name, one in python.packages.items() if one is not None}
    has_headers = (Path(python.include) / "Python.h").exists()
    return {
        "executable": python.executable,
        "version": python.version,
        "packages": {name: one.version or "" for name, one in found.items()},
        "headers": has_headers,
    }


def _machine(look: _Look) -> Any:
    machine = look.machine
    return {"cores": machine.num_cores, "memory_bytes": machine.memory_bytes}


def _gpus(look: _Look) -> Any:
    return [{**asdict(gpu), "is_busy": gpu.is_busy} for gpu in look.machine.gpus]


def _cuda(look: _Look) -> Any:
    """Versions of everything that must agree to compute on a GPU; None for what is not there."""
    torch = look.python.folder("torch")
    nccl = sorted(torch.parent.glob("nvidia_nccl_cu*-*.dist-info"))
    smi = output_of(["nvidia-smi"], _PROGRAM_SECONDS) if look.machine.gpus else None
    head = dict(re.findall(r"(Driver|CUDA) Version:\s*([\d.]+)", smi or ""))
    return {
        "driver": head.get("Driver"),
        "driver_cuda": head.get("CUDA"),
        "torch_cuda": look.torch_cuda(),
        "nvcc": _version_of(_nvcc(look)),
        "nccl": nccl[-1].name.split("-")[1].removesuffix(".dist") if nccl else None,
    }


def _nvcc(look: _Look) -> str | None:
    """Find nvcc as torch does: in CUDA_HOME, on PATH, or in /usr/local/cuda."""
    home = look.environ.get("CUDA_HOME") or look.environ.get("CUDA_PATH")
    named = [] if home is None else [f"{home}/bin/nvcc"]
    found = [*named, look.program("nvcc"), "/usr/local/cuda/bin/nvcc"]
    return next((one for one in found if one is not None and os.access(one, os.X_OK)), None)


def _version_of(program: str | None) -> str | None:
    """What a program says of its version; empty if it does not run."""
    if program is None:
        return None
    said = output_of([program, "--version"], _PROGRAM_SECONDS) or ""
    release = re.search(r"release ([\d.]+)", said) or _VERSION.search(said)
    return release[release.re.groups] if release else ""


def _links(look: _Look) -> Any:
    """How the GPUs are connected: by the driver, and by torch in a process of its own."""
    gpus = look.machine.gpus
    if len(gpus) < 2:
        return None
    argv = ours("zlaunch.hosts.machine.peer_access", python=look.python.executable)
    said = (output_of(argv, _PEER_SECONDS) or "").rpartition("\n")[2]
    return {
        "matrix": output_of(["nvidia-smi", "topo", "-m"], _PROGRAM_SECONDS),
        "peers": json.loads(said) if said.startswith("[") else None,
    }


def _compilers(look: _Look) -> Any:
    cxx = look.environ.get("CXX", "g++")
    return {"c++": _version_of(look.program(cxx)), "ninja": _version_of(look.program("ninja"))}


def _room(look: _Look) -> Any:
    free = free_resources(())
    shm, cgroup = free.shm, free.cgroup
    return {
        "available_bytes": free.available_bytes,
        "swap_bytes": free.swap_bytes,
        "cgroup": None if cgroup is None else {**asdict(cgroup), "free_bytes": cgroup.free_bytes},
        "shm": None if shm is None else asdict(shm),
        "shm_left_bytes": free.shm_left_bytes,
        "memlock_bytes": free.memlock_bytes,
        "infiniband": free.has_infiniband,
    }


def _disks(look: _Look) -> Any:
    wanted = look.questions.paths
    found = free_resources([Path(path) for path in wanted.values()]).disks
    disks = {}
    for name, text in wanted.items():
        if (disk := found.get(Path(text))) is not None:
            disks[name] = {**asdict(disk), "path": text, "writable": _is_writable(Path(text))}
    return disks


def _is_writable(path: Path) -> bool:
    return os.access(nearest(path), os.W_OK | os.X_OK)


def _ops(look: _Look) -> Any:
    asked = look.questions.ops.get(look.machine.accelerator, ())
    if not asked:
        return {}
    return look_at_ops(asked, look.python, look.machine, look.environ)


def _files(look: _Look) -> Any:
    """Path → the hash of its bytes; None for a file that is not there."""
    return {name: _hash(Path(name)) for name in look.questions.files}


def _hash(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


def _hub(look: _Look) -> Any:
    return reach_hub(look.environ) if look.questions.hub else None


def _network(look: _Look) -> Any:
    chosen = {
        name: look.environ[name]
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        if name in look.environ
    }
    try:
        own = sorted({str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)})
    except OSError:
        own = []
    return {
        "hostname": socket.gethostname(),
        "own_addresses": own,
        "interfaces": interfaces(),
        "chosen": chosen,
        "reached_at": connection(os.environ).reached_at,
        "identity": whereabouts()._asdict(),
    }


TOPICS: Mapping[str, Callable[[_Look], Any]] = {
    "python": _python,
    "machine": _machine,
    "gpus": _gpus,
    "cuda": _cuda,
    "links": _links,
    "compilers": _compilers,
    "room": _room,
    "disks": _disks,
    "ops": _ops,
    "files": _files,
    "hub": _hub,
    "network": _network,
}
"""Topic → how it is found out."""


def gather(questions: Questions) -> dict[str, Any]:
    """Look at everything; `errors` has what kept a topic from being known, `seconds` how long it took."""
    started, facts, errors = time.monotonic(), dict[str, Any](), dict[str, list[str | None]]()
    try:
        look = _Look(questions)
    except ZlaunchError as error:
        return {"errors": {"python": [error.message, error.hint]}, "seconds": 0.0}
    for topic, find in TOPICS.items():
        try:
            facts[topic] = find(look)
        except ZlaunchError as error:
            errors[topic] = [error.message, error.hint]
        except OSError as error:
            errors[topic] = [f"{error.filename or topic}: {error.strerror or error}", None]
    executable = sys.executable
    return {**facts, "zlaunch": executable, "errors": errors, "seconds": time.monotonic() - started}
