"""Find out the facts of this machine: one function for each topic. Nothing is judged here.

Imports delay the answer of every host, so only what is needed is imported.
"""

import hashlib
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from zlaunch.errors import ZlaunchError
from zlaunch.files import identities
from zlaunch.hosts.machine.facts import Compilers, Cuda, Failure, Files, GpuLinks, MachineFacts, Ports
from zlaunch.hosts.machine.hub import reach_hub
from zlaunch.hosts.machine.interpreter import Interpreter, check_packages, inspect_python
from zlaunch.hosts.machine.network import connection, find_network
from zlaunch.hosts.machine.op_cache import OpCache, find_op_cache
from zlaunch.hosts.machine.op_states import OpState, look_at_ops
from zlaunch.hosts.machine.ports import free_port, free_port_near, why_taken
from zlaunch.hosts.machine.probe import cuda_of_torch, free_resources, probe_machine
from zlaunch.hosts.machine.question import Question
from zlaunch.hosts.machine.resources import Machine
from zlaunch.json_lines import answers_in
from zlaunch.process import ours, output_of

_VERSION = r"\d+(?:\.\d+)+"
_PROGRAM_SECONDS = 20.0
_PEER_SECONDS = 60.0


def survey(
    question: Question, python: Interpreter | None = None, machine: Machine | None = None
) -> MachineFacts:
    """Find out what is asked about this machine, as a rank here would find it.

    Its interpreter and its hardware may be known already. Raises Unavailable if the interpreter or a package
    that is needed does not work; of other topics, the facts say why they are not known.
    """
    started = time.monotonic()
    if python is None:
        python = inspect_python(question.python, (*question.needed, *question.packages))
    check_packages(python, question.needed)
    look, facts, failures = _Look(question, python, machine), dict[str, Any](), dict[str, Failure]()
    for topic in question.topics:
        try:
            facts[topic] = TOPICS[topic](look)
        except ZlaunchError as error:
            failures[topic] = Failure(error.message, error.hint)
        except OSError as error:
            failures[topic] = Failure(f"{error.filename or topic}: {error.strerror or error}")
    return MachineFacts(
        python=python,
        connection=connection(os.environ),
        path=look.environ.get("PATH", os.defpath),
        **facts,
        failures=failures,
        seconds=time.monotonic() - started,
    )


class _Look:
    """What several topics need, looked up once."""

    def __init__(self, question: Question, python: Interpreter, machine: Machine | None) -> None:
        self.question, self.python = question, python
        self.environ = {**os.environ, **question.environ}
        self._machine = machine

    @cached_property
    def machine(self) -> Machine:
        """The hardware; raise Unavailable if its GPUs cannot be used."""
        return self._machine or probe_machine(self.environ, self.python)

    def program(self, name: str) -> str | None:
        """Find a program as a rank would: in the environment of its Python, or on PATH."""
        folders = [*self.python.not_on_path(self.environ), self.environ.get("PATH", os.defpath)]
        return shutil.which(name, path=os.pathsep.join(folders))


def _survey_files(look: _Look) -> Files:
    asked = {*look.question.paths, *look.question.identified}
    hashes = {path: _hash(path) for path in look.question.compared}
    return Files(frozenset(asked), identities(asked), hashes)


def _hash(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


def _op_cache(look: _Look) -> OpCache | None:
    if look.python.packages["torch"] is None:
        return None
    return find_op_cache(look.python, look.machine, look.environ)


def _ops(look: _Look) -> Mapping[str, OpState]:
    asked = look.question.ops.get(look.machine.accelerator)
    return {} if not asked else look_at_ops(asked, look.python, look.machine, look.environ)


def _ports(look: _Look) -> Ports:
    asked = look.question.debug_port
    if asked is None or (error := why_taken(asked)) is None:
        return Ports(free_port())
    return Ports(free_port(), error, free_port_near(asked))


def _cuda(look: _Look) -> Cuda:
    torch = look.python.folder("torch")
    nccl = sorted(torch.parent.glob("nvidia_nccl_cu*-*.dist-info"))
    releases = [folder.name.split("-")[1].removesuffix(".dist") for folder in nccl]
    return Cuda(cuda_of_torch(look.python), next(reversed(releases), None))


def _nvcc(look: _Look) -> str | None:
    """Find nvcc as torch does: in CUDA_HOME, on PATH, or in /usr/local/cuda."""
    places = [look.program("nvcc"), "/usr/local/cuda/bin/nvcc"]
    if home := look.environ.get("CUDA_HOME") or look.environ.get("CUDA_PATH"):
        places.insert(0, f"{home}/bin/nvcc")
    return next((place for place in places if place is not None and os.access(place, os.X_OK)), None)


def _version_of(program: str | None) -> str | None:
    """What a program says of its version; empty if it does not run."""
    if program is None:
        return None
    text = output_of([program, "--version"], _PROGRAM_SECONDS) or ""
    release = re.search(r"release ([\d.]+)", text) or re.search(_VERSION, text)
    return release[release.re.groups] if release else ""


def _links(look: _Look) -> GpuLinks | None:
    """How the GPUs are connected: by the driver, and by torch in a process of its own."""
    if len(look.machine.gpus) < 2:
        return None
    argv = ours("zlaunch.hosts.machine.peer_access", python=look.python.executable)
    peers = answers_in(output_of(argv, _PEER_SECONDS) or "")
    matrix = output_of(["nvidia-smi", "topo", "-m"], _PROGRAM_SECONDS)
    return GpuLinks(matrix, tuple(map(tuple, peers[-1])) if peers else None)


def _compilers(look: _Look) -> Compilers:
    return Compilers(
        cxx=_version_of(look.program(look.environ.get("CXX", "g++"))),
        ninja=_version_of(look.program("ninja")),
        nvcc=_version_of(_nvcc(look)),
        has_python_headers=(Path(look.python.include) / "Python.h").exists(),
    )


def _own_addresses(_: _Look) -> tuple[str, ...]:
    try:
        addresses = socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return ()
    return tuple(sorted({str(address[4][0]) for address in addresses}))


TOPICS: Mapping[str, Callable[[_Look], Any]] = {
    "hardware": lambda look: look.machine,
    "cuda": _cuda,
    "links": _links,
    "compilers": _compilers,
    "free": lambda look: free_resources(look.question.paths),
    "op_cache": _op_cache,
    "ops": _ops,
    "files": _survey_files,
    "ports": _ports,
    "network": lambda look: find_network(look.environ),
    "own_addresses": _own_addresses,
    "hub": lambda look: reach_hub(look.environ),
}
"""Field of `MachineFacts` → how it is found out."""
