"""Asking other hosts, all at once and once, before anything starts there."""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zlaunch.environment import forwarded, is_secret
from zlaunch.errors import Unavailable
from zlaunch.machine import Machine, Survey, names_of
from zlaunch.process import output_of
from zlaunch.survey import MARK, Inquiry, read_survey, to_json

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60
"""Python itself comes over a network file system there, perhaps for the first time that day."""
NOTHING_ELSE = Inquiry()
_REACHED = "zlaunch asks"


@dataclass(frozen=True)
class Hosts:
    """This machine, and what the others said to an inquiry."""

    here: Machine
    inquiry: Inquiry = NOTHING_ELSE
    others: Mapping[str, Survey] = field(default_factory=dict)

    def machines(self, names: Sequence[str]) -> dict[str, Machine]:
        """Say what each of these hosts has."""
        return {name: self.others[name].machine if name in self.others else self.here for name in names}


def ask_hosts(names: Sequence[str], here: Machine, inquiry: Inquiry = NOTHING_ELSE) -> Hosts:
    """Ask each host over ssh, but for this machine under any of its names, which is known.

    Raises Unavailable naming all that do not answer.
    """
    from concurrent.futures import ThreadPoolExecutor

    others, command = [name for name in names if name not in names_of(here.hostname)], _command(inquiry)
    with ThreadPoolExecutor(max_workers=32) as pool:
        answers = dict(zip(others, pool.map(lambda name: _ask(name, command), others), strict=True))
    if silent := [name for name, answer in answers.items() if answer is None]:
        raise Unavailable(
            f"not reachable over ssh without a password: {', '.join(silent)}",
            f"make `ssh -o BatchMode=yes {silent[0]} true` work first",
        )
    return Hosts(
        here, inquiry, {name: read_answer(name, answer) for name, answer in answers.items() if answer}
    )


def _command(inquiry: Inquiry) -> str:
    """Write for a shell there what DeepSpeed's runner will do: enter this directory, start this Python."""
    exported = (
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith("PYTHON") and not is_secret(name)
    )
    asked = replace(inquiry, environ=forwarded(os.environ))
    program = shlex.join(["env", *exported, sys.executable, "-m", "zlaunch.survey", to_json(asked)])
    return f"echo {_REACHED}; cd {shlex.quote(str(Path.cwd()))}; {program} 2>&1; true"


def _ask(name: str, command: str) -> str | None:
    """Return all that a host said once somebody was in; None if nobody gets in."""
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"]
    said = output_of(["ssh", *options, name, command], timeout=CONNECT_SECONDS + ANSWER_SECONDS) or ""
    _, reached, answer = f"{said}\n".partition(f"{_REACHED}\n")
    return answer.strip() or "it says nothing" if reached else None


def read_answer(name: str, answer: str) -> Survey:
    """Read what a host answered; raise Unavailable with its own words if it cannot run zlaunch."""
    lines = answer.splitlines()
    marked = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    try:
        said = json.loads("".join(marked))
        if "error" in said:
            raise Unavailable(f"{name}: {said['error']}", said["hint"] and f"on {name}: {said['hint']}")
        survey = read_survey(marked[0])
    except (ValueError, KeyError, TypeError):
        raise Unavailable(
            f"{name} cannot run zlaunch with {sys.executable}: {lines[-1]}",
            "the same Python environment must be at the same path on every host",
        ) from None
    return replace(survey, machine=replace(survey.machine, hostname=name))
