"""What one host says of itself: `python -m zlaunch.hosts.survey QUESTION`, which zlaunch runs there over ssh.

It is this machine's own look at itself, so what is found out here is found out there. Inquiry and
answer are JSON; what a login prints before the mark is no part of the answer.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from zlaunch.errors import ZlaunchError
from zlaunch.hosts.machine import HostSurvey
from zlaunch.hosts.op_cache import stale_locks
from zlaunch.hosts.ports import free_port, why_taken
from zlaunch.hosts.probe import free_resources, probe_machine

MARK = "zlaunch answers "


@dataclass(frozen=True)
class SurveyRequest:
    """What a host is asked besides what it has."""

    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables that the ranks there will get from here."""
    run: Path | None = None
    """The nearest directory that exists above the run."""
    paths: tuple[Path, ...] = ()
    """Whether they are there, and what room their file systems have."""
    packages: tuple[str, ...] = ()
    debug_port: int | None = None


@dataclass(frozen=True)
class SurveyError:
    """What keeps a host from an answer, in the words of a ZlaunchError."""

    message: str
    hint: str | None


def survey(inquiry: SurveyRequest) -> HostSurvey:
    """Look at this machine as a rank here would find it."""
    environ = {**os.environ, **inquiry.environ}
    room, locks = free_resources(inquiry.paths, inquiry.packages), stale_locks(environ)
    asked = (*inquiry.paths, *locks, *filter(None, [inquiry.run]))
    return HostSurvey(
        machine=probe_machine(environ),
        room=replace(room, files=identities(asked), left_locks=locks),
        port=free_port(),
        debug_trouble=None if inquiry.debug_port is None else why_taken(inquiry.debug_port),
    )


def identities(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Tell the files that are here from others of their name: by inode, and when that last changed.

    Whoever shares a file system sees the same. An inode alone says little: the root of each tmpfs has
    the same, and so have directories that were made in the same order on fresh disks.
    """
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            found[path] = (status.st_ino, status.st_ctime_ns)
    return found


def to_json(value: SurveyRequest | HostSurvey | SurveyError) -> str:
    """Write an inquiry or an answer, in one line of ASCII."""
    from pydantic import TypeAdapter

    return json.dumps(TypeAdapter(type(value)).dump_python(value, mode="json"))


def read_inquiry(text: str) -> SurveyRequest:
    """Read what `to_json` wrote."""
    from pydantic import TypeAdapter

    return TypeAdapter(SurveyRequest).validate_python(json.loads(text))


def read_answer(text: str) -> HostSurvey | SurveyError:
    """Read what `to_json` wrote; raise ValueError for what another release wrote."""
    from pydantic import TypeAdapter

    answer: TypeAdapter[HostSurvey | SurveyError] = TypeAdapter(HostSurvey | SurveyError)
    return answer.validate_python(json.loads(text))


if __name__ == "__main__":
    answer: HostSurvey | SurveyError
    try:
        answer = survey(read_inquiry(sys.argv[1]))
    except ZlaunchError as error:
        answer = SurveyError(error.message, error.hint)
    sys.stdout.write(f"{MARK}{to_json(answer)}\n")
