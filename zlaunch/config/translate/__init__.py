"""Translate another launcher's command line to zlaunch, with notes on what changes.

`command` parses the line as the launcher does, by the tables in `launchers.json`, which say what each flag
becomes. Flags that are decided together are handled in `hosts` and `ds_config`. Every flag that is
dropped gets a note.
"""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zlaunch.config.accelerate import AccelerateConfig, default_file, read
from zlaunch.config.translate import accelerate
from zlaunch.config.translate.command import begins_as_command, read_command
from zlaunch.config.translate.ds_config import settings
from zlaunch.config.translate.flags import (
    BecomesOption,
    BecomesVariable,
    Command,
    GivenFlag,
    NoEquivalent,
    NotNeeded,
    Role,
    Untranslatable,
)
from zlaunch.config.translate.hosts import VISIBLE, host_options, is_for_several_hosts, visible_devices
from zlaunch.config.translate.launchers import ACCELERATE
from zlaunch.config.translate.parts import Assignment, Note, Option, Piece, no_equivalent, not_needed
from zlaunch.config.translate.programs import replacement
from zlaunch.errors import Finding, Refused, Severity, WrongUsage, ZlaunchError

CONFIG_ENDINGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Translation:
    """A command line of zlaunch, with notes on every flag."""

    line: str
    """Quoted for a shell."""
    notes: tuple[Note, ...]


def translate_command(words: Sequence[str], environ: Mapping[str, str]) -> Translation:
    """Translate a command line with the files that it reads: an accelerate config, a hostfile."""
    if len(words) == 1 and begins_as_command(words[0]):
        words = _split(words[0])
    if words and not begins_as_command(words[0]) and (program := replacement((), words)) is not None:
        if program.line is None:
            raise program.error()
        return Translation(program.line, tuple(Note(about, text) for about, text in program.notes))
    command = parse_command(words)
    named, notes = config_file(command), []
    default = default_file(environ)
    if named is None and reads_default_config(command) and default.is_file():
        named = str(default)
        notes.append(Note("accelerate launch", f"reads {named}, and so does this"))
    config = None
    if named is not None:
        config = read(Path(named))
    hostfile = command.launcher.hostfile
    translation = translate(command, config, hostfile if hostfile and Path(hostfile).is_file() else None)
    return replace(translation, notes=(*notes, *translation.notes))


def refusal(options: Sequence[str], words: Sequence[str]) -> WrongUsage | None:
    """Explain what to type if a command line names a program that starts ranks; None if it does not.

    `options` and `words` are those of `replacement`.
    """
    program = replacement(options, words)
    if program is None or not program.launcher:
        return None if program is None else program.error()
    try:
        words = shlex.split(translate_command(program.launcher, os.environ).line)
    except ZlaunchError:
        return program.error()
    end = words.index("--") if "--" in words else len(words)
    line = shlex.join([*words[:end], *program.options, *words[end:]])
    return WrongUsage(program.why, f"`{line}`; `zlaunch config translate` explains what each flag becomes")


def parse_command(words: Sequence[str]) -> Command:
    """Parse a command line, as words or as one quoted string, or an accelerate config with a script."""
    if len(words) == 1 and begins_as_command(words[0]):
        words = _split(words[0])
    elif words and words[0].endswith(CONFIG_ENDINGS):
        words = ["accelerate", "launch", "--config_file", *words]
    command = read_command(words)
    if command.script is None and Role.CONFIG_FILE not in command.roles():
        raise WrongUsage("this command line has no script", "copy the whole command with its script")
    return command


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise WrongUsage(f"not a command line: {str(error).lower()}") from None


def config_file(command: Command) -> str | None:
    """The accelerate config that a command line names."""
    named = command.roles().get(Role.CONFIG_FILE)
    if named:
        return named.value
    return None


def reads_default_config(command: Command) -> bool:
    """Whether accelerate reads its default config if there is one."""
    return command.launcher.name == ACCELERATE and not any(given.flag.key == "cpu" for given in command.given)


def translate(
    command: Command, config: AccelerateConfig | None = None, hostfile: str | None = None
) -> Translation:
    """Translate a command; raise Refused with every reason if that is impossible.

    `config` is the accelerate config that the launcher reads, `hostfile` an existing default hostfile.
    """
    if config is not None:
        _refuse_mistakes(config)
        command = accelerate.with_settings(command, config)
    if hostfile and Role.HOSTFILE not in command.roles():
        command = _with_hostfile(command, hostfile)
    uses_deepspeed = _refuse_what_cannot_be(command)
    pieces = [*_pieces(command, uses_deepspeed)]
    return Translation(_line(command, pieces), tuple(piece for piece in pieces if isinstance(piece, Note)))


