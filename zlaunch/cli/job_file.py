"""`zlaunch.yaml`: the options of a job in a file, as words that stand before those of the command line.

There is one parser for both: the file is only translated. Each of its values is checked with its option.
"""

import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, replace
from difflib import get_close_matches
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import typer

from zlaunch.cli import COMMANDS
from zlaunch.cli.job_command import JobCommand, find_job_file
from zlaunch.cli.job_options import ConfigOptions
from zlaunch.cli.lazy import LazyCommand
from zlaunch.cli.usage_errors import choices_in, expected
from zlaunch.config.accelerate import yaml_reader
from zlaunch.dsconfig.keys.lookup import known_keys
from zlaunch.dsconfig.text.document import Document, KeyPath, dotted, leaves
from zlaunch.errors import Finding, Refused, Severity, WrongUsage, ZlaunchError
from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs, ds_config_of
from zlaunch.job.file_kinds import config_of_other_program
from zlaunch.job.model import model_flag
from zlaunch.job.model_of_script import model_argument
from zlaunch.job.recipes import default_recipe, recipe_named
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import JobSpec, parse_gpus, parse_override
from zlaunch.other_values import line_for_value

ARGS, SET, MODEL, NOT_IN_A_FILE = "args", "set", "model", ("job", "help")
PROGRAMS = ("script", "module")

_RIVALS: Mapping[str, tuple[str, ...]] = {
    "on": ("gpus", "hostfile"),
    "gpus": ("include", "exclude", "hostfile", "hosts"),
    "hostfile": ("gpus", "hosts"),
    "hosts": ("gpus", "hostfile"),
    "include": ("gpus",),
    "exclude": ("gpus",),
}
"""An option on the command line → those in the file that it would contradict."""

_ONE_JOB = "a file has one job: write each into a file of its own, and start it with `--job FILE`"

_MERGED = (SET, "env", "slurm", "volume")
"""Options whose values have names: the command line replaces those of the same name, and keeps the others."""

_SETS: Mapping[str, tuple[str, ...]] = {
    "stage": ("zero_optimization.stage",),
    "offload": ("zero_optimization.offload_optimizer", "zero_optimization.offload_param"),
    "precision": ("bf16", "fp16"),
}
"""An option → the keys of the ds_config that it sets."""

_MISSING = ("the value is missing", "write one, or leave the key out")

_OF_A_MODEL = ("ds_config", "stage", "offload")
"""What is chosen for a model."""

_OTHER_NAMES = {
    **dict.fromkeys(("num_gpus", "nproc_per_node", "num_processes", "n_gpus"), "gpus"),
    **dict.fromkeys(("zero_stage", "zero"), "stage"),
    **dict.fromkeys(("mixed_precision", "dtype"), "precision"),
    **dict.fromkeys(("deepspeed", "deepspeed_config", "config"), "ds_config"),
    **dict.fromkeys(("script_args", "arguments", "training_args"), ARGS),
    **dict.fromkeys(("overrides", "ds_config_overrides"), SET),
    **dict.fromkeys(("training_script", "program"), "script"),
}


@dataclass(frozen=True)
class CommandLine:
    """What the user typed, as far as it decides what counts of the file."""

    given: Mapping[str, Any]
    """Key of an option → its raw value."""
    rest: tuple[str, ...]
    """The words for the script."""


@dataclass(frozen=True)
class FileWords:
    """A file as words of a command line."""

    options: tuple[str, ...]
    args: tuple[str, ...]
    """The words for the script, which stand after `--`."""
    used: tuple[str, ...]
    """The keys that count: the command line and the command leave the others out."""
    places: Mapping[str, str]
    """Dotted key → file and line."""
    arg_places: Mapping[str, str]
    """Name of a flag of the script → file and line."""
    about_model: tuple[str, ...] = ()
    """The keys that are left out because they are about the model of the file, and another one is typed."""


def read_job_file(file: Path) -> Document:
    """Read a file; raise InputMissing if it cannot be read, Refused for anything but a mapping."""
    document = yaml_reader.read(file)
    twice = [remark for remark in document.remarks if remark.code == "duplicate-key"]
    if twice:
        raise Refused([replace(remark, severity=Severity.ERROR) for remark in twice])
    other = config_of_other_program(os.path.relpath(document.file), document.value, "one of zlaunch")
    if other is not None:
        known = document.value.keys() & {ARGS}.union(*_all_keys())
        if len(known) < len(document.value) - len(known):
            raise Refused([replace(other, place=document.place(()))])
    return document


