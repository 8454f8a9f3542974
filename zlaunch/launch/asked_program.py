"""Ask a program for its arguments: run one process of it up to the point where it has them.

Programs compute their arguments: from files, from defaults in other modules, in code. Nothing but the program
knows them. The answer is kept for the same command line and environment.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from zlaunch import __version__
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.files import PRIVATE, cache_directory, write_whole
from zlaunch.hosts.cluster.topology import Topology
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.ports import LOOPBACK, free_port
from zlaunch.job.answer import AnswerRecord, apply_answer
from zlaunch.job.moved_imports import moved_import
from zlaunch.job.script import Script
from zlaunch.job.spec import JobSpec
from zlaunch.launch.reporter import PlanReporter
from zlaunch.process import RELAYED, Child, heed_signals
from zlaunch.rundir.read import conform, read_record
from zlaunch.units import duration
from zlaunch.worker.hook import answer_environment

MOST_SECONDS = 90.0
"""How long a program may take until it has its arguments."""

MOST_BYTES = 1 << 14
"""How much of the end of a program's output is searched for a reason."""

MOST_CHARACTERS = 300
"""How much of a reason is shown."""

MOST_KEPT = 200
"""Answers to keep; the oldest are deleted."""

_REJECTS = re.compile(
    r"error: (unrecognized arguments: .*|argument .*: .*|ambiguous option: .*"
    r"|one of the arguments .* is required|the following arguments are required: (?!.*--local[_-]rank).*)"
)
"""What argparse says about a command line; anything else may be due to the one rank that is asked."""

_CHOOSE = " (choose from "

_WRONG = re.compile(r"(?:unrecognized arguments: |invalid choice: ')([^\s='(]+)")
"""The word that argparse does not know."""

_OPTION = re.compile(r"(?<![\w-])--\w[\w-]*")

_MISSING = re.compile(r"^ModuleNotFoundError: No module named '[\w.]+'$")

_OF_A_TERMINAL = re.compile(
    r"_|SHLVL|OLDPWD|TERM.*|SSH_.*|DISPLAY|XDG_SESSION.*|DBUS_.*|WINDOWID|COLORTERM|COLUMNS|LINES|VSCODE.*|TMUX.*"
)
"""Variables that differ from terminal to terminal, and on which no answer depends."""

_GRACE_SECONDS = 2.0

_SUFFIX = ".answer.json"
_UNASKED = "`--no-ask` starts it anyway"


def described(
    job: JobSpec,
    script: Script,
    python: Interpreter,
    reporter: PlanReporter,
    topology: Topology,
    *,
    is_open: bool,
) -> Script:
    """Return a script as its first rank describes itself, if it `is_open` how it takes its arguments.

    Raises WrongUsage if it rejects its command line, Unavailable if a module that it imports is missing.
    """
    ranks = _first_rank(topology)
    key = _key(job, python, ranks, is_open)
    answer = _kept(key)
    if answer is None:
        answer = _answer(job, script, python, reporter, ranks, is_open=is_open)
        _keep(key, answer)
    if rejected := answer.get("rejected"):
        words = " ".join(rejected)
        raise _rejected(job, f"does not define `{words}`", rejected[0], answer.get("options", []))
    if is_open and answer.get("reached"):
        return apply_answer(script, answer, job)
    return script


