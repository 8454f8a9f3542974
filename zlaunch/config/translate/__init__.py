"""Translate another launcher's command line to zlaunch, with notes on what changes.

`command` parses the line as the launcher does, by the tables in `launchers.json`, which say what each flag
becomes. Flags that are decided together are handled in `hosts` and `ds_config`. Every flag that is
dropped gets a note.
"""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, starmap
from pathlib import Path

from zlaunch.config.accelerate import AccelerateConfig, default_file, read
from zlaunch.config.translate import accelerate, shell
from zlaunch.config.translate.command import FIRST_WORDS, read_wrapped, runs_launcher, starts_ranks
from zlaunch.config.translate.ds_config import settings
from zlaunch.config.translate.flags import (
    Around,
    BecomesOption,
    BecomesVariable,
    Command,
    GivenFlag,
    NoEquivalent,
    NotNeeded,
    Role,
    Untranslatable,
)
from zlaunch.config.translate.hosts import (
    OF_HOSTS,
    VISIBLE,
    Way,
    host_options,
    may_use_deepspeeds_launcher,
    num_hosts,
    visible_devices,
    way_of,
)
from zlaunch.config.translate.launchers import ACCELERATE
from zlaunch.config.translate.parts import Assignment, Note, Option, Piece, no_equivalent, not_needed
from zlaunch.config.translate.programs import Replacement, is_program, replacement, variables_of
from zlaunch.config.translate.script import TranslatedScript, read_script_of
from zlaunch.config.translate.wrappers import (
    ASSIGNMENT,
    ELSEWHERE,
    OTHER_ENVIRONMENTS,
    SHELLS,
    STARTS_TASKS,
    WRAPPERS,
    Wrapped,
    ends_in_env,
    hands_on_variables,
    program_name,
    text_for_shell,
    unwrap,
)
from zlaunch.errors import Finding, Refused, Severity, WrongUsage, ZlaunchError
from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs

CONFIG_ENDINGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Translation:
    """A command line of zlaunch, with notes on every flag."""

    line: str
    """Quoted for a shell."""
    notes: tuple[Note, ...]


def translate_command(words: Sequence[str], environ: Mapping[str, str]) -> Translation:
    """Translate a command line with the files that it reads: an accelerate config, a hostfile.

    A single word with spaces is a text for a shell, which may have other commands, too.
    """
    around = Around(environ)
    if environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        around = Around(environ, (("srun",),))
    if len(words) == 1 and " " in words[0].strip() and not _is_file(words[0]):
        text, prompts = shell.without_prompts(words[0])
        translation = _of_text(text, around)
        return replace(translation, notes=(*starmap(Note, prompts), *translation.notes))
    if words[:1] and words[0] in shell.PROMPTS:
        words = words[1:]
    if words and words[0].endswith(CONFIG_ENDINGS):
        words = ["accelerate", "launch", "--config_file", *words]
    return _readable(_in_words(words, around))


def _is_file(word: str) -> bool:
    with suppress(OSError, ValueError):
        return Path(word).is_file()
    return False


def _of_text(text: str, around: Around) -> Translation:
    """Translate a text; errors name words as they were typed."""
    try:
        return _in_text(text, around)
    except WrongUsage as error:
        hint = error.hint
        if hint is not None:
            hint = shell.readable(hint)
        raise WrongUsage(shell.readable(error.message), hint) from None
    except Refused as refused:
        raise Refused(
            [replace(finding, where=shell.readable(finding.where)) for finding in refused.findings]
        ) from None


def _in_text(text: str, around: Around) -> Translation:
    """Translate the commands of a text that start ranks, and keep the others."""
    commands = shell.read(text, around.level)
    chosen = [command for command in commands if _names_program(command.words)]
    chosen = chosen or [command for command in commands if _is_behind_another(command.words)]
    chosen = chosen or [command for command in commands if command.words][:1]
    line, notes, errors = "", list[Note](), list[ZlaunchError]()
    for command in commands:
        line += command.text[: len(command.text) - len(command.text.lstrip())]
        kept = command.text.strip()
        if command in chosen:
            try:
                translation = _in_words(command.words, around)
            except ZlaunchError as error:
                errors.append(error)
                notes.append(Note(shell.join(command.words[:2], around.level), f"stays: {error.message}"))
            else:
                kept = translation.line
                notes += translation.notes
        line += kept + command.tail
        around = replace(around, environ={**around.environ, **_exported(command.words)})
    if not chosen:
        raise WrongUsage("there is no command in this text", "copy the whole command with its script")
    if len(errors) == len(chosen):
        raise errors[0]
    return _readable(Translation(line.strip(), tuple(notes)))


