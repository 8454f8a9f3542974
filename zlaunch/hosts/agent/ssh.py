"""Survey all hosts of a job at once over ssh, before anything starts there."""

import base64
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import which

from zlaunch import __version__
from zlaunch.errors import Unavailable
from zlaunch.hosts.agent.python_of_host import own_program
from zlaunch.hosts.agent.survey import MARK, HostSurvey, SurveyError, SurveyRequest, read_answer, to_json
from zlaunch.hosts.cluster.topology import Host
from zlaunch.hosts.environment import forwarded
from zlaunch.hosts.machine.resources import Machine, local_names
from zlaunch.process import SAFE_PATH, output_of
from zlaunch.secrets import is_secret

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60
"""Python may have to be read over a network file system first."""
NOTHING_ELSE = SurveyRequest()
_REACHED, _ENDED = "zlaunch asks", "zlaunch heard "
_TOO_LATE, _BROKEN = 124, 255
"""Exit statuses of `timeout`, and of ssh for an error of its own: the command itself ends with 0."""


@dataclass(frozen=True)
class HostSurveys:
    """This machine, and the answers of the other hosts to a request."""

    here: Machine
    request: SurveyRequest = NOTHING_ELSE
    others: Mapping[str, HostSurvey] = field(default_factory=dict)

    def machines(self, names: Sequence[str]) -> dict[str, Machine]:
        """Map host names to machines."""
        return {name: self.others[name].machine if name in self.others else self.here for name in names}


def ssh_command(host: Host, remote: str) -> list[str]:
    """Build the ssh command that runs a line of shell on a host."""
    options = (
        "-o",
        "BatchMode=yes",
        "-o",
        f"ConnectTimeout={CONNECT_SECONDS}",
        "-o",
        "ServerAliveInterval=5",
    )
    return ["ssh", *options, *destination(host), remote]


def destination(host: Host) -> list[str]:
    """Write how `ssh` and `ssh-copy-id` are told the host, its user and its port."""
    port = ["-p", str(host.port)] if host.port else []
    return [*port, f"{host.user}@{host.name}" if host.user else host.name]


def remote_line(argv: Sequence[str], directory: str, greeting: str | None = None) -> str:
    """Write a line of shell that runs a program in a directory; a greeting says that a shell was reached."""
    greet = "" if greeting is None else f"echo {shlex.quote(greeting)}; "
    return for_any_shell(f"{greet}cd {shlex.quote(directory)} && exec {shlex.join(argv)}")


def for_any_shell(line: str) -> str:
    """Write a line for `sh` so that a login shell passes it on unchanged, also fish and csh.

    Between single quotes, fish reads a backslash as an escape, and csh reads `!` and the end of the line.
    """
    if not set("\\!'\n") & set(line):
        return f"exec sh -c '{line}'"
    encoded = base64.b64encode(os.fsencode(line)).decode()
    return f"exec sh -c 'eval \"$(echo {encoded} | base64 -d)\"'"


def survey_hosts(
    hosts: Sequence[Host],
    here: Machine,
    request: SurveyRequest = NOTHING_ELSE,
    command: Callable[[Host, str], Sequence[str]] = ssh_command,
) -> HostSurveys:
    """Survey each host over ssh, or by another command, except for this machine under any of its names.

    Raises Unavailable without that program, with all hosts that cannot be reached, or with the first whose
    answer is of no use.
    """
    others = [host for host in hosts if host.name not in local_names(here.hostname)]
    if not others:
        return HostSurveys(here, request)
    if which(program := command(others[0], "true")[0]) is None:
        raise Unavailable(
            f"other hosts are reached with {program}, which is not installed",
            "Debian: `apt-get install openssh-client`" if program == "ssh" else None,
        )
    from concurrent.futures import ThreadPoolExecutor  # not needed on one host

    with ThreadPoolExecutor(max_workers=32) as pool:
        names = [host.name for host in others]
        commands = [command(host, _line(host, request)) for host in others]
        answers = dict(zip(names, pool.map(_ask, commands), strict=True))
    if silent := [host for host in others if answers[host.name] is None]:
        raise _unreachable(silent, program)
    surveys = {
        host.name: parse_survey(host, *answer, program=program)
        for host in others
        if (answer := answers[host.name]) is not None
    }
    return HostSurveys(here, request, surveys)


