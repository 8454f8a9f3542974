"""Asking other hosts, all at once and once, before anything starts there."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zlaunch.errors import Unavailable
from zlaunch.hosts.environment import forwarded, is_secret
from zlaunch.hosts.machine import HostSurvey, Machine, local_names
from zlaunch.hosts.survey import MARK, SurveyError, SurveyRequest, read_answer, to_json
from zlaunch.process import ours, output_of

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60
"""Python itself comes over a network file system there, perhaps for the first time that day."""
NOTHING_ELSE = SurveyRequest()
_REACHED, _ENDED = "zlaunch asks", "zlaunch heard "
_TOO_LATE, _BROKEN = 124, 255
"""What `timeout` ends with, and ssh for a fault of its own: what runs there ends with 0."""


@dataclass(frozen=True)
class HostSurveys:
    """This machine, and what the others said to an inquiry."""

    here: Machine
    inquiry: SurveyRequest = NOTHING_ELSE
    others: Mapping[str, HostSurvey] = field(default_factory=dict)

    def machines(self, names: Sequence[str]) -> dict[str, Machine]:
        """Say what each of these hosts has."""
        return {name: self.others[name].machine if name in self.others else self.here for name in names}


def survey_hosts(names: Sequence[str], here: Machine, inquiry: SurveyRequest = NOTHING_ELSE) -> HostSurveys:
    """Ask each host over ssh, but for this machine under any of its names, which is known.

    Raises Unavailable naming all that are not reached, or the first that gives no answer of use.
    """
    from concurrent.futures import ThreadPoolExecutor

    others, command = [name for name in names if name not in local_names(here.hostname)], _command(inquiry)
    with ThreadPoolExecutor(max_workers=32) as pool:
        answers = dict(zip(others, pool.map(lambda name: _ask(name, command), others), strict=True))
    if silent := [name for name, answer in answers.items() if answer is None]:
        raise Unavailable(
            f"not reachable over ssh without a password: {', '.join(silent)}",
            f"make `ssh -o BatchMode=yes {silent[0]} true` work first",
        )
    surveys = {name: parse_survey(name, *answer) for name, answer in answers.items() if answer is not None}
    return HostSurveys(here, inquiry, surveys)


def _command(inquiry: SurveyRequest) -> str:
    """Write for a shell there what DeepSpeed's runner will do: enter this directory, start this Python."""
    exported = (
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith("PYTHON") and not is_secret(name)
    )
    asked = replace(inquiry, environ=forwarded(os.environ))
    program = shlex.join(["env", *exported, *ours("zlaunch.hosts.survey", to_json(asked))])
    return f"echo {_REACHED}; cd {shlex.quote(str(Path.cwd()))}; {program} 2>&1; true"


def _ask(name: str, command: str) -> tuple[str, int] | None:
    """Return all that a host said once somebody was in, and how ssh ended; None if nobody gets in."""
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"]
    seconds = CONNECT_SECONDS + ANSWER_SECONDS
    # a shell keeps what was said until then, however ssh ends; a master of connections holds no pipe
    words = f'timeout --foreground "$0" ssh "$@" 2>/dev/null; echo "{_ENDED}$?"'
    shell = ["sh", "-c", words, str(seconds)]
    said = output_of([*shell, *options, name, command], timeout=2 * seconds) or ""
    _, reached, heard = said.partition(f"{_REACHED}\n")
    answer, _, status = heard.rpartition(_ENDED)
    return (answer.strip() or "it says nothing", int(status)) if reached else None


def parse_survey(name: str, heard: str, status: int) -> HostSurvey:
    """Read what a host said; raise Unavailable, with its own words if it cannot run zlaunch."""
    if status == _TOO_LATE:
        raise Unavailable(
            f"{name} gave no answer in {ANSWER_SECONDS} s", "try once more: what was read once is read faster"
        )
    if status == _BROKEN:
        raise Unavailable(f"the connection to {name} broke off", f"`ssh -v {name} true` may show why")
    lines, same = heard.splitlines(), "the same Python environment must be at the same path on every host"
    marked = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    if not marked:
        raise Unavailable(f"{name} cannot run zlaunch with {sys.executable}: {lines[-1]}", same)
    try:
        answer = read_answer(marked[0])
    except ValueError:
        raise Unavailable(f"{name} has another release of zlaunch", same) from None
    if isinstance(answer, SurveyError):
        raise Unavailable(f"{name}: {answer.message}", answer.hint and f"on {name}: {answer.hint}")
    return replace(answer, machine=replace(answer.machine, hostname=name))