def _exported(words: Sequence[str]) -> dict[str, str]:
    if words[:1] != ("export",):
        return {}
    assigned = filter(None, map(ASSIGNMENT.fullmatch, words[1:]))
    return {assignment["name"]: assignment["value"] for assignment in assigned}


def _readable(translation: Translation) -> Translation:
    notes = (Note(shell.readable(note.about), shell.readable(note.text)) for note in translation.notes)
    return replace(translation, notes=tuple(notes))


def _names_program(words: Sequence[str]) -> bool:
    """Whether a command is one to translate."""
    wrapped = unwrap(words, is_program)
    if wrapped.text is not None:
        return any(_names_program(command.words) for command in shell.read(wrapped.text, 1))
    return bool(wrapped.words) and is_program(program_name(wrapped.words[0]))


def _in_words(words: Sequence[str], around: Around) -> Translation:
    wrapped = unwrap(words, is_program)
    if wrapped.text is None and not _names_program(wrapped.words):
        wrapped = _behind_another(wrapped)
    if wrapped.text is not None:
        within = Around(
            {**around.environ, **wrapped.environment},
            (*around.front, *wrapped.front),
            around.level + 1,
        )
        inner = _in_text(wrapped.text, within)
        *front, reader = wrapped.front
        outer = replace(wrapped, front=tuple(front))
        words = (*reader, inner.line, *wrapped.after)
        prefix = wrapped.prefix if program_name(reader[0]) not in SHELLS else outer.prefix
        notes = inner.notes
        if prefix and _stays(prefix) != _STAYS:
            notes = (*notes, Note(shell.join(prefix, around.level), _stays(prefix)))
        return Translation(_in_front(outer, wrapped.environment, words, around.level), notes)
    if not wrapped.words or starts_ranks(program_name(wrapped.words[0])):
        return _of_launcher(wrapped, around)
    program = replacement((), wrapped.words)
    if program is None:
        return _of_launcher(wrapped, around)
    if program.launcher:
        return _of_launcher(replace(wrapped, words=program.launcher), around)
    return _of_program(program, wrapped, around)


def _behind_another(wrapped: Wrapped) -> Wrapped:
    """Take off another program in front of a command, such as `docker run IMAGE` or `ssh HOST`."""
    words = wrapped.words
    place = _place_behind_another(words)
    if place is None:
        return wrapped
    again = text_for_shell(words)
    if again is not None and _read_commands(again[1]) != [words[again[0] :]] and _is_text(again[1]):
        if _runs_text(words[again[0] :]):
            name = program_name(words[0])
            raise WrongUsage(
                f"{name} drops these quotes: the shell on the host runs only the first word after `-c`",
                f"quote twice: `{' '.join(words[: again[0]])} \"{words[again[0]]} -c '…'\"`",
            )
        front = (*wrapped.front, words[: again[0]])
        return replace(wrapped, words=(), front=front, text=again[1], after=())
    starts = [at for at in range(1, place) if program_name(words[at]) in STARTS_TASKS]
    front = (*wrapped.front, *(words[start:end] for start, end in pairwise([0, *starts, place])))
    if _is_text(words[place]):
        return replace(wrapped, words=(), front=front, text=words[place], after=words[place + 1 :])
    inner = unwrap(words[place:], is_program)
    return replace(
        inner,
        environment={**wrapped.environment, **inner.environment},
        front=(*front, *inner.front),
        behind=wrapped.behind | inner.environment.keys(),
    )


def _place_behind_another(words: Sequence[str]) -> int | None:
    """Find the command that another program runs, as its words or as one text."""
    runs_any = bool(words) and program_name(words[0]) in ELSEWHERE
    again = text_for_shell(words)
    if again is not None and _is_text(again[1]):
        return again[0]
    for place, word in enumerate(words):
        is_known = program_name(word) in FIRST_WORDS or runs_launcher(words[place:])
        if runs_any and not is_known:  # and not the name of an image or a container
            is_known = is_program(program_name(word)) and word not in words[place + 1 : place + 2]
            is_known = is_known and not starts_ranks(word)
        if place and (is_known or _is_text(word) or _runs_text(words[place:])):
            return place
    return None


