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
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from zlaunch import __version__
from zlaunch.config.resolve.compose import compose
from zlaunch.config.translate.other_options import trainer_argument
from zlaunch.diagnosis.log_text import exception_in
from zlaunch.dsconfig.text.document import Document
from zlaunch.errors import Refused, Unavailable, WrongUsage
from zlaunch.files import PRIVATE, cache_directory, end_of, write_whole
from zlaunch.hosts.cluster.topology import Topology
from zlaunch.hosts.machine.interpreter import Interpreter, stack_of
from zlaunch.hosts.machine.ports import LOOPBACK, free_port
from zlaunch.hosts.rank_environment import asked_variables
from zlaunch.job.answer import AnswerRecord, apply_answer
from zlaunch.job.args import flag_name
from zlaunch.job.moved_imports import lacking_import, moved_import
from zlaunch.job.script import DS_CONFIG_VARIABLE, ConfigInterface, Script
from zlaunch.job.spec import JobSpec
from zlaunch.job.trainer_releases import DEFAULTS
from zlaunch.launch.argument_hints import hint_for
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

_AMBIGUOUS = re.compile(r"ambiguous option: (--\S+) could match")
_WRONG = re.compile(r"(?:unrecognized arguments: |invalid choice: ')([^\s='(]+)")
"""The word that argparse does not know."""

_OPTION = re.compile(r"(?<![\w-])--\w[\w-]*")

_SIMILAR = 0.75
"""How much alike a misspelled option is to the one that is proposed; less is not by mistake."""

_MISSING = re.compile(r"^ModuleNotFoundError: No module named '[\w.]+'$")

_IMPORT = re.compile(r"(ModuleNotFound|Import)Error: ")

_OF_A_TERMINAL = re.compile(
    r"_|SHLVL|OLDPWD|TERM.*|SSH_.*|DISPLAY|XDG_SESSION.*|DBUS_.*|WINDOWID|COLORTERM|COLUMNS|LINES|VSCODE.*|TMUX.*"
)
"""Variables that differ from terminal to terminal, and on which no answer depends."""

_GRACE_SECONDS = 2.0

_SUFFIX = ".answer.json"


def described(
    job: JobSpec,
    script: Script,
    python: Interpreter,
    reporter: PlanReporter,
    topology: Topology,
    *,
    is_open: bool,
    handed: str | None = None,
) -> Script:
    """Return a script as its first rank describes itself, if it `is_open` how it takes its arguments.

    `handed` is the ds_config that it gets by its arguments or by a variable, as JSON.

    Raises WrongUsage if it rejects its command line, Refused for arguments that only another Trainer has,
    Unavailable if a module that it imports is missing.
    """
    ranks = first_rank(topology)
    key = _key(job, python, ranks, is_open, handed)
    answer = _kept(key)
    if answer is None:
        answer = _answer(job, script, python, reporter, ranks, is_open=is_open, handed=handed)
        _keep(key, answer)
    if rejected := answer.get("rejected"):
        _refuse_absent(rejected, python)
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
    handed: str | None,
) -> AnswerRecord:
    """Run the program until it answers; empty if it does not. It gets what the ranks get."""
    program = [*job.program]
    if script.local_rank_flag:
        program.append(f"{script.local_rank_flag}=0")
    with tempfile.TemporaryDirectory(prefix="zlaunch-ask-") as directory:
        file, log = Path(directory, "answer.json"), Path(directory, "log")
        environment = _environment(job, ranks)
        words, ds_config = job.typed_args.words, Path(directory, "ds_config.json")
        if handed is not None:
            ds_config.write_text(handed, "utf-8")
            if script.config_flags:
                words = (*job.args.words, *script.config_flags, str(ds_config))
            else:
                environment[DS_CONFIG_VARIABLE] = str(ds_config)
        started, limit = time.monotonic(), MOST_SECONDS
        with log.open("wb") as output:
            argv = [python.executable, *program, *words]
            written = None
            if not job.is_to_start:
                written = Path(directory, "written")
                written.mkdir()
            environment |= answer_environment(file, environment, not is_open, written)
            if_killed = ["rm", "-rf", directory]
            child = Child(argv, environment, output, _GRACE_SECONDS, if_killed=if_killed)

        def follow() -> None:
            took = time.monotonic() - started
            reporter.busy(f"asking {job.shown_name} for its arguments", duration(took))
            if file.exists() or took > limit:  # a process that it started may have answered
                child.end_within(0.0)

        returncode = ended_by_itself(child, follow)
        if answer := read_record(file, AnswerRecord):
            if answer.get("ds_config") == str(ds_config):
                answer["ds_config"] = None
            return answer
        lines = last_lines(log)
    error = error_of(lines)
    if returncode == 2:
        _raise_rejected(job, lines, python, is_trainer=script.interface is ConfigInterface.TRAINER)
    if returncode == 1:
        _raise_missing(job, error, python)
    why = _why_unasked(job, returncode, error, is_late=time.monotonic() - started > limit)
    reporter.note(f"cannot find out the arguments of {job.shown_name}: {why}")
    return {}


def ended_by_itself(child: Child, follow: Callable[[], None]) -> int:
    """Wait for a program and return how it ended; exit as a signal ends zlaunch if one ended the program."""
    returncode = child.wait(follow)
    heed_signals()
    if child.stopped_by:
        sys.exit(128 + child.stopped_by)
    if -returncode in RELAYED:
        sys.exit(128 - returncode)
    return returncode


def last_lines(log: Path) -> list[str]:
    """Read the last lines of a log that are not empty."""
    with log.open("rb") as printed:
        return [line.rstrip() for line in end_of(printed, MOST_BYTES).splitlines() if line.strip()]


