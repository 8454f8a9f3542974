"""Survey one host: `zlaunch.hosts.agent.survey REQUEST`, which zlaunch runs on other hosts over ssh.

The local machine is surveyed by the same code. Request and answer are JSON; what a login shell prints
before the mark is ignored.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from zlaunch.errors import ZlaunchError
from zlaunch.files import identities
from zlaunch.hosts.agent.reached import connection
from zlaunch.hosts.machine.interpreter import Interpreter, check_packages, inspect_python
from zlaunch.hosts.machine.op_cache import OpCache, find_op_cache, stale_locks
from zlaunch.hosts.machine.ports import free_port, free_port_near, why_taken
from zlaunch.hosts.machine.probe import free_resources, probe_machine
from zlaunch.hosts.machine.resources import FreeResources, Machine

MARK = "zlaunch answers "


@dataclass(frozen=True)
class SurveyRequest:
    """The questions to a host, apart from its hardware."""

    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables of this machine that the ranks there will get."""
    run: Path | None = None
    """The nearest existing directory above the run directory."""
    paths: tuple[Path, ...] = ()
    """Whether they exist, and the free space of their file systems."""
    python: Path | None = None
    """The interpreter of the ranks; None for the one that runs zlaunch."""
    needed: tuple[str, ...] = ()
    """Packages without which nothing can start."""
    packages: tuple[str, ...] = ()
    """Other packages: whether the interpreter sees them."""
    debug_port: int | None = None
    compared: tuple[Path, ...] = ()
    """Files that must have the same bytes everywhere."""


@dataclass(frozen=True, slots=True)
class HostSurvey:
    """The report of a host before a job starts there."""

    machine: Machine
    """Named as in the hostfile."""
    room: FreeResources
    port: int
    """A port that was free there."""
    python: Interpreter
    """The interpreter of the ranks."""
    op_cache: OpCache | None = None
    """Where their native ops are kept; None without torch."""
    debug_error: str | None = None
    """Why a debugger cannot listen on the port that was asked for."""
    other_debug_port: int | None = None
    """A free port near that one."""
    address: str | None = None
    """The address at which it was reached."""
    seen_from: str | None = None
    """The address from which it was asked."""
    hashes: Mapping[Path, str] = field(default_factory=dict)
    """Of those files to compare that it has."""
    path: str | None = None
    """PATH of the programs that start there."""


@dataclass(frozen=True)
class SurveyError:
    """An error of a host: the message and hint of a ZlaunchError."""

    message: str
    hint: str | None


def survey(
    request: SurveyRequest, python: Interpreter | None = None, machine: Machine | None = None
) -> HostSurvey:
    """Survey this machine as a rank here would find it; its interpreter and hardware may be known already.

    Raises Unavailable if the interpreter, a package that is needed, or a driver does not work.
    """
    environ = {**os.environ, **request.environ}
    python = python or inspect_python(request.python, (*request.needed, *request.packages))
    check_packages(python, request.needed)
    machine = machine or probe_machine(environ, python)
    op_cache = None if python.packages["torch"] is None else find_op_cache(python, machine, environ)
    locks = frozenset[Path]() if op_cache is None else stale_locks(op_cache.folder)
    reached = connection(os.environ)
    asked = (*request.paths, *locks, *filter(None, [request.run]))
    debug_error = None if request.debug_port is None else why_taken(request.debug_port)
    return HostSurvey(
        machine=machine,
        python=python,
        op_cache=op_cache,
        room=replace(
            free_resources(request.paths),
            missing=frozenset(name for name in request.packages if python.packages[name] is None),
            files=identities(asked),
            looked_for=frozenset(asked),
            left_locks=locks,
        ),
        port=free_port(),
        address=reached.reached_at,
        seen_from=reached.seen_from,
        hashes=hashes(request.compared),
        path=environ.get("PATH", os.defpath),
        debug_error=debug_error,
        other_debug_port=free_port_near(request.debug_port) if request.debug_port and debug_error else None,
    )


def hashes(paths: Iterable[Path]) -> dict[Path, str]:
    """Hash files; those that cannot be read are left out."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            found[path] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def to_json(value: SurveyRequest | HostSurvey | SurveyError) -> str:
    """Write a request or an answer as one line of ASCII."""
    return json.dumps(TypeAdapter(type(value)).dump_python(value, mode="json"))


def read_request(text: str) -> SurveyRequest:
    """Read what `to_json` wrote."""
    return TypeAdapter(SurveyRequest).validate_python(json.loads(text))


def read_answer(text: str) -> HostSurvey | SurveyError:
    """Read what `to_json` wrote; raise ValueError for the answer of another release."""
    answer = TypeAdapter[HostSurvey | SurveyError](HostSurvey | SurveyError)
    return answer.validate_python(json.loads(text))


if __name__ == "__main__":
    answer: HostSurvey | SurveyError
    try:
        answer = survey(read_request(sys.argv[1]))
    except ZlaunchError as error:
        answer = SurveyError(error.message, error.hint)
    sys.stdout.write(f"{MARK}{to_json(answer)}\n")