def _runs_text(words: Sequence[str]) -> bool:
    text = unwrap(words, is_program).text
    return text is not None and _is_text(text)


def _is_text(word: str) -> bool:
    """Whether a word is a text for a shell with a command to translate."""
    if " " not in word:
        return False
    with suppress(WrongUsage):
        return any(_names_program(command.words) for command in shell.read(word, 1))
    return False


def _read_commands(text: str) -> list[tuple[str, ...]]:
    return [command.words for command in shell.read(text, 1)]


def _is_behind_another(words: Sequence[str]) -> bool:
    return _place_behind_another(unwrap(words, is_program).words) is not None


def _of_program(program: Replacement, wrapped: Wrapped, around: Around) -> Translation:
    if program.line is None:
        raise program.error()
    kept, options, notes = variables_of(program, wrapped.environment, around.environ)
    line = _in_front(wrapped, kept, program.words(options), around.level)
    pieces = [*starmap(Note, program.notes), *starmap(Note, notes)]
    if wrapped.prefix:
        pieces.append(Note(shell.join(wrapped.prefix), _stays(wrapped.prefix)))
    return Translation(line, tuple(pieces))


def _of_launcher(wrapped: Wrapped, around: Around) -> Translation:
    command = _with_script(read_wrapped(wrapped, around))
    named, notes = config_file(command), []
    default = default_file(around.environ)
    if named is None and reads_default_config(command) and default.is_file():
        named = str(default)
        notes.append(Note("accelerate launch", f"reads {named}, and so does this"))
    config = None
    if named is not None:
        config = read(shell.path_of(named))
    hostfile = command.launcher.hostfile
    if hostfile and not Path(hostfile).is_file():
        hostfile = None
    translation = translate(command, config, hostfile)
    return replace(translation, notes=(*notes, *translation.notes))


def refusal(options: Sequence[str], words: Sequence[str]) -> WrongUsage | None:
    """Explain what to type if a command line names a program that starts ranks; None if it does not.

    `options` and `words` are those of `replacement`.
    """
    wrapped = unwrap(words, is_program)
    if not wrapped.is_bare:
        return _refuse_wrapped(options, wrapped, words)
    program = replacement(options, words)
    if program is None or not program.launcher:
        return None if program is None else program.error()
    return WrongUsage(program.why, _hint_instead(program.options, program.launcher, program.error().hint))


def _refuse_wrapped(options: Sequence[str], wrapped: Wrapped, words: Sequence[str]) -> WrongUsage:
    """Explain that what runs a command stands in front of zlaunch, not behind it."""
    first = shlex.join(words[:1])
    why = f"`{first}` is not a training script: variables and what runs programs go in front of zlaunch"
    own = [word for place, word in enumerate(words) if (place, word) != (1, "--")]
    see = f"see `zlaunch config translate -- {shlex.join(own)}`"
    if wrapped.text is not None:
        return WrongUsage(why, see)
    script, *args = [word for place, word in enumerate(wrapped.words) if (place, word) != (1, "--")] or [""]
    if not is_program(program_name(script)):
        command = ["zlaunch", "train", *options, *filter(None, [script])]
        if args:
            command += ["--", *args]
        return WrongUsage(why, f"`{_in_front(wrapped, wrapped.environment, command, 0)}`")
    if (program := replacement(options, wrapped.words)) is not None and program.line is not None:
        environment, more, _ = variables_of(program, wrapped.environment, os.environ)
        return WrongUsage(why, f"`{_in_front(wrapped, environment, program.words(more), 0)}`")
    return WrongUsage(why, _hint_instead(options, own, see))


def _hint_instead(options: Sequence[str], words: Sequence[str], otherwise: str | None) -> str | None:
    """Name the translation of a command, with options of zlaunch that were typed before it."""
    try:
        typed = shlex.split(translate_command(words, os.environ).line)
    except ZlaunchError:
        return otherwise
    end = typed.index("--") if "--" in typed else len(typed)
    line = shlex.join([*typed[:end], *options, *typed[end:]])
    return f"`{line}`; `zlaunch config translate` explains what each flag becomes"


def _with_script(command: Command) -> Command:
    if command.script is None and Role.CONFIG_FILE not in command.roles():
        raise WrongUsage("this command line has no script", "copy the whole command with its script")
    return command


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
    script = read_script_of(command)
    pieces = [*_pieces(command, uses_deepspeed, script)]
    notes = tuple(piece for piece in pieces if isinstance(piece, Note))
    return Translation(_line(command, pieces, script.args), notes)


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