def _why_unasked(job: JobSpec, returncode: int, error: str, *, is_late: bool) -> str:
    if is_late:
        why = f"it did not create them within {duration(MOST_SECONDS)}"
        if job.has_no_ask:
            why += "; `--no-ask` does not wait for them"
        return why
    if error and returncode:
        return textwrap.shorten(error, MOST_CHARACTERS, placeholder=" …")
    return f"it ended with {returncode}"


def _environment(job: JobSpec, ranks: Mapping[str, str]) -> dict[str, str]:
    variables = asked_variables(job.env, os.environ, job.places)
    chosen = {name: variable.value for name, variable in variables.items()}
    rendezvous = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port())}
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **ranks, **rendezvous, **chosen}


def error_of(lines: Sequence[str]) -> str:
    """Return the error of a program, after which it may have printed more; its last line if there is none."""
    if (error := exception_in("\n".join(lines))) is not None:
        return str(error).partition("\n")[0]
    of_parser = [line for line in lines if ": error: " in line]
    shown = of_parser or [line for line in lines if line.strip()]
    return "".join(shown[-1:]).strip()


def _refuse_absent(words: Sequence[str], python: Interpreter) -> None:
    """Raise Refused for arguments that the Trainer of these packages does not have, but another one does."""
    trainer = stack_of(python).trainer
    absent = [trainer.lacks(flag_name(word)) for word in words]
    if findings := [finding for finding in absent if finding is not None]:
        raise Refused(findings)


def _raise_rejected(job: JobSpec, lines: Sequence[str], python: Interpreter, *, is_trainer: bool) -> None:
    """Raise WrongUsage if the program printed argparse's error about the command line."""
    place = next((place for place in reversed(range(len(lines))) if _REJECTS.search(lines[place])), None)
    if place is None:
        return
    line = lines[place]
    listed = line.partition(_CHOOSE)[2]
    shown = textwrap.shorten(line, MOST_CHARACTERS, placeholder=" …")
    message = "".join(_REJECTS.findall(shown)).partition(_CHOOSE)[0]
    options = re.findall(r"[\w.-]+", listed) or _OPTION.findall(" ".join(lines[:place]))
    words = _WRONG.findall(message)
    if is_trainer:
        _refuse_absent(_OPTION.findall(message), python)
    if is_trainer and (shortened := _AMBIGUOUS.findall(message)):
        words, options = shortened, [f"--{name}" for name in DEFAULTS]
    raise _rejected(job, f"rejects its arguments: {message}", "".join(words[:1]), options)


def _raise_missing(job: JobSpec, error: str, python: Interpreter) -> None:
    """Raise Unavailable if the error is about a module, or a name in one, that cannot be imported."""
    moved, lacking = moved_import(error), lacking_import(error)
    what, hint = error.partition(": ")[2], f"`{python.executable} -m pip install` the package that has it"
    if moved is not None:
        hint = moved[1]
    elif lacking is not None and _IMPORT.match(error):
        what, hint = lacking
    elif _MISSING.search(error) is None:
        return
    raise Unavailable(f"{job.shown_name} cannot start: {what}", _or_unasked(job, hint))


def refuse_ignored(job: JobSpec) -> None:
    """Refuse options of other launchers in a program that certainly reads no arguments."""
    for word in job.args.words:
        if job.may_ask and word.startswith("--") and hint_for(word, ()) is not None:
            raise _rejected(job, f"reads no arguments, so `{word}` has no effect", word)


def _rejected(
    job: JobSpec,
    what: str,
    word: str = "",
    options: Sequence[str] = (),
) -> WrongUsage:
    hint = "see its `--help`"
    if known := hint_for(word, {option.lstrip("-") for option in options}, job.args.value(word)):
        hint = known
    elif trainer_argument(word) is None and (meant := get_close_matches(word, options, 1, _SIMILAR)):
        hint = f"did you mean `{meant[0]}`?"
    return WrongUsage(f"{job.shown_name} {what}", _or_unasked(job, hint))


def _or_unasked(job: JobSpec, hint: str) -> str:
    if not job.has_no_ask:
        return hint
    return f"{hint}{'' if hint.endswith('?') else ';'} `--no-ask` starts it anyway"


def first_rank(topology: Topology) -> dict[str, str]:
    """Variables of the first rank, as of torchrun: programs compute arguments from the number of ranks."""
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0")
    sizes = dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(topology.world_size))
    hosts = {
        "LOCAL_WORLD_SIZE": str(len(topology.hosts[0].devices)),
        "GROUP_WORLD_SIZE": str(len(topology.hosts)),
    }
    return {**ranks, **sizes, **hosts, "TORCHELASTIC_RUN_ID": "none"}


def handed_config(job: JobSpec, script: Script, ds_config: Document | None) -> str | None:
    """Return the ds_config that a program gets when it starts, as JSON; None if it gets none.

    A Trainer reads it later than it is asked.
    """
    is_trainer = script.interface is ConfigInterface.TRAINER
    if is_trainer and (not script.config_flags or not job.config_flags):
        return None
    if job.ds_config is not None and (ds_config is None or not isinstance(ds_config.value, Mapping)):
        return None
    return json.dumps(compose(job, ds_config).config(), indent=2)


def _key(
    job: JobSpec, python: Interpreter, ranks: Mapping[str, str], is_open: bool, handed: str | None
) -> str:
    words = job.typed_args.words
    depends_on = {
        "is_open": is_open,
        "ds_config": handed,
        "env": job.env,
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
