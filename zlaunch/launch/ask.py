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
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from zlaunch import __version__
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.files import PRIVATE, cache_directory, write_whole
from zlaunch.hosts.cluster.topology import Host, Topology
from zlaunch.hosts.machine.interpreter import Interpreter, find_module_in, inspect_python
from zlaunch.hosts.machine.ports import LOOPBACK, free_port
from zlaunch.hosts.machine.probe import trainer_arguments, trainer_optimizers, trainer_schedules
from zlaunch.job.answer import AnswerRecord, apply_answer
from zlaunch.job.args import ScriptArgs, TypedFlag
from zlaunch.job.moved_imports import moved_import
from zlaunch.job.recipes import recipe_named
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import JobSpec
from zlaunch.job.trainer_releases import DEFAULTS
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

ONE_RANK = Topology((Host("localhost", (0,)),))

_GRACE_SECONDS = 2.0
_SUFFIX = ".answer.json"


def ask(
    job: JobSpec, script: Script, python: Interpreter, reporter: PlanReporter, topology: Topology = ONE_RANK
) -> Script:
    """Return the script as its first rank describes itself, unless its source alone is certain.

    Raises WrongUsage if it rejects its command line; a script that is certain is asked only for that.
    """
    if not script.is_sure:
        script = replace(script, config_flags=job.config_flags)
    is_open = needs_asking(job, script)
    if not (is_open or (job.may_ask and _is_doubtful(job, script, python))):
        return script
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


def show_help(job: JobSpec) -> int:
    """Run one process of a program that shows its help, and return its exit status."""
    python = str(job.python or sys.executable)
    child = Child([python, *_program(job), *job.args.words], os.environ, sys.stdout.buffer, _GRACE_SECONDS)
    returncode = child.wait(lambda: None)
    heed_signals()
    if returncode < 0:  # minus the signal
        return 128 - returncode
    return returncode


def ask_command(
    argv: Sequence[str], python: Path | None, reporter: PlanReporter
) -> tuple[ScriptArgs, str | None]:
    """Replace a program and its command line, `train.py --lr 1` or `-m NAME`, by its Trainer arguments.

    Also returns what reads its ds_config, as `--for` names it; None if that is not certain.
    """
    job = _named_program(argv, python)
    if job is None:
        return ScriptArgs.of(argv), None
    source = read_script(job.script)
    try:
        script = ask(job, source, inspect_python(python), reporter)
    except Unavailable as error:  # a package is missing here, where nothing is trained
        if needs_asking(job, source):
            raise
        reporter.note(error.message)
        script = source
    defaults: list[str] = []
    if script.reported is None:
        for name, default in script.defaults.items():
            if not job.args.has(name):
                defaults += [f"--{name}", f"{default.value}"]
    reader: str | None = None
    if script.is_sure and script.interface is not ConfigInterface.NONE:
        reader = script.interface.value
    return script.trainer_flags(_arguments(job)).preceded_by(defaults), reader


def _named_program(argv: Sequence[str], python: Path | None) -> JobSpec | None:
    if len(argv) > 1 and argv[0] == "-m":
        return JobSpec(find_module_in(python, argv[1]), ScriptArgs.of(argv[2:]), module=argv[1])
    if argv and (script := named_script(argv[0])) is not None:
        return JobSpec(script, ScriptArgs.of(argv[1:]))
    return None


def named_script(word: str) -> Path | None:
    """Return the script or the recipe that a word names; None for an argument."""
    if word.endswith(".py"):
        return Path(word)
    return recipe_named(word)


def needs_asking(job: JobSpec, script: Script) -> bool:
    """Whether the source leaves open how the script takes its ds_config or its arguments."""
    begins_with_word = bool(job.args.words) and not job.args.words[0].startswith("-")
    reads_file = script.interface is ConfigInterface.TRAINER and begins_with_word
    is_open = script.own_config is None and (not script.is_sure or reads_file)
    return job.may_ask and is_open