def _pieces(command: Command, uses_deepspeed: bool, script: TranslatedScript) -> Iterator[Piece]:
    roles, notes = _without_idle(command, uses_deepspeed)
    yield from settings(command, roles, uses_deepspeed, script)
    yield from host_options(command, roles)
    if way_of(command, roles) is Way.HERE and may_use_deepspeeds_launcher(command):
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
        yield Note(shell.join(command.prefix), _stays(command.prefix))
    if command.script is None:
        yield Note("script", "none is given, so zlaunch trains its own small model; append yours")
    unless = command.launcher.passes_local_rank
    if unless and unless not in [given.flag for given in command.given]:
        yield Note("--local_rank", "passed only to a script that needs it")


_STAYS = "stays in front"


def _stays(prefix: Sequence[str]) -> str:
    names = [program_name(word) for word in prefix]
    if names[0] in WRAPPERS and {*OTHER_ENVIRONMENTS, *ELSEWHERE}.isdisjoint(names):
        return _STAYS
    return f"{_STAYS}; zlaunch must be installed in that environment"


def _without_idle(command: Command, uses_deepspeed: bool) -> tuple[dict[Role, GivenFlag], list[Note]]:
    """Drop flags that repeat a default, and those that accelerate does not read."""
    roles, notes = command.roles(), []
    for role, given in command.roles().items():
        if given.value.lower() in given.flag.idle:
            notes.append(not_needed(given, "it is the default"))
            del roles[role]
        elif role in _OF_DEEPSPEEDS_HOSTS and given.value in ("", os.devnull):
            notes.append(not_needed(given, "it names none"))
            del roles[role]
    if command.launcher.name != ACCELERATE:
        return roles, notes
    why = ""
    if num_hosts(roles) == 1:
        why = "accelerate ignores it with one machine"
    elif not uses_deepspeed:
        why = "accelerate ignores it without DeepSpeed"
    if why:
        ignored = [role for role in (*_OF_DEEPSPEEDS_HOSTS, Role.HOST_STARTER) if role in roles]
        notes += [not_needed(given, why) for given in map(roles.pop, ignored) if not _is_field(given)]
    return roles, notes


def _is_field(given: GivenFlag) -> bool:
    """Whether `accelerate config` writes this field for one machine, too."""
    return given.place is not None and given.flag.becomes is Role.HOST_STARTER


_OF_DEEPSPEEDS_HOSTS = (Role.HOSTFILE, Role.INCLUDE, Role.EXCLUDE)


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
            yield Note(given.written, f"`{name}={shell.quote(text)}` in front of the command")
        case Role.MODULE:
            yield Note(given.written, "`-m` with the module's name")
        case Role.USE_DEEPSPEED:
            yield not_needed(given, "zlaunch always does")


def _line(command: Command, pieces: Sequence[Piece], args: ScriptArgs) -> str:
    """Write the command line, ready for a shell."""
    environment = {name: value for name, value in command.environment.items() if name not in OF_HOSTS}
    if visible_devices(command):
        del environment[VISIBLE]
    assigned = {piece.name: piece.value for piece in pieces if isinstance(piece, Assignment)}
    behind = command.behind
    if ends_in_env(command.front) or not hands_on_variables(command.front):
        behind |= assigned.keys()
    words = ["zlaunch", "train"]
    if command.script is not None:
        words += ["-m", command.script] if Role.MODULE in command.roles() else [command.script]
    for piece in pieces:
        if isinstance(piece, Option):
            words.append(piece.name)
            if piece.value is not None:
                words.append(piece.value)
    if args.words:
        words += ["--", *args.words]
    wrapped = Wrapped((), front=command.front, behind=behind)
    return _in_front(wrapped, {**environment, **assigned}, words, command.around.level)


def _in_front(wrapped: Wrapped, environment: Mapping[str, str], command: Sequence[str], level: int) -> str:
    """Write a command behind what stands in front of it, and each variable where it arrives."""
    words, first = [*wrapped.prefix], list[str]()
    own = [f"{name}={value}" for name, value in environment.items() if name in wrapped.behind]
    if own and not ends_in_env(wrapped.front):
        words.append("env")
    for name, value in environment.items():
        if name not in wrapped.behind:
            first.append(f"{name}={shell.quote(value, level)}".removesuffix("''"))
    return " ".join([*first, shell.join([*words, *own, *command], level)])