def _answer(
    job: JobSpec,
    script: Script,
    python: Interpreter,
    reporter: PlanReporter,
    ranks: Mapping[str, str],
    *,
    is_open: bool,
) -> AnswerRecord:
    """Run the program until it answers; empty if it does not."""
    program = [*job.program]
    if script.wants_local_rank:
        program.append("--local_rank=0")
    with tempfile.TemporaryDirectory(prefix="zlaunch-ask-") as directory:
        file, log = Path(directory, "answer.json"), Path(directory, "log")
        environment = {**os.environ, **ranks, "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port())}
        started, limit = time.monotonic(), MOST_SECONDS
        with log.open("wb") as output:
            argv = [python.executable, *program, *job.typed_args.words]
            environment |= answer_environment(file, environment, at_parser=not is_open)
            if_killed = ["rm", "-rf", directory]
            child = Child(argv, environment, output, _GRACE_SECONDS, if_killed=if_killed)

        def follow() -> None:
            took = time.monotonic() - started
            reporter.busy(f"asking {job.shown_name} for its arguments", duration(took))
            if file.exists() or took > limit:  # a process that it started may have answered
                child.end_within(0.0)

        returncode = child.wait(follow)
        heed_signals()
        if child.stopped_by:
            sys.exit(128 + child.stopped_by)
        if -returncode in RELAYED:
            sys.exit(128 - returncode)
        if answer := read_record(file, AnswerRecord):
            return answer
        lines = _last_lines(log)
    last = "".join(lines[-1:])[:MOST_CHARACTERS]
    if returncode == 2:
        _raise_rejected(job, last, lines)
    if returncode == 1:
        _raise_missing(job, last, python)
    why = f"it ended with {returncode}"
    if time.monotonic() - started > limit:
        why = f"it did not create them within {duration(limit)}; `--no-ask` does not wait for them"
    elif last and returncode:
        why = last
    reporter.note(f"cannot find out the arguments of {job.shown_name}: {why}")
    return {}


def _raise_rejected(job: JobSpec, last: str, lines: Sequence[str]) -> None:
    """Raise WrongUsage if the last line is argparse's error about the command line."""
    error = _REJECTS.search(last)
    if error is None:
        return
    listed = lines[-1].partition(_CHOOSE)[2]
    message = error[1].partition(_CHOOSE)[0]
    options = re.findall(r"[\w.-]+", listed) or _OPTION.findall(" ".join(lines[:-1]))
    words = _WRONG.findall(message)
    raise _rejected(job, f"rejects its arguments: {message}", "".join(words[:1]), options)


def _raise_missing(job: JobSpec, last: str, python: Interpreter) -> None:
    """Raise Unavailable if the last line is the error about a module that cannot be imported."""
    moved = moved_import(last)
    hint = f"`{python.executable} -m pip install` the package that has it"
    if moved is not None:
        hint = moved[1]
    elif _MISSING.search(last) is None:
        return
    raise Unavailable(f"{job.shown_name} cannot start: {last.partition(': ')[2]}", f"{hint}; {_UNASKED}")


def _rejected(job: JobSpec, what: str, word: str = "", options: Sequence[str] = ()) -> WrongUsage:
    hint = "see its `--help`;"
    if meant := get_close_matches(word, options, 1):
        hint = f"did you mean `{meant[0]}`?"
    return WrongUsage(f"{job.shown_name} {what}", f"{hint} {_UNASKED}")


def _first_rank(topology: Topology) -> dict[str, str]:
    """Variables of the first rank, as of torchrun: programs compute arguments from the number of ranks."""
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0")
    sizes = dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(topology.world_size))
    hosts = {
        "LOCAL_WORLD_SIZE": str(len(topology.hosts[0].devices)),
        "GROUP_WORLD_SIZE": str(len(topology.hosts)),
    }
    return {**ranks, **sizes, **hosts, "TORCHELASTIC_RUN_ID": "none"}


def _last_lines(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - MOST_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


def _key(job: JobSpec, python: Interpreter, ranks: Mapping[str, str], is_open: bool) -> str:
    words = job.typed_args.words
    depends_on = {
        "is_open": is_open,
        "argv": [job.module or str(job.script.absolute()), *words],
        "directory": str(Path.cwd()),
        "ranks": ranks,
        "python": python.executable,
        "environment": {
            name: value for name, value in os.environ.items() if not _OF_A_TERMINAL.fullmatch(name)
        },
        "zlaunch": __version__,
        "files": _stamps(
            [str(job.script), *(word.partition("=")[2] or word for word in job.typed_args.words)]
        ),
    }
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()


def _stamps(files: Iterable[str]) -> Mapping[str, list[int]]:
    """Return when each of these files was changed, and its size; words that are no files have none."""
    stamps: dict[str, list[int]] = {}
    for name in files:
        with contextlib.suppress(OSError, ValueError):
            status = Path(name).stat()
            stamps[name] = [status.st_mtime_ns, status.st_size]
    return stamps


def _kept(key: str) -> AnswerRecord | None:
    """Return the answer to the same command line, unless a file that the program read was changed since."""
    directory = cache_directory(os.environ)
    if directory is None:
        return None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        kept = json.loads((directory / f"{key}{_SUFFIX}").read_bytes())
        if kept["stamps"] == _stamps(kept["stamps"]):
            return conform(dict(kept["answer"]), AnswerRecord)
    return None


def _keep(key: str, answer: AnswerRecord) -> None:
    directory = cache_directory(os.environ)
    if directory is None or not answer:
        return
    stamps = _stamps(answer.get("files", []))
    with contextlib.suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(directory / f"{key}{_SUFFIX}", json.dumps({"stamps": stamps, "answer": answer}), PRIVATE)
        kept = sorted(directory.glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime)
        for old in kept[:-MOST_KEPT]:
            old.unlink(missing_ok=True)