def _unreachable(silent: Sequence[Host], program: str) -> Unavailable:
    listed = ", ".join(host.name for host in silent)
    if program == "ssh":
        words = shlex.join(["ssh", "-o", "BatchMode=yes", *destination(silent[0]), "true"])
        return Unavailable(
            f"not reachable over ssh without a password: {listed}", f"make `{words}` work first"
        )
    return Unavailable(
        f"{program} cannot start a task on {listed}", f"`{_step_on(silent[0].name, program)}` may show why"
    )


def _step_on(name: str, program: str) -> str:
    return f"{program} --nodes=1 --nodelist={name} --overlap true"


def with_python_variables(argv: Sequence[str]) -> list[str]:
    """Write a command that gives a program on another host the variables that Python reads when it starts.

    It imports nothing from its working directory.
    """
    given = os.environ.items()
    own = {name: value for name, value in given if name.startswith("PYTHON") and not is_secret(name, value)}
    return ["env", *(f"{name}={value}" for name, value in {**SAFE_PATH, **own}.items()), *argv]


def _line(host: Host, request: SurveyRequest) -> str:
    """Write the line of shell for a host: it starts its Python in this directory, like DeepSpeed's runner."""
    python = request.python if host.python is None else None
    asked = replace(request, environ=forwarded(os.environ), python=python)
    program = shlex.join(
        with_python_variables(own_program(host, "zlaunch.hosts.agent.survey", to_json(asked)))
    )
    return for_any_shell(f"echo {_REACHED}; cd {shlex.quote(str(Path.cwd()))}; {program} 2>&1; true")


def _ask(command: Sequence[str]) -> tuple[str, int] | None:
    """Return the host's answer and the exit status of ssh; None if the host cannot be reached."""
    seconds = CONNECT_SECONDS + ANSWER_SECONDS
    # The shell keeps the output up to then however ssh ends; an ssh master process holds no pipe of ours.
    script = f'timeout --foreground "$0" "$@" 2>/dev/null; echo "{_ENDED}$?"'
    shell = ["sh", "-c", script, str(seconds)]
    output = output_of([*shell, *command], timeout=2 * seconds) or ""
    _, reached, rest = output.partition(f"{_REACHED}\n")
    answer, _, status = rest.rpartition(_ENDED)
    return (answer.strip() or "it printed nothing", int(status)) if reached else None


def parse_survey(host: Host, answer: str, status: int, *, program: str = "ssh") -> HostSurvey:
    """Read a host's answer; raise Unavailable, with the host's own words if it cannot run zlaunch.

    `program` is what reached it.
    """
    name, python = host.name, host.python
    if status == _TOO_LATE:
        raise Unavailable(
            f"{name} did not answer within {ANSWER_SECONDS} s",
            "try again: files are cached after the first read",
        )
    if status == _BROKEN:
        by_ssh = program == "ssh"
        trial = shlex.join(["ssh", "-v", *destination(host), "true"]) if by_ssh else _step_on(name, program)
        raise Unavailable(f"the connection to {name} was lost", f"`{trial}` may show why")
    lines, same = answer.splitlines(), "the same Python environment must be at the same path on every host"
    if python is not None:
        same = f"install zlaunch {__version__} for that Python, or correct `python=` in the hostfile"
    marked = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    if not marked:
        raise Unavailable(f"{name} cannot run zlaunch with {python or sys.executable}: {lines[-1]}", same)
    try:
        found = read_answer(marked[0])
    except ValueError:
        raise Unavailable(f"{name} has another release of zlaunch", same) from None
    if isinstance(found, SurveyError):
        raise Unavailable(f"{name}: {found.message}", found.hint and f"on {name}: {found.hint}")
    return replace(found, machine=replace(found.machine, hostname=name))