def _refuse_mistakes(config: AccelerateConfig) -> None:
    """Raise Refused with what accelerate refuses; what it ignores becomes a note."""
    errors = [finding for finding in config.findings if finding.severity is Severity.ERROR]
    if errors:
        raise Refused(errors)


def _with_hostfile(command: Command, hostfile: str) -> Command:
    flag = next(flag for flag in command.launcher.flags if flag.becomes is Role.HOSTFILE)
    return replace(command, given=(GivenFlag(flag, hostfile, hostfile), *command.given))


def _refuse_what_cannot_be(command: Command) -> bool:
    """Raise Refused for flags without equivalent; return whether the launcher itself configures DeepSpeed."""
    refused = [(given.written, given.place, given.flag.becomes) for given in command.given]
    paradigm = accelerate.paradigm(command)
    if isinstance(paradigm, Untranslatable):
        kind = command.roles()[Role.DISTRIBUTED_TYPE]
        refused.append((kind.written, kind.place, paradigm))
    findings = [
        Finding("no-equivalent", becomes.why, becomes.hint, where=written, place=place)
        for written, place, becomes in refused
        if isinstance(becomes, Untranslatable)
    ]
    if findings:
        raise Refused(findings)
    return paradigm is True


def _pieces(command: Command, uses_deepspeed: bool) -> Iterator[Piece]:
    roles, notes = _without_idle(command, uses_deepspeed)
    yield from settings(command, roles, uses_deepspeed)
    yield from host_options(command, roles)
    if command.launcher.hostfile and not is_for_several_hosts(roles):
        yield Option("--launcher", "deepspeed")
    yield from notes
    winners = command.roles()
    for given in command.given:
        winner = None
        if isinstance(given.flag.becomes, Role):
            winner = winners.get(given.flag.becomes)
        if winner not in (None, given):
            yield not_needed(given, f"`{winner.written}` comes later and takes precedence")
        yield from _alone(given)
    if command.prefix:
        yield Note(shlex.join(command.prefix), "stays in front")
    if command.script is None:
        yield Note("script", "none is given, so zlaunch trains its own small model; append yours")
    unless = command.launcher.passes_local_rank
    if unless and unless not in [given.flag for given in command.given]:
        yield Note("--local_rank", "passed only to a script that needs it")


def _without_idle(command: Command, uses_deepspeed: bool) -> tuple[dict[Role, GivenFlag], list[Note]]:
    """Drop flags that repeat a default, and those that accelerate only reads for several hosts."""
    roles, notes = command.roles(), []
    for role, given in command.roles().items():
        if given.value.lower() in given.flag.idle:
            notes.append(not_needed(given, "it is the default"))
            del roles[role]
    hosts = roles.get(Role.HOSTS)
    if command.launcher.name == ACCELERATE and (hosts is None or hosts.value == "1"):
        ignored = [role for role in (Role.HOSTFILE, Role.INCLUDE, Role.EXCLUDE) if role in roles]
        notes += [not_needed(roles.pop(role), "accelerate ignores it with one machine") for role in ignored]
    return roles, notes


def _alone(given: GivenFlag) -> Iterator[Piece]:
    """Translate a flag that does not depend on others."""
    match given.flag.becomes:
        case NotNeeded() | NoEquivalent() | BecomesOption() if given.value.lower() in given.flag.idle:
            yield not_needed(given, "it is the default")
        case BecomesOption(name):
            yield Option(name, given.value)
            yield Note(given.written, f"`{name} {given.value}`")
        case NotNeeded(why):
            yield not_needed(given, why)
        case NoEquivalent(why):
            yield no_equivalent(given, why)
        case BecomesVariable(name, value):
            text = given.value if value is None else value
            yield Assignment(name, text)
            yield Note(given.written, f"`{name}={shlex.quote(text)}` in front of the command")
        case Role.MODULE:
            yield Note(given.written, "`-m` with the module's name")
        case Role.USE_DEEPSPEED:
            yield not_needed(given, "zlaunch always does")


def _line(command: Command, pieces: Sequence[Piece]) -> str:
    """Write the command line, ready for a shell."""
    environment = dict(command.environment)
    if visible_devices(command):
        del environment[VISIBLE]
    environment |= {piece.name: piece.value for piece in pieces if isinstance(piece, Assignment)}
    words = [*command.prefix, "zlaunch", "train"]
    if command.script is not None:
        words += ["-m", command.script] if Role.MODULE in command.roles() else [command.script]
    for piece in pieces:
        if isinstance(piece, Option):
            words += [piece.name, piece.value]
    args, _ = command.args.take_ds_config()
    if args.words:
        words += ["--", *args.words]
    assignments = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*assignments, shlex.join(words)])