def _is_doubtful(job: JobSpec, script: Script, python: Interpreter) -> bool:
    """Whether an argument may be wrong, as far as the source and the Trainer tell: its parser knows."""
    if script.own_config is not None or script.interface is ConfigInterface.NONE:
        return False
    short = (word for word in job.args.words if _SHORT.match(word))
    if any(f"'{word}'" not in script.source and f'"{word}"' not in script.source for word in short):
        return True
    types: Mapping[str, str] = {}
    if script.interface is ConfigInterface.TRAINER:
        types = trainer_arguments(python)
    for flag in job.args.flags:
        is_doubtful = not script.mentions(flag.name)
        if flag.name in types:
            is_doubtful = _is_odd(flag, types[flag.name], python)
        if is_doubtful:
            return True
    return False


def _is_odd(flag: TypedFlag, kind: str, python: Interpreter) -> bool:
    """Whether the Trainer may not take a value for an argument; `kind` is its type."""
    name, value = flag.name, flag.value
    if isinstance(DEFAULTS.get(name, ""), int | float):  # the plan checks those
        return False
    if name in _CHOICES:
        words = _CHOICES[name](python)
        return bool(words) and value not in words
    if not re.search(r"\b(int|float)\b", kind) or re.search(r"\b(str|bool)\b", kind):
        return False
    try:
        float(value or "")
    except ValueError:
        return True
    return False


_CHOICES = {"optim": trainer_optimizers, "lr_scheduler_type": trainer_schedules}
"""Arguments of the Trainer that take one of several words → what lists them."""

_SHORT = re.compile(r"-[A-Za-z]")


def _program(job: JobSpec) -> list[str]:
    if job.module:
        return ["-m", job.module]
    return [str(job.script)]


def _name(job: JobSpec) -> str:
    if job.module is not None:
        return f"`-m {job.module}`"
    return job.script.name


def _rejected(job: JobSpec, said: str, word: str = "", options: Sequence[str] = ()) -> WrongUsage:
    hint = "see its `--help`;"
    if meant := get_close_matches(word, options, 1):
        hint = f"did you mean `{meant[0]}`?"
    return WrongUsage(f"{_name(job)} {said}", f"{hint} {_UNASKED}")


_UNASKED = "`--no-ask` starts it anyway"


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
    program = [*_program(job)]
    if script.wants_local_rank:
        program.append("--local_rank=0")
    with tempfile.TemporaryDirectory(prefix="zlaunch-ask-") as directory:
        file, log = Path(directory, "answer.json"), Path(directory, "log")
        environment = {**os.environ, **ranks, "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port())}
        started, limit = time.monotonic(), MOST_SECONDS
        with log.open("wb") as output:
            argv = [python.executable, *program, *_arguments(job).words]
            environment |= answer_environment(file, environment, at_parser=not is_open)
            if_killed = ["rm", "-rf", directory]
            child = Child(argv, environment, output, _GRACE_SECONDS, if_killed=if_killed)

        def follow() -> None:
            took = time.monotonic() - started
            reporter.busy(f"asking {_name(job)} for its arguments", duration(took))
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
    reporter.note(f"cannot find out the arguments of {_name(job)}: {why}")
    return {}


def _raise_rejected(job: JobSpec, last: str, lines: Sequence[str]) -> None:
    """Raise WrongUsage if the last line is argparse's error about the command line."""
    said = _REJECTS.search(last)
    if said is None:
        return
    listed = lines[-1].partition(_CHOOSE)[2]
    message = said[1].partition(_CHOOSE)[0]
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
    raise Unavailable(f"{_name(job)} cannot start: {last.partition(': ')[2]}", f"{hint}; {_UNASKED}")


def _arguments(job: JobSpec) -> ScriptArgs:
    """Return the arguments as the user typed them, with the ds_config."""
    if not job.config_flags:
        return job.args
    return job.args.followed_by((*job.config_flags, str(job.ds_config)))


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
    words = _arguments(job).words
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
            [str(job.script), *(word.partition("=")[2] or word for word in _arguments(job).words)]
        ),
    }
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()


def _stamps(files: Iterable[str]) -> Mapping[str, list[int]]:
    """Return when each of these files was changed, and its size; words that are no files have none."""
    found: dict[str, list[int]] = {}
    for name in files:
        with contextlib.suppress(OSError, ValueError):
            status = Path(name).stat()
            found[name] = [status.st_mtime_ns, status.st_size]
    return found


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
