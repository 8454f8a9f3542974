"""Read commands as a shell reads them, and write them so that it does the same again.

What the shell itself replaces in a word, such as `$RANK` or `*`, is kept there in characters of a private
area of Unicode, where nothing takes it for a number, a flag or a file. Each level of `bash -c` has its own.
"""

import os
import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from zlaunch.console import shell_word
from zlaunch.errors import WrongUsage
from zlaunch.frozen import dataclass

_AREA = 0xE000
_DOUBLE = 0x100
"""Where what stands in double quotes begins, of an area."""
_SIZE = 0x200
_MOST_LEVELS = 4

_SPACE = re.compile(r"(?:[ \t\r]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|>>|[<>]&[\d-]?|>\||<>|[<>])|&>>?")
_END = re.compile(r"&&|\|\||\|&|;;|[;|&\n()]")
_BETWEEN = re.compile(r"[ \t\r\n;|&<>()]|\\\n")
_ANSI = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
_NAME = re.compile(r"\$(?:\w+|[@*#?$!-])")
_RESERVED = ("then", "do", "else", "if", "while", "{", "!")
_SAFE = re.compile(r"[\w@%+=:,./\ue000-\uf8ff-]+", re.ASCII)


PROMPTS = ("$", "%", "\u276f")
"""What a shell writes in front of a command, and what is no command itself."""
_PROMPT = re.compile(
    r"""
    ^[ \t]* (?:
        (?: \([\w. /-]+\) [ \t]*)*                              # environments
        (?:
            (?: \[[^\]\s][^\]\n]*\] | [\w.-]+@[\w.-]+ (?:[:\s][^\s$%\#>]*)? ) [ \t]* [$%\#>\u276f]
            | [$%\u276f]
            | ➜ [ \t]+ \S+ (?:[ \t]+git:\(\S+\))? (?:[ \t]+✗)?
        ) [ \t]+ (?=\S)
        | ! (?=[\w./])                                          # of a notebook
    )
    """,
    re.MULTILINE | re.VERBOSE,
)
_MARKED = re.compile(r"\A\s*(?:>{1,3}|#)[ \t]+(?=\S)")
"""What may be a prompt, or else a redirection or a comment."""
_CONTINUED = re.compile(r"(?<=\\\n)[ \t]*>[ \t]")