def job_at_hand() -> JobSpec | None:
    """What `zlaunch train` would read of the ds_config in the file of this directory; None without a file.

    Raises Refused with every mistake in it.
    """
    file = find_job_file()
    if file is None:
        return None
    (lazy,) = (row for row in COMMANDS if isinstance(row, LazyCommand) and row.name == "train")
    train = lazy.load()
    context = typer.Context(train)
    words = translate(read_job_file(file), CommandLine({}, ()), train, context)
    given, _, _ = train.make_parser(context).parse_args(args=[*words.options])
    about_config = {member.name for member in fields(ConfigOptions)}
    options = [option for option in train.params if option.name in about_config]
    config = ConfigOptions(
        **{option.name: option.process_value(context, given.get(option.name)) for option in options}
    )
    args, ds_config = ds_config_of(ScriptArgs(words.args), config.ds_config)
    script = Path(given.get("script") or "train.py")
    return JobSpec(script=script, args=args, ds_config=ds_config, **config.job_members)


def typed_line(command: Any, given: Mapping[str, Any], rest: Sequence[str]) -> CommandLine:
    """Sort what the parser of a command found; an unknown option is the script's."""
    keys = {key: given[option.name] for key, option in keys_of(command).items() if given.get(option.name)}
    if str(keys.get("script", "")).startswith("-"):
        rest = [keys.pop("script"), *rest]
    return CommandLine(keys, tuple(rest))


def translate(document: Document, line: CommandLine, command: Any, context: Any) -> FileWords:
    """Write a file as words of a command; raise Refused with every mistake in it."""
    reader = _Translation(document, line, context, keys_of(command))
    words = reader.words()
    if reader.findings:
        raise Refused(reader.findings)
    return words


@cache
def _all_keys() -> tuple[Mapping[str, Any], ...]:
    """List the keys of each command that reads the file: one may have what the others do not."""
    lazy = [command for command in COMMANDS if isinstance(command, LazyCommand) and command.cls is JobCommand]
    return tuple(keys_of(command.load()) for command in lazy)


def keys_of(command: Any) -> dict[str, Any]:
    """List the keys of a file that are options or arguments of a command."""
    named = {_key(option.opts): option for option in command.params}
    return {key: option for key, option in named.items() if key not in NOT_IN_A_FILE}


def _key(names: Sequence[str]) -> str:
    return str(max(names, key=len)).removeprefix("--").replace("-", "_")


class _Wrong(Exception):
    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass
class _Translation:
    document: Document
    line: CommandLine
    context: Any
    keys: Mapping[str, Any]
    findings: list[Finding] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    arg_places: dict[str, str] = field(default_factory=dict)

    def words(self) -> FileWords:
        given = self.line.given
        left = set(given).difference(_MERGED)
        for option in given:
            left.update(_RIVALS.get(option, ()))
        if "dry_run" in self.keys and not any(map(self._said, ("dry_run", "submit"))):
            left.add("on")  # without which `train` starts on the machines that there are
        typed = self._typed_config_keys()
        left.update(option for option, keys in _SETS.items() if any(_is_in(key, keys) for key in typed))
        is_another = self._names_another_program()
        if is_another:
            left |= {*PROGRAMS, ARGS}
        if ScriptArgs(self.line.rest).take_ds_config()[1] is not None:
            left.add("ds_config")
        about_model = self._about_model()
        left |= set(about_model)
        options: list[str] = []
        used: list[str] = []
        for written, value in self.document.value.items():
            key = written.replace("-", "_")
            if key in used:
                self._wrong((written,), "duplicate-key", f"`{key}` is given twice", "keep one of them")
            words = list(self._checked(written, key, value))
            if key in left or not (words or key == ARGS):
                continue
            used.append(key)
            options += words
            if key not in given:
                self.places.setdefault(key, self._place((written,)))
        args: list[str] = []
        if not is_another:
            args = [*self._args()]
            args += self._model_argument(args, used)
        options += self._model(args, used)
        return FileWords(tuple(options), tuple(args), tuple(used), self.places, self.arg_places, about_model)

    def _about_model(self) -> tuple[str, ...]:
        """List the keys that say how the model of the file is trained, if another model is typed."""
        typed, own = self.line.given.get(MODEL), self.document.value.get(MODEL)
        if own is None:
            with suppress(_Wrong):  # which is reported
                own = model_flag(ScriptArgs.of(chain.from_iterable(words for words, _ in self._chunks())))
        if typed is None or own is None or _path(typed) == _path(own):
            return ()
        keys = (key.replace("-", "_") for key in self.document.value)
        return tuple(key for key in keys if key in _OF_A_MODEL and key in self.keys)

    def _model_argument(self, args: Sequence[str], used: list[str]) -> list[str]:
        """Pass the model on to the script, by the argument that it has for it."""
        model = self.document.value.get(MODEL)
        if MODEL in self.keys or model is None or self._said("module") is not None:
            return []
        name = str(self._said("script") or "")
        path = default_recipe()
        if name:
            path = recipe_named(name) or Path(name)
        try:
            flag = model_argument(read_script(path))
        except ZlaunchError:  # which the job reports
            return []
        if not flag or model_flag(ScriptArgs.of((*args, *self.line.rest))) is not None:
            return []
        used.append(MODEL)
        self.arg_places[flag] = self._place((MODEL,))
        return [f"--{flag}", self._scalar(model, (MODEL,))]

    def _said(self, key: str) -> Any:
        return self.line.given.get(key) or self.document.value.get(key)

    def _names_another_program(self) -> bool:
        given = [self.line.given.get(key) for key in PROGRAMS]
        mine = [self.document.value.get(key) for key in PROGRAMS]
        if any(given) and any(mine):
            return [*map(_path, given)] != [*map(_path, mine)]
        rest = self.line.rest
        return "script" not in self.keys and bool(rest) and (rest[0] == "-m" or rest[0].endswith(".py"))

    def _model(self, args: Sequence[str], used: list[str]) -> list[str]:
        if MODEL not in self.keys or MODEL in used or MODEL in self.line.given:
            return []
        model = model_flag(ScriptArgs.of(args))
        if model is None:
            return []
        return [model]

    def _checked(self, written: str, key: str, value: object) -> Iterator[str]:
        """Write one key as words of this command; note what is wrong with it."""
        path = (written,)
        if key == ARGS:
            return
        if key not in self.keys:
            if not any(key in keys for keys in _all_keys()):
                self._unknown(path, key, value)
            return
        try:
            yield from self._option(key, value, path)
        except _Wrong as error:
            if not self._fits_elsewhere(key, value, path):
                self._wrong(path, "bad-option", str(error), error.hint)

    def _option(self, key: str, value: object, path: KeyPath) -> list[str]:
        option = self.keys[key]
        if key == SET:
            return self._overrides(value, path)
        if getattr(option, "multiple", False):
            return self._repeated(option, value, path)
        if getattr(option, "is_flag", False):
            return _switch_words(option, value)
        return self._single(key, value, path)

    def _single(self, key: str, value: object, path: KeyPath) -> list[str]:
        option = self.keys[key]
        text = self._text(key, value, path)
        if key == "gpus":
            choice = _parse_as_option(parse_gpus, text)
            if "script" not in self.keys and choice.devices is not None:  # an estimate wants their number
                text = str(len(choice.devices))
        if key != "python":  # which is started to find out more
            self._convert(option, text)
        if not option.opts[0].startswith("-"):
            return [text]
        flag = max(option.opts, key=len)
        if text.startswith("-"):
            return [f"{flag}={text}"]
        return [flag, text]

    def _repeated(self, option: Any, value: object, path: KeyPath) -> list[str]:
        """Write an option that may be given several times: from a list, or `KEY: VALUE` lines."""
        key, texts = _key(option.opts), list[tuple[str, KeyPath]]()
        if isinstance(value, Mapping):
            for name, item in value.items():
                text = name
                if item is not True:
                    text = f"{name}={self._scalar(item, (*path, name))}"
                texts.append((text, (*path, name)))
        elif isinstance(value, list):
            paths: list[KeyPath] = [(*path, place) for place in range(len(value))]
            texts += [(self._scalar(item, here), here) for item, here in zip(value, paths, strict=True)]
        else:
            texts.append((self._scalar(value, path), path))
        typed: set[str] = set()
        if key in _MERGED:
            typed = {_name_within(key, text) for text in self.line.given.get(key) or ()}
        words: list[str] = []
        for text, here in texts:
            if not text:
                raise _Wrong(*_MISSING)
            self._convert(option, [text])
            name = _name_within(key, text)
            if name not in typed:
                words += [max(option.opts, key=len), text]
                self.places[f"{key}.{name}"] = self._place(here)
        return words

    def _convert(self, option: Any, text: str | list[str]) -> None:
        try:
            _parse_as_option(partial(option.process_value, self.context), text)
        except typer.BadParameter as error:
            choices = choices_in(error.message)
            hint = line_for_value(_key(option.opts), str(text), choices)
            if hint is None and (close := get_close_matches(str(text), choices, 1)):
                hint = f"did you mean `{close[0]}`?"
            raise _Wrong(f"expected {expected(choices, error.message)}, not `{text}`", hint) from None

    def _fits_elsewhere(self, key: str, value: object, path: KeyPath) -> bool:
        """Whether another command takes the value, such as `stage: auto`, which an estimate does not have."""
        for keys in _all_keys():
            reader = replace(self, keys=keys, findings=[], places={})
            try:
                if key in reader.keys and reader._option(key, value, path):  # noqa: SLF001
                    return True
            except _Wrong:
                continue
        return False

    def _text(self, key: str, value: object, path: KeyPath) -> str:
        """Write a value as it stands in the file: YAML would make 59 of `0:59`, and 0.0003 of `3e-4`."""
        if isinstance(value, Mapping) and key == "offload":
            return ",".join(f"{part}:{self._scalar(item, (*path, part))}" for part, item in value.items())
        if isinstance(value, list) and key in ("gpus", "show_ranks"):
            items = [self._scalar(item, (*path, place)) for place, item in enumerate(value)]
            if key == "gpus" and len(items) == 1:  # a device, not a count
                return f"{items[0]},"
            return ",".join(items)
        if isinstance(value, Mapping | list):
            raise _Wrong("expected one value, not several")
        text = self._scalar(value, path)
        if not text:
            raise _Wrong(*_MISSING)
        return text

    def _scalar(self, value: object, path: KeyPath) -> str:
        if isinstance(value, str):
            if "\0" in value:
                raise _Wrong("no program takes text with a null character", "write it without `\\0`")
            return value
        span = self.document.spans[path]
        text = self.document.text[span.start : span.end]
        if value is None:
            raise _Wrong(*_MISSING)
        if isinstance(value, bool):
            message = f"expected a word or a number, but YAML reads `{text}` as {str(value).lower()}"
            raise _Wrong(message, "put it in quotes")
        return text

    def _overrides(self, value: object, path: KeyPath) -> list[str]:
        """Write keys of the ds_config as `--set`; a list has `KEY=VALUE`, a mapping nests."""
        typed = self._typed_config_keys()
        for option in self.line.given:
            typed += _SETS.get(option, ())
        if isinstance(value, Mapping):
            items = [
                (dotted(below), f"{dotted(below)}={json.dumps(leaf)}", (*path, *below))
                for below, leaf in leaves(value)
            ]
        elif isinstance(value, list) and all(isinstance(text, str) for text in value):
            items = [(text.partition("=")[0], text, (*path, place)) for place, text in enumerate(value)]
        else:
            raise _Wrong("expected keys of the ds_config", "write them below `set:`, as in a ds_config")
        words: list[str] = []
        for key, text, here in items:
            _parse_as_option(parse_override, text)
            if not _is_in(key, typed):
                words += ["--set", text]
                self.places[f"{SET}.{key}"] = self._place(here)
        return words

    def _typed_config_keys(self) -> list[str]:
        return [text.partition("=")[0] for text in self.line.given.get(SET) or ()]

    def _args(self) -> Iterator[str]:
        """Write the arguments of the script, without those that the command line has."""
        try:
            chunks = list(self._chunks())
        except _Wrong as error:
            self._wrong((ARGS,), "bad-option", str(error), error.hint)
            return
        typed = ScriptArgs(self.line.rest)
        names_config = "ds_config" in self.line.given or "ds_config" in self.document.value
        for words, path in chunks:
            args = ScriptArgs.of(words)
            if names_config and args.take_ds_config()[1] is not None:
                continue
            if args.flags and args.flags[0].index == 0:
                name = args.flags[0].name
                if typed.has(name):
                    continue
                self.arg_places[name] = self._place(path)
            yield from words

    def _flag(self, name: str, value: object) -> list[str]:
        flag, path = name, (ARGS, name)
        if not name.startswith("-"):
            flag = f"--{name}"
        match value:
            case True:
                return [flag]
            case False:
                return [flag, "False"]
            case list():
                return [flag, *(self._scalar(item, (*path, place)) for place, item in enumerate(value))]
            case dict():
                return [flag, json.dumps(value)]
        return [flag, self._scalar(value, path)]

    def _chunks(self) -> Iterator[tuple[list[str], KeyPath]]:
        """Write a mapping flag by flag; split a list or a text at its flags."""
        value = self.document.value.get(ARGS, {})
        if isinstance(value, Mapping):
            yield from ((self._flag(name, item), (ARGS, name)) for name, item in value.items())
            return
        if isinstance(value, str):
            items: list[tuple[str, KeyPath]] = [(word, (ARGS,)) for word in self._shell_words(value)]
        elif isinstance(value, list):
            items = [(self._scalar(item, (ARGS, place)), (ARGS, place)) for place, item in enumerate(value)]
        else:
            raise _Wrong("expected the arguments of the script", "write `NAME: VALUE` lines below `args:`")
        chunk: list[str] = []
        start: KeyPath = (ARGS,)
        for word, path in items:
            if word.startswith("--") and chunk:
                yield chunk, start
                chunk = []
            if not chunk:
                start = path
            chunk.append(word)
        if chunk:
            yield chunk, start

    def _shell_words(self, text: str) -> list[str]:
        try:
            return shlex.split(self._scalar(text, (ARGS,)))
        except ValueError:
            hint = f"close it, or write a list: `{ARGS}: [--name, VALUE]`"
            raise _Wrong("a quote or a backslash has no end", hint) from None

    def _unknown(self, path: KeyPath, key: str, value: object) -> None:
        if key in NOT_IN_A_FILE:
            hint = f"leave it out; `--{key}` stands on the command line"
            self._wrong(path, "bad-option", "a job file cannot have this option", hint)
            return
        known = {ARGS}.union(*_all_keys())
        meant = _OTHER_NAMES.get(key) or next(iter(get_close_matches(key, known, 1, 0.75)), None)
        if _holds_job(value, (*PROGRAMS, ARGS)):
            hint = _ONE_JOB
        elif meant:
            hint = f"did you mean `{meant}`?"
        elif key in known_keys({}, ()):
            hint = f"keys of the ds_config go below `{SET}:`"
        elif _holds_job(value, known):
            hint = _ONE_JOB
        else:
            hint = f"arguments of the script go below `{ARGS}:`; `zlaunch train --help` lists the options"
        self._wrong(path, "unknown-option", "zlaunch has no such option", hint)

    def _wrong(self, path: KeyPath, code: str, message: str, hint: str | None = None) -> None:
        finding = Finding(code, message, hint, where=dotted(path), path=path)
        self.findings.append(self.document.locate(finding))

    def _place(self, path: KeyPath) -> str:
        return f"{os.path.relpath(self.document.file)}:{self.document.place(path).line}"


