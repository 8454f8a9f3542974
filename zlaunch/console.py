"""Print: data and the job's own output to stdout, everything else to stderr. No other module prints.

The text is complete without colour, which is added on a terminal unless NO_COLOR is set. Secrets in it are
hidden, except in the job's own output.
"""

import contextlib
import os
import re
import shlex
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TextIO

from zlaunch.errors import Finding, Place, Refused, ZlaunchError
from zlaunch.secrets import hide_in_text

_COLOURS = {
    "error": "31",
    "fails later": "31",
    "warning": "33",
    "ignored": "33",
    "advice": "36",
    "hint": "36",
    "done": "32",
    "dim": "2",
}
_PAINTED = rf"(\033\[(?:{'|'.join(sorted(set(_COLOURS.values())))})m)([^\033]*)(\033\[0m)"
_COLOUR = re.compile(r"\033\[\d+m")

_COMMAND = r"`(?:[a-z]|--|(?:\.{1,2}|~)?/|[A-Z][A-Z_]*=)[^`\s]* [^`]+`"
"""A command in backticks: a program or its path, a variable of it, or an option with its value."""
_SPACE = "\ue000"
"""A space at which no line is broken; no message has this character."""

_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories of what moves the cursor, colours or reverses text, or has no encoding."""


_KEEPS_LINES = frozenset({"XTERM_VERSION", "STY"})
"""Variables of xterm and screen, which cut lines instead of wrapping them when they become narrower."""


class StepReporter(Protocol):
    """Shows steps that precede a start, or do without one."""

    def note(self, text: str, label: str | None = None) -> None:
        """Show a sentence; `label` is the row of a plan's summary that it belongs to."""

    def busy(self, what: str, elapsed: str) -> None:
        """Show that a slow step continues."""


def say(*lines: str) -> None:
    """Print messages; a terminal escape in the name of a file or in a record is shown, not obeyed."""
    for line in lines:
        sys.stdout.flush()
        _write_to_stderr(f"{_without_escapes(hide_in_text(line))}\n")


def ring() -> None:
    """Ring the bell of the terminal."""
    _write_to_stderr("\a")


def data(*lines: str) -> None:
    """Print the result of a command. On a terminal, escapes in it are shown; a pipe gets it as it is."""
    is_terminal = sys.stdout.isatty()
    with _for_a_reader():
        for line in lines:
            text = hide_in_text(line)
            if is_terminal:
                text = _without_escapes(text)
            print(text, flush=True)


def _cut(line: str, room: int) -> str:
    """Cut a line to a width; one that is too long loses its colours."""
    plain = _COLOUR.sub("", line)
    if len(plain) <= room:
        return line
    return plain[:room]


def _without_escapes(text: str) -> str:
    if text.isprintable():
        return text
    parts = re.split(_PAINTED, text)  # text, colour, painted text, reset, text, …
    parts[::2] = ["".join(map(_visible_character, part)) for part in parts[::2]]
    return "".join(parts)