def without_prompts(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Leave out the prompts of a text that was copied from a terminal or a notebook, and name them."""
    pattern = _PROMPT
    if not any(command.words for command in read(text)):
        pattern = _MARKED
    prompts = dict.fromkeys(prompt.strip() for prompt in pattern.findall(text))
    if prompts:
        text = _CONTINUED.sub("", pattern.sub("", text))
    return text, tuple((prompt, "is a prompt, not part of the command") for prompt in prompts)


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command of a text: its words, and the text itself."""

    words: tuple[str, ...]
    text: str
    tail: str
    """What follows the words: redirections, and what ends the command."""


def read(text: str, level: int = 0) -> tuple[ShellCommand, ...]:
    """Split a text into its commands; raise WrongUsage for quotes that are not closed."""
    if level >= _MOST_LEVELS:
        raise WrongUsage("not a command line: shells are nested too deeply")
    return tuple(_ShellReader(text, _AREA + level * _SIZE).commands())


def join(words: Sequence[str], level: int = 0) -> str:
    """Write words for a shell."""
    return " ".join(quote(word, level) for word in words)


def quote(word: str, level: int = 0) -> str:
    """Write a word for a shell, which replaces in it what it has replaced before."""
    bare = _AREA + level * _SIZE
    double, end = bare + _DOUBLE, bare + _SIZE
    runs = [
        (kind, "".join(chars))
        for kind, chars in groupby(word, lambda char: bisect((bare, double, end), ord(char)))
    ]
    kinds = {kind for kind, _ in runs}
    texts = [text for kind, text in runs if kind not in _REPLACED]
    if kinds & {*_REPLACED} == {_IN_DOUBLE} and not all(map(_SAFE.fullmatch, texts)):
        return (
            '"'
            + "".join(readable(text) if kind == _IN_DOUBLE else _escaped(text) for kind, text in runs)
            + '"'
        )
    return "".join(_quoted(kind, text) for kind, text in runs) or "''"


_BARE, _IN_DOUBLE = 1, 2
"""What is replaced: outside of quotes, and in double quotes."""
_REPLACED = (_BARE, _IN_DOUBLE)


def _escaped(text: str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", text)


def _quoted(kind: int, text: str) -> str:
    if kind == _BARE:
        return readable(text)
    if kind == _IN_DOUBLE:
        return f'"{readable(text)}"'
    if _SAFE.fullmatch(text):
        return text
    return shell_word(text)


def readable(text: str) -> str:
    """Return a text with what the shell replaces as it was typed."""
    return "".join(map(_typed_char, text))


def path_of(word: str) -> Path:
    """Return the file that a word names, with the variables and the home directory of this shell."""
    return Path(os.path.expandvars(readable(word))).expanduser()


def is_open(word: str) -> bool:
    """Whether the shell replaces something in a word."""
    return readable(word) != word


def is_replaced(word: str) -> bool:
    """Whether the shell replaces the whole word, as in `$ARGS`, which may become several words."""
    return bool(word) and all(_AREA <= ord(char) < _AREA + _MOST_LEVELS * _SIZE for char in word)


def _typed_char(char: str) -> str:
    place = ord(char) - _AREA
    if 0 <= place < _MOST_LEVELS * _SIZE:
        return chr(place % _DOUBLE)
    return char


class _ShellReader:
    """Walks through a text."""

    def __init__(self, text: str, area: int) -> None:
        self._text, self._area, self._at = text, area, 0

    def commands(self) -> Iterator[ShellCommand]:
        while self._at < len(self._text):
            yield self._command()

    def _command(self) -> ShellCommand:
        text, start = self._text, self._at
        words: list[str] = []
        tail: int | None = None
        """Where the redirections begin."""
        end = start
        while self._at < len(text):
            if (space := _SPACE.match(text, self._at)) or (space := _COMMENT.match(text, self._at)):
                self._at = space.end()
            elif redirection := _REDIRECTION.match(text, self._at):
                tail = end if tail is None else tail
                self._at = redirection.end()
            elif ends := _END.match(text, self._at):
                self._at = ends.end()
                break
            else:
                word = self._word()
                if tail is None:
                    words.append(word)
                    end = self._at
                if words == [word] and word in _RESERVED:
                    return ShellCommand((), text[start : self._at], "")
        return ShellCommand(tuple(words), text[start:end], text[end : self._at])

    def _word(self) -> str:
        text, word = self._text, ""
        while self._at < len(text) and not _BETWEEN.match(text, self._at):
            char = text[self._at]
            if char == "'":
                word += self._single()
            elif char == '"':
                word += self._double()
            elif char == "\\" and self._at + 1 < len(text):
                word += text[self._at + 1]
                self._at += 2
            elif ansi := _ANSI.match(text, self._at):
                word += self._kept(ansi.end(), self._area)
            elif (end := _end_of_expansion(text, self._at)) > self._at:
                word += self._kept(end, self._area)
            elif char in "*?[]{}~":
                word += self._kept(self._at + 1, self._area)
            else:
                word += char
                self._at += 1
        return word

    def _single(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise WrongUsage("not a command line: no closing quotation")
        word = self._text[self._at + 1 : end]
        self._at = end + 1
        return word

    def _double(self) -> str:
        text, word = self._text, ""
        self._at += 1
        while self._at < len(text) and text[self._at] != '"':
            if text[self._at] == "\\" and text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n"):
                word += text[self._at + 1].replace("\n", "")
                self._at += 2
            elif (end := _end_of_expansion(text, self._at)) > self._at:
                word += self._kept(end, self._area + _DOUBLE)
            else:
                word += text[self._at]
                self._at += 1
        if self._at >= len(text):
            raise WrongUsage("not a command line: no closing quotation")
        self._at += 1
        return word

    def _kept(self, end: int, area: int) -> str:
        kept = self._text[self._at : end]
        self._at = end
        return "".join(chr(area + ord(char)) if ord(char) < _DOUBLE else char for char in kept)


def _end_of_expansion(text: str, at: int) -> int:
    """Return where `$NAME`, `${…}`, `$(…)` or a command in backquotes ends; `at` if none begins there."""
    if name := _NAME.match(text, at):
        return name.end()
    if text.startswith("`", at):
        return text.find("`", at + 1) + 1 or at
    if text.startswith("${", at):
        return text.find("}", at) + 1 or at
    if not text.startswith("$(", at):
        return at
    depth = 0
    for place in range(at + 1, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    return at
