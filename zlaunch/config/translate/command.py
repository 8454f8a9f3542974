"""Parse a launcher's command line as argparse does: launcher, flags, script and its arguments.

All three launchers end in a script followed by `argparse.REMAINDER`: the first word that is neither a flag
nor a flag's value is the script, and everything after it belongs to the script.
"""

import difflib
import re
import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from zlaunch.config.translate.flags import (
    Around,
    Command,
    Flag,
    GivenFlag,
    LauncherSyntax,
    NotNeeded,
    Role,
)
from zlaunch.config.translate.launchers import ACCELERATE, DEEPSPEED, OLD_TORCHRUN, TORCHRUN, syntax_of
from zlaunch.config.translate.shell import is_replaced, quote, readable
from zlaunch.config.translate.wrappers import Wrapped, program_name, task_starter, unwrap
from zlaunch.errors import WrongUsage
from zlaunch.job.args import ScriptArgs

LAUNCHERS = (DEEPSPEED, TORCHRUN, ACCELERATE)

PROGRAMS: Mapping[str, str] = {
    "deepspeed": DEEPSPEED,
    "deepspeed.pt": DEEPSPEED,
    "ds": DEEPSPEED,
    "torchrun": TORCHRUN,
    "accelerate launch": ACCELERATE,
    "accelerate-launch": ACCELERATE,
}
"""Name on the command line → launcher."""

MODULES: Mapping[str, str] = {
    "deepspeed.launcher.runner": DEEPSPEED,
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": OLD_TORCHRUN,
    "accelerate.commands.launch": ACCELERATE,
    "accelerate.commands.accelerate_cli launch": ACCELERATE,
}
"""Module → launcher."""

FIRST_WORDS = frozenset(program.partition(" ")[0] for program in PROGRAMS)

_PYTHON = re.compile(r"python[\d.]*")
_MODULE = re.compile(r"-[A-Za-z]*m")
_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


def starts_ranks(word: str) -> bool:
    """Whether a program is one of the launchers, or Python, which may run one."""
    return word in FIRST_WORDS or bool(_PYTHON.fullmatch(word))


def read_command(words: Sequence[str]) -> Command:
    """Parse a launcher's command line; raise WrongUsage where the launcher would fail."""
    return read_wrapped(unwrap(words, starts_ranks), Around())


def read_wrapped(wrapped: Wrapped, around: Around) -> Command:
    """Parse a launcher's command line behind what stands in front of it."""
    environment, rest = wrapped.environment, deque(wrapped.words)
    is_task = task_starter((*around.front, *wrapped.front)) is not None
    if is_task and rest and _PYTHON.fullmatch(program_name(rest[0])) and not runs_launcher([*rest]):
        rest.popleft()
        launcher = PYTHON
    else:
        launcher = _launcher(rest)
    around_it = {name: value for name, value in around.environ.items() if _stands_for_a_flag(launcher, name)}
    given = [*_from_variables(launcher, {**around_it, **environment}), *_flags(launcher, rest)]
    script, args = _script(rest)
    if script is not None and script.startswith("-"):
        raise _unknown(launcher, script)
    if script is not None and is_replaced(script) and any(word.endswith(".py") for word in args):
        text = readable(script)
        raise WrongUsage(
            f"`{text}` stands in front of the script: its flags of {launcher.name} are not known",
            f"write them out, or put the command in double quotes, so that your shell replaces `{text}`",
        )
    kept = {name: value for name, value in environment.items() if not _stands_for_a_flag(launcher, name)}
    return Command(
        launcher, kept, tuple(given), script, ScriptArgs(args), wrapped.front, wrapped.behind, around
    )


PYTHON = LauncherSyntax(
    "python",
    (
        Flag(("-m",), False, Role.MODULE),
        *(Flag((f"-{name}",), False, NotNeeded("zlaunch starts Python itself")) for name in "uBEIOPs"),
        *(Flag((f"-{name}",), True, NotNeeded("zlaunch starts Python itself")) for name in "XW"),
    ),
    either_dash=False,
    shortens=False,
    ranks="1",
)
"""Python itself, which something in front of it starts once for each rank."""


def runs_launcher(words: Sequence[str]) -> bool:
    """Whether Python, the first of these words, runs the module of a launcher."""
    is_python = bool(words) and _PYTHON.fullmatch(program_name(words[0])) is not None
    return is_python and _module(deque([*words][1:])) in {name.partition(" ")[0] for name in MODULES}


