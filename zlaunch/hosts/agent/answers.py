"""Ask many hosts at once for their facts, over ssh or srun; where there are none, find out why."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import which

from zlaunch.errors import Unavailable
from zlaunch.frozen import dataclass
from zlaunch.hosts.adapters import adapter_of
from zlaunch.hosts.agent import own_code
from zlaunch.hosts.agent.conversation import ANSWER_SECONDS, Conversation, conversations
from zlaunch.hosts.agent.host_command import GREETING, host_command, is_remote
from zlaunch.hosts.agent.python_of_host import is_here, own_program, path_here
from zlaunch.hosts.agent.ssh import CONNECT_SECONDS, destination
from zlaunch.hosts.agent.ssh_errors import explain
from zlaunch.hosts.cluster.topology import Host, Reach
from zlaunch.hosts.machine.facts import Failure, MachineFacts
from zlaunch.hosts.machine.question import FOR_SLOTS, Question
from zlaunch.hosts.machine.resources import Machine
from zlaunch.hosts.rank_environment import forwarded

PROGRAM = "zlaunch.hosts.agent.program"


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why there are no facts of a host."""

    subject: str
    """What does not work: `ssh`, `srun`, `zlaunch`, or the `Python` of the ranks there."""
    message: str
    hint: str | None

    @property
    def has_reached(self) -> bool:
        """Whether zlaunch runs there, and has said itself what is wrong."""
        return self.subject == "Python"


def asking_command(host: Host, question: Question, reach: Reach) -> list[str]:
    """Write the command line that asks a host."""
    return host_command(host, asking(host, question, reach), reach, GREETING)


def asking(host: Host, question: Question, reach: Reach) -> list[str]:
    """Write the program that asks a host, with the Python that the hostfile names for it."""
    if is_remote(host, reach):
        question = replace(question, environ=forwarded(os.environ))
    if host.python is not None and is_here(host):
        question = replace(question, python=path_here(host, None))
    elif host.python is not None:  # the program runs in it
        question = replace(question, python=None)
    return own_program(host, PROGRAM, question.to_json())


def ask_hosts(hosts: Sequence[Host], question: Question, reach: Reach = Reach.SSH) -> dict[str, MachineFacts]:
    """Return the facts of all hosts by name, except for this machine under any of its names.

    Raises Unavailable with all hosts that do not tell them, and why.
    """
    others = {host.name: host for host in hosts if not is_here(host)}
    if not others:
        return {}
    commands = {name: asking_command(host, question, reach) for name, host in others.items()}
    seconds = CONNECT_SECONDS + ANSWER_SECONDS
    with conversations(commands, seconds) as talks:
        talks.wait_for(1, seconds)
        answers = {talk.name: _of_use(answer_of(talk, others[talk.name], reach)) for talk in talks.all}
    if missing := {name: answer for name, answer in answers.items() if isinstance(answer, NoAnswer)}:
        raise _unavailable(missing)
    return {name: answer for name, answer in answers.items() if isinstance(answer, MachineFacts)}


def ask_machines(hosts: Sequence[Host], here: Machine, python: Path | None) -> dict[str, Machine]:
    """Return the machine of each host by name, as the interpreter of the ranks sees it; `here` is this one.

    Raises Unavailable with all hosts that do not tell.
    """
    others = ask_hosts(hosts, Question(FOR_SLOTS, python=python))
    machines = {host.name: here for host in hosts}
    return {**machines, **{name: facts.machine for name, facts in others.items()}}


def _of_use(answer: MachineFacts | NoAnswer) -> MachineFacts | NoAnswer:
    """Nothing can be planned for a host without its hardware."""
    if isinstance(answer, NoAnswer) or (failure := answer.failures.get("hardware")) is None:
        return answer
    return NoAnswer("Python", failure.message, failure.hint)


def _unavailable(missing: Mapping[str, NoAnswer]) -> Unavailable:
    """Name all hosts, those with the same reason together; the hint is that of the first."""
    named: dict[str, list[str]] = {}
    for name, failure in missing.items():
        named.setdefault(failure.message, []).append(name)
    parts = [f"{', '.join(names)}: {message}" for message, names in named.items()]
    name, first = next(iter(missing.items()))
    hint = first.hint
    if hint is not None and first.has_reached:
        hint = f"on {name}: {hint}"
    return Unavailable("; ".join(parts), hint)


def answer_of(talk: Conversation, host: Host, reach: Reach) -> MachineFacts | NoAnswer:
    """Read the first answer of a host, or find out why there is none."""
    if not talk.has_reached:
        return _not_reached(talk, host, reach)
    has_spoken = talk.code is not None or bool(talk.answers)
    if has_spoken and (other := own_code.why_other(talk.code)) is not None:
        return NoAnswer("zlaunch", other, _same_everywhere(host))
    if not talk.answers:
        return _not_started(talk, host, reach)
    answer = talk.answers[0][1]
    try:
        if "failure" in answer:
            failure: Failure = adapter_of(Failure).validate_python(answer["failure"])
            return NoAnswer("Python", failure.message, failure.hint)
        facts: MachineFacts = adapter_of(MachineFacts).validate_python(answer["facts"])
    except (ValueError, TypeError, KeyError):
        return NoAnswer("zlaunch", "gave an answer that cannot be read", _same_everywhere(host))
    if facts.hardware is None:
        return facts
    return replace(facts, hardware=replace(facts.hardware, hostname=host.name))


def _not_reached(talk: Conversation, host: Host, reach: Reach) -> NoAnswer:
    if is_remote(host, reach) and which(reach.value) is None:
        hint = "`apt-get install openssh-client`" if reach is Reach.SSH else None
        return NoAnswer(reach.value, f"this machine has no `{reach.value}`", hint)
    if reach is Reach.SRUN and is_remote(host, reach):
        return NoAnswer("srun", f"srun cannot start a task: {talk.last_line}", _trial(host, reach))
    failure = explain("timed out" if talk.is_too_late else talk.printed, host)
    return NoAnswer("ssh", failure.message, failure.hint)


def _not_started(talk: Conversation, host: Host, reach: Reach) -> NoAnswer:
    if talk.is_too_late:
        again = "try again: files are cached after the first read"
        return NoAnswer("zlaunch", f"no answer within {ANSWER_SECONDS:.0f} s", again)
    if talk.is_broken:
        return NoAnswer(reach.value, "the connection was lost", _trial(host, reach))
    if " cd: " in talk.last_line:
        same = "the same directory must be at the same path on every host"
        return NoAnswer("zlaunch", f"cannot start in this directory: {talk.last_line}", same)
    python = host.python or sys.executable
    return NoAnswer("zlaunch", f"cannot run zlaunch with {python}: {talk.last_line}", _same_everywhere(host))


def _trial(host: Host, reach: Reach) -> str:
    """What shows why a host cannot be reached."""
    if reach is Reach.SRUN:
        return f"`srun --nodes=1 --nodelist={shlex.quote(host.name)} --overlap true` may show why"
    return f"`ssh -v {shlex.join(destination(host))} true` may show why"


def _same_everywhere(host: Host) -> str:
    if host.python is not None:
        return f"install zlaunch {own_code.own_code()} for that Python, or correct `python=` in the hostfile"
    return "the same Python environment and directory must be at the same path on every host"
