"""Decide whether a program has to be asked for its arguments, as its source leaves them open."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.text.document import Document
from zlaunch.errors import Unavailable, ZlaunchError
from zlaunch.hosts.cluster.topology import Host, Topology
from zlaunch.hosts.machine.interpreter import Interpreter, find_module_in, inspect_python
from zlaunch.hosts.machine.transformers_source import CHOICES, trainer_arguments
from zlaunch.job.args import ScriptArgs, TypedFlag, ds_config_of
from zlaunch.job.recipes import recipe_named
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import JobSpec, script_path
from zlaunch.job.trainer_releases import DEFAULTS
from zlaunch.launch.reporter import PlanReporter
from zlaunch.process import Child, heed_signals

ONE_RANK = Topology((Host("localhost", (0,)),))

_GRACE_SECONDS = 2.0


def ask(
    job: JobSpec,
    script: Script,
    python: Interpreter,
    reporter: PlanReporter,
    topology: Topology = ONE_RANK,
    *,
    ds_config: Document | None = None,
) -> Script:
    """Return the script as its first rank describes itself, unless its source alone is certain.

    `ds_config` is the user's, from which the program gets what the ranks would get.

    Raises WrongUsage if it rejects its command line; a script that is certain is asked only for that.
    """
    if not script.is_sure:
        script = replace(script, config_flags=job.config_flags or script.config_flags)
    is_open, ignores = needs_asking(job, script), script.ignores_arguments and bool(job.args.words)
    is_asked = is_open or (job.may_ask and _is_doubtful(job, script, python))
    if not (is_asked or ignores):
        return script
    from zlaunch.launch.asked_program import described, handed_config, refuse_ignored  # most are not asked

    if ignores:
        refuse_ignored(job)
    if not is_asked:
        return script
    handed = handed_config(job, script, ds_config)
    return described(job, script, python, reporter, topology, is_open=is_open, handed=handed)


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
    if name in CHOICES:
        words = CHOICES[name](python)
        return bool(words) and value not in words
    if not re.search(r"\b(int|float)\b", kind) or re.search(r"\b(str|bool)\b", kind):
        return False
    try:
        float(value or "")
    except ValueError:
        return True
    return False


_SHORT = re.compile(r"-[A-Za-z]")


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
    job, ds_config = _with_ds_config(job, source)
    try:
        script = ask(job, source, inspect_python(python), reporter, ds_config=ds_config)
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
    return script.trainer_flags(job.typed_args).preceded_by(defaults), reader


def _with_ds_config(job: JobSpec, script: Script) -> tuple[JobSpec, Document | None]:
    """Take the ds_config from a program's arguments, as `train` does, so that it gets a clean copy."""
    args, file = ds_config_of(job.args, None, script.switches)
    if file is None:
        return job, None
    try:
        ds_config = read(file)
    except ZlaunchError:  # the program reads it in its own way, or says what is wrong
        return job, None
    return replace(job, args=args, config_flags=job.args.config_flags, ds_config=file), ds_config


def _named_program(argv: Sequence[str], python: Path | None) -> JobSpec | None:
    if len(argv) > 1 and argv[0] == "-m":
        return JobSpec(find_module_in(python, argv[1]), ScriptArgs.of(argv[2:]), module=argv[1])
    if argv and (script := named_script(argv[0])) is not None:
        return JobSpec(script, ScriptArgs.of(argv[1:]))
    return None


def named_script(word: str) -> Path | None:
    """Return the script or the recipe that a word names; None for an argument."""
    if word.endswith(".py"):
        return script_path(word)
    return recipe_named(word)


def show_help(job: JobSpec) -> int:
    """Run one process of a program that shows its help, and return its exit status."""
    python = str(job.python or sys.executable)
    child = Child([python, *job.program, *job.args.words], os.environ, sys.stdout.buffer, _GRACE_SECONDS)
    returncode = child.wait(lambda: None)
    heed_signals()
    if returncode < 0:  # minus the signal
        return 128 - returncode
    return returncode
