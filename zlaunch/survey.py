"""What one host says of itself: `python -m zlaunch.survey QUESTION`, which zlaunch runs there over ssh.

It is this machine's own look at itself, so what is found out here is found out there. Inquiry and
answer are JSON; what a login prints before the mark is no part of the answer.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from zlaunch.errors import ZlaunchError
from zlaunch.extensions import left_locks
from zlaunch.machine import Cgroup, Disk, Gpu, GpuProcess, Machine, Room, Survey
from zlaunch.ports import free_port, trouble
from zlaunch.probe import look_around, probe_machine

MARK = "zlaunch answers "


@dataclass(frozen=True)
class Inquiry:
    """What a host is asked besides what it has."""

    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables that the ranks there will get from here."""
    run: Path | None = None
    """The nearest directory that exists above the run."""
    paths: tuple[Path, ...] = ()
    """Whether they are there, and what room their file systems have."""
    packages: tuple[str, ...] = ()
    debug_port: int | None = None


def survey(inquiry: Inquiry) -> Survey:
    """Look at this machine as a rank here would find it."""
    environ = {**os.environ, **inquiry.environ}
    room, locks = look_around(inquiry.paths, inquiry.packages), left_locks(environ)
    asked = (*inquiry.paths, *locks) if inquiry.run is None else (*inquiry.paths, *locks, inquiry.run)
    return Survey(
        machine=probe_machine(environ),
        room=replace(room, files=inodes(asked), left_locks=locks),
        port=free_port(),
        debug_trouble=None if inquiry.debug_port is None else trouble(inquiry.debug_port),
    )


def inodes(paths: Iterable[Path]) -> dict[Path, int]:
    """Number the files that are here; they have the same numbers wherever their file system is shared."""
    return {path: path.stat().st_ino for path in paths if path.exists()}


def to_json(value: Inquiry | Survey) -> str:
    """Write an inquiry or an answer, in one line."""
    return json.dumps(_plain(asdict(value)))


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(key): _plain(one) for key, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(one) for one in value]
        case Path():
            return str(value)
    return value


def read_inquiry(text: str) -> Inquiry:
    """Read what `to_json` wrote."""
    said = json.loads(text)
    typed = {
        "run": said["run"] and Path(said["run"]),
        "paths": tuple(map(Path, said["paths"])),
        "packages": tuple(said["packages"]),
    }
    return Inquiry(**{**said, **typed})


def read_survey(text: str) -> Survey:
    """Read what `to_json` wrote; raise ValueError, KeyError or TypeError for what another release wrote."""
    said = json.loads(text)
    machine, room = said["machine"], said["room"]
    gpus, hidden = tuple(map(_gpu, machine["gpus"])), tuple(machine["hidden_gpus"])
    disks = {Path(path): Disk(**disk) for path, disk in room["disks"].items()}
    nested = {
        "cgroup": room["cgroup"] and Cgroup(**room["cgroup"]),
        "shm": room["shm"] and Disk(**room["shm"]),
        "disks": disks,
        "missing": frozenset(room["missing"]),
        "files": {Path(path): inode for path, inode in room["files"].items()},
        "left_locks": frozenset(map(Path, room["left_locks"])),
    }
    return Survey(
        machine=Machine(**{**machine, "gpus": gpus, "hidden_gpus": hidden}),
        room=Room(**{**room, **nested}),
        port=int(said["port"]),
        debug_trouble=said["debug_trouble"],
    )


def _gpu(said: Mapping[str, Any]) -> Gpu:
    processes = tuple(GpuProcess(**process) for process in said["processes"])
    major, minor = said["compute_capability"]
    return Gpu(**{**said, "compute_capability": (major, minor), "processes": processes})


if __name__ == "__main__":
    try:
        answer = to_json(survey(read_inquiry(sys.argv[1])))
    except ZlaunchError as error:
        answer = json.dumps({"error": error.message, "hint": error.hint})
    sys.stdout.write(f"{MARK}{answer}\n")