def _holds_job(value: object, keys: Iterable[str]) -> bool:
    """Whether a value is itself a job with some of these options, or several jobs."""
    jobs = [value]
    if isinstance(value, list):
        jobs = value
    elif isinstance(value, Mapping):
        jobs += value.values()
    names = {str(name).replace("-", "_") for job in jobs if isinstance(job, Mapping) for name in job}
    return not names.isdisjoint(keys)


def _is_in(key: str, sections: Sequence[str]) -> bool:
    return any(f"{key}.".startswith(f"{section}.") for section in sections)


def _name_within(key: str, text: str) -> str:
    """Return the part of a value that may not occur twice: of a volume, where it is mounted."""
    if key == "volume":
        return text.partition(":")[2].rstrip("/")
    name = text.partition("=")[0]
    if key == "slurm":
        return name.lstrip("-").replace("_", "-")
    return name


def _path(value: object) -> str | None:
    if value is None:
        return None
    return os.path.normpath(str(value))


def _switch_words(option: Any, value: object) -> list[str]:
    if not isinstance(value, bool):
        raise _Wrong("expected true or false")
    names = option.secondary_opts
    if value:
        names = option.opts
    if not names:
        return []
    return [max(names, key=len)]


def _parse_as_option(parse: Callable[[Any], Any], text: str | list[str]) -> Any:
    try:
        return parse(text)
    except WrongUsage as error:
        raise _Wrong(error.message, error.hint) from None