def _visible_character(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _INVISIBLE:
        return character
    return repr(character)[1:-1]


def raw_data(chunk: bytes) -> None:
    """Print what a job has written, as it is; a closed pipe ends the program."""
    with _for_a_reader():
        sys.stdout.flush()
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


def job_output(chunk: bytes) -> None:
    """Pass on output of the job."""
    with _outliving(sys.stdout):
        raw_data(chunk)


def show_error(error: ZlaunchError) -> None:
    """Show an error with its findings and its hint."""
    _write_labelled("error", error.message)
    if isinstance(error, Refused):
        say_findings(replace(finding, is_mistake=True) for finding in error.findings)
    if error.hint:
        _write_labelled("hint", error.hint)


def _write_labelled(kind: str, text: str) -> None:
    """Write a text, wrapped on a terminal; in a pipe it stays one line, so that it can be searched."""
    if sys.stderr.isatty():
        indent = " " * len(f"{kind}: ")
        lines: list[str] = []
        for line in text.split("\n"):
            lines += paragraph(line, indent) or [""]
        text = "\n".join(lines).lstrip()
    say(f"{_paint(kind, kind, sys.stderr)}: {text}")


def say_findings(findings: Iterable[Finding]) -> None:
    """Print findings as messages."""
    for finding in findings:
        say(*finding_lines(finding, sys.stderr))


def show_finding(finding: Finding) -> None:
    """Print a finding as the result of a command."""
    data(*finding_lines(finding, sys.stdout))


def finding_lines(finding: Finding, stream: TextIO) -> list[str]:
    """Format a finding: place, severity, key and code; the line of the file; message; hint."""
    place, severity = finding.place, finding.label.value
    head = []
    if place:
        head.append(f"{place}:")
    head.append(f"{_paint(severity, severity, stream)}:")
    if finding.where:
        head.append(visible(finding.where))
    lines = [" ".join([*head, f"[{finding.code}]"])]
    if place and place.text:
        lines += _pointed(place, severity, stream)
    lines += paragraph(visible(finding.message), "  ")
    if hint := paragraph(visible(finding.hint or ""), "        "):
        lines += [f"  {_paint('hint', 'hint', stream)}: {hint[0].strip()}", *hint[1:]]
    return lines


def _pointed(place: Place, kind: str, stream: TextIO) -> list[str]:
    """Show a line of a file, or the relevant part of a long one, with the place marked below."""
    room = max(24, width() - len("     1 | "))
    length, before = min(place.length, room), place.column - 1
    cut = max(0, before + length - room)
    line = hide_in_text(place.text, lambda secret: "*" * len(secret))
    text = "".join(c if c.isprintable() else " " for c in line[cut : cut + room])
    mark = _paint(kind, "^" * length, stream)
    return [f"{place.line:>6} | {text}".rstrip(), f"       | {' ' * (before - cut)}{mark}"]


def visible(text: str) -> str:
    """Write a text in one line, with the escapes that it may contain."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def paragraph(text: str, indent: str = "") -> list[str]:
    """Wrap a text to the width of the terminal."""
    return [indent + line for line in _wrapped(text, width() - len(indent))]


def _wrapped(text: str, room: int) -> list[str]:
    """Wrap a text; a command in backticks stays in one line, however long, so that it can be copied.

    Secrets are hidden before, since the name beside one may end up in another line.
    """
    whole = re.sub(_COMMAND, lambda command: command[0].replace(" ", _SPACE), hide_in_text(text))
    lines = textwrap.wrap(whole, room, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_SPACE, " ") for line in lines]


_BYTE = re.compile(r"[\udc80-\udcff]")
"""A byte of an argument that is not UTF-8."""


def shell_line(words: Iterable[str]) -> str:
    """Write words as they can be typed into a shell: as `shlex.join`, but bytes that are not UTF-8, too."""
    return " ".join(map(shell_word, words))


def shell_word(word: str) -> str:
    """Write a word as it can be typed into a shell; bytes that are not UTF-8 as in bash, zsh and ksh."""
    if _BYTE.search(word) is None:
        return shlex.quote(word)
    escaped = re.sub(r"(['\\])", r"\\\1", word).replace("\n", "\\n")
    return "$'" + _BYTE.sub(lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", escaped) + "'"


def command_lines(words: Sequence[str]) -> list[str]:
    """Write a command; on a terminal, in lines that a shell reads as one."""
    if not sys.stdout.isatty():
        return [f"  {shell_line(words)}"]
    lines, room = [""], width() - len("  ") - len(" \\")
    for word in map(shell_word, words):
        if lines[-1] and len(lines[-1]) + len(word) >= room:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    return [f"  {line} \\" for line in lines[:-1]] + [f"  {lines[-1]}"]


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Align columns and wrap the last one."""
    rows = [[*map(hide_in_text, row)] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines: list[str] = []
    for row in rows:
        start = indent + "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=False))
        room = max(24, width() - len(start))
        wrapped = _wrapped(row[-1], room) or [""]
        lines += [(start + wrapped[0]).rstrip(), *(" " * len(start) + line for line in wrapped[1:])]
    return lines


def figures(rows: Sequence[Sequence[str]], gap: int = 2) -> list[str]:
    """Align a table of numbers: the first column left, all others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for name, *cells in rows:
        right = "".join(f"{cell:>{gap + width}}" for cell, width in zip(cells, widths[1:], strict=True))
        lines.append(f"{name:<{widths[0]}}{right}".rstrip())
    return lines


def notes(rows: Sequence[tuple[str, str]], indent: str = "  ") -> list[str]:
    """Write each item with a note beside it, or below it if there is no space."""
    rows = [(hide_in_text(item), note) for item, note in rows]
    column = min(max((len(item) for item, _ in rows), default=0) + 2, width() // 2)
    room = max(24, width() - len(indent) - column)
    lines: list[str] = []
    for item, note in rows:
        wrapped, beside = _wrapped(note, room), ""
        if wrapped and len(item) < column:
            beside = wrapped.pop(0)
        lines.append(f"{indent}{item:<{column}}{beside}".rstrip())
        lines += [f"{indent}{'':<{column}}{line}" for line in wrapped]
    return lines


class ProgressLine:
    """One line that is rewritten on a terminal; in a pipe, one line for each milestone, or none."""

    def __init__(self, *, in_pipes: bool = True) -> None:
        self._live = sys.stderr.isatty()
        self._in_pipes = in_pipes
        self._milestone: str | None = None
        self._rows: list[int] = []
        """Lengths of the lines that are shown."""

    def show(self, milestone: str, detail: str = "") -> None:
        """Show progress; the detail changes often and is shown on terminals only."""
        if self._live:
            self.draw([f"{milestone} {detail}".rstrip()])
        elif self._in_pipes and milestone != self._milestone:
            say(milestone)
        self._milestone = milestone

    def draw(self, lines: Sequence[str]) -> None:
        """Show lines instead of those before, cut to the width; nothing in a pipe."""
        if self._live:
            room = width() - 1
            shown = [_cut(_without_escapes(hide_in_text(line)), room) for line in lines]
            _write_to_stderr(f"{self._erasure()}{chr(10).join(shown)}")
            self._rows = [len(_COLOUR.sub("", line)) for line in shown]

    def say_in_pipe(self, text: str) -> None:
        """Write a line for whoever reads a pipe; nothing on a terminal."""
        if not self._live:
            say(text)

    def clear(self) -> None:
        """Remove the line."""
        if self._live:
            _write_to_stderr(self._erasure())
            self._rows = []

    def _erasure(self) -> str:
        """Return to the start of what is shown: a terminal that became narrower has wrapped its lines."""
        columns = width()
        if _KEEPS_LINES.isdisjoint(os.environ):
            rows = sum(max(1, -(-length // columns)) for length in self._rows)
        else:
            rows = len(self._rows)
        if rows < 2:
            return "\r\033[K"
        return f"\033[{rows - 1}A\r\033[J"


class LineReporter(StepReporter):
    """Shows in one line what is done."""

    def __init__(self, *, in_pipes: bool = True) -> None:
        """Prepare to show progress, also `in_pipes` or not."""
        self._line = ProgressLine(in_pipes=in_pipes)

    def note(self, text: str, label: str | None = None) -> None:  # noqa: D102 - documented in StepReporter
        self.clear()
        say(text)

    def busy(self, what: str, elapsed: str) -> None:  # noqa: D102
        self._line.show(what, elapsed)

    def clear(self) -> None:
        """Remove the line."""
        self._line.clear()


def _write_to_stderr(text: str) -> None:
    with _outliving(sys.stderr):
        sys.stderr.write(text)
        sys.stderr.flush()


@contextlib.contextmanager
def _for_a_reader() -> Iterator[None]:
    """Raise BrokenPipeError without a number: click would catch EPIPE and exit with 1."""
    try:
        yield
    except BrokenPipeError:
        raise BrokenPipeError from None  # without a number


@contextlib.contextmanager
def _outliving(stream: TextIO) -> Iterator[None]:
    """Discard output from the first error on: a job outlives its terminal, its reader and a full disk."""
    try:
        yield
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def painted(kind: str, text: str, stream: TextIO | None = None) -> str:
    """Colour a text by its kind, if it goes to a terminal: `done`, `error`, `warning`, `hint`.

    `stream` is where it goes, by default stdout.
    """
    return _paint(kind, text, stream or sys.stdout)


def _paint(kind: str, text: str, stream: TextIO) -> str:
    if not stream.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\033[{_COLOURS[kind]}m{text}\033[0m"


def is_interactive() -> bool:
    """Whether stdout and stderr are terminals."""
    return sys.stdout.isatty() and sys.stderr.isatty()


def is_one_stream() -> bool:
    """Whether stdout and stderr are the same file, pipe or terminal."""
    try:
        return os.path.samestat(os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno()))
    except (OSError, ValueError):
        return False


def has_room(lines: Sequence[str]) -> bool:
    """Whether a result stays in view with the line of the prompt; a pipe has room for any."""
    return not sys.stdout.isatty() or len(lines) < shutil.get_terminal_size((80, 24)).lines


def width() -> int:
    """Columns of the terminal."""
    return shutil.get_terminal_size((80, 24)).columns