def _launcher(rest: deque[str]) -> LauncherSyntax:
    words = [*rest]
    program = ""
    if rest:
        program = program_name(rest.popleft())
    known = PROGRAMS
    if _PYTHON.fullmatch(program):
        program, known = _module(rest), MODULES
    if rest and f"{program} {rest[0]}" in known:
        program = f"{program} {rest.popleft()}"
    if program not in known:
        raise WrongUsage(
            f"`{shlex.join(words[:3])}` is not a launcher that zlaunch knows",
            "start with `deepspeed`, `torchrun` or `accelerate launch`",
        )
    return syntax_of(known[program])


def _module(rest: deque[str]) -> str:
    """Skip the options of Python itself; an empty name if it runs no module."""
    while rest and rest[0].startswith("-"):
        option = rest.popleft()
        if _MODULE.fullmatch(option):
            if rest:
                return rest.popleft()
            return ""
        if option in ("-X", "-W") and rest:
            rest.popleft()
    return ""


def _stands_for_a_flag(launcher: LauncherSyntax, variable: str) -> bool:
    return bool(launcher.variables) and variable.startswith(launcher.variables)


def _from_variables(launcher: LauncherSyntax, environment: Mapping[str, str]) -> Iterator[GivenFlag]:
    """Read the variables that set flags of torchrun; the command line comes later and wins."""
    flags = {flag.key: flag for flag in launcher.flags}
    for name, value in environment.items():
        key = name[len(launcher.variables) :].lower()
        if not _stands_for_a_flag(launcher, name) or key not in flags:
            continue
        if flags[key].takes_value or value != "0":
            yield GivenFlag(flags[key], value, f"{name}={value}")


def _flags(launcher: LauncherSyntax, rest: deque[str]) -> Iterator[GivenFlag]:
    """Read the flags before the script."""
    spellings = launcher.spellings()
    while rest and _is_flag(rest[0], launcher, spellings):
        word = rest.popleft()
        flag, value = _find(word, launcher, spellings)
        if flag.takes_value:
            if value is None:
                if not rest or rest[0] == "--" or _is_flag(rest[0], launcher, spellings):
                    raise WrongUsage(f"`{word}` of {launcher.name} needs a value")
                value = rest.popleft()
                yield GivenFlag(flag, value, f"{word} {quote(value)}")
            else:
                yield GivenFlag(flag, value, quote(word))
            continue
        if value is not None and word.startswith("--"):
            raise WrongUsage(f"`{word.partition('=')[0]}` of {launcher.name} takes no value")
        if value:
            rest.appendleft(f"-{value}")
        yield GivenFlag(flag, "", word[:2] if value else word)


def _script(rest: deque[str]) -> tuple[str | None, tuple[str, ...]]:
    """Find the script; argparse drops one `--` before or right after it."""
    marked = bool(rest) and rest[0] == "--"
    if marked:
        rest.popleft()
    script = None
    if rest:
        script = rest.popleft()
    if not marked and rest and rest[0] == "--":
        rest.popleft()
    return script, tuple(rest)


def _is_flag(word: str, launcher: LauncherSyntax, spellings: Mapping[str, Flag]) -> bool:
    if not word.startswith("-") or word in ("-", "--"):
        return False
    if _matches(word, launcher, spellings):
        return True
    return not _NUMBER.fullmatch(word) and " " not in word


def _find(word: str, launcher: LauncherSyntax, spellings: Mapping[str, Flag]) -> tuple[Flag, str | None]:
    """Find the flag of a word, and the value attached to it."""
    matches = _matches(word, launcher, spellings)
    if len({flag.key for flag, _ in matches}) != 1:
        raise _unknown(launcher, word)
    return matches[0]


def _matches(
    word: str, launcher: LauncherSyntax, spellings: Mapping[str, Flag]
) -> list[tuple[Flag, str | None]]:
    if word in spellings:
        return [(spellings[word], None)]
    name, equals, text = word.partition("=")
    value = text if equals else None
    if name in spellings:
        return [(spellings[name], value)]
    if not word.startswith("--"):
        if word[:2] in spellings:
            return [(spellings[word[:2]], word[2:])]
        return []
    return [
        (flag, value)
        for spelling, flag in spellings.items()
        if launcher.shortens and spelling.startswith(name)
    ]


def _unknown(launcher: LauncherSyntax, word: str) -> WrongUsage:
    """Report an unknown flag; suggest one with a similar name, or one that means the same."""
    name = word.partition("=")[0]
    message = f"{launcher.name} has no flag `{name}`"
    for other in map(syntax_of, LAUNCHERS):
        meant = other.spellings().get(name)
        same = [flag.names[-1] for flag in launcher.flags if meant and flag.becomes == meant.becomes]
        if same:
            return WrongUsage(f"{message}, but {other.name} does", f"did you mean `{same[0]}`?")
    close = difflib.get_close_matches(name, launcher.spellings(), n=1, cutoff=0.6)
    return WrongUsage(message, f"did you mean `{close[0]}`?" if close else None)
