"""Read logs and tracebacks: exceptions, relevant lines, short quotations."""

import re
from collections.abc import Iterator

from zlaunch.diagnosis.evidence import ErrorEvidence
from zlaunch.secrets import hide_in_text

_PREFIX = re.compile(r"^(?:\[rank\d+\]:? ?|\[\d+\]:? ?)")
_SOURCE = re.compile(
    r"\[[EWI]\d{4} [\d:.]+ [\w.]+:\d+\] |\[/\S{1,200}:\d+\] |\[enforce fail at alloc_cpu\S+\] err == 0\. "
)
"""Prefixes that name a place in torch's source."""
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$", re.DOTALL)
_LED_TO = re.compile("The above exception was the direct cause|During handling of the above exception")
_NAMED_AS_ONE = re.compile(
    r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning|Iteration|Group|Timeout)$"
)
_COMPILER = re.compile(
    r"^[^\n]{0,400}?(?:: (?:fatal )?error: |: error [A-Z]?\d+: |: undefined reference to |ld: cannot find )"
    r"[^\n]*",
    re.MULTILINE,
)
_FOLDERS = re.compile(r"(?<![\w./])/(?:[\w.+@-]+/)+(?=[\w.+-]+/[\w.+-]+[:(]\d)")
"""The beginning of a path with a line number, up to its last two parts."""
MOST_OF_A_LOG = 16384
"""Length of the end of a log that is searched for the last words of a program."""


def exception_in(log: str) -> ErrorEvidence | None:
    """Read the last traceback in a log."""
    lines = [_PREFIX.sub("", line) for line in log[-65536:].splitlines()]
    starts = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if not starts:
        return None
    body = lines[starts[-1] :]
    end = next((n for n, line in enumerate(body[1:], 1) if line and not line[0].isspace()), len(body))
    match = _EXCEPTION.match("".join(body[end : end + 1]))
    if match is None:
        return None
    name, first = match["type"], match["message"]
    if first is None and not _NAMED_AS_ONE.match(name):
        return None
    message = "\n".join([first or "", *_rest(body[end + 1 :])]).strip()
    whole = "\n".join(lines[_first_of_chain(lines, starts) :])
    return ErrorEvidence(name.rpartition(".")[2], message, whole)


def _first_of_chain(lines: list[str], starts: list[int]) -> int:
    first = starts[-1]
    for start in reversed(starts[:-1]):
        if not any(_LED_TO.match(line) for line in lines[start:first]):
            break
        first = start
    return first


def _rest(lines: list[str]) -> Iterator[str]:
    """Yield the further lines of a message, up to the output of another program."""
    for line in lines[:200]:
        if re.match(r"[EWI]\d{4} |\[\d{4}-|The above exception|terminate called|Exception ignored", line):
            return
        yield line


def matching_line(pattern: str, text: str) -> str | None:
    """Find the first line that matches a pattern, and remove its prefixes."""
    match = re.search(pattern, text)
    if match is None:
        return None
    start = text.rfind("\n", 0, match.start()) + 1
    rest, _, _ = text[match.end() :].partition("\n")
    return tidy(text[start : match.end()] + rest)


def compiler_error(text: str) -> str | None:
    """Find the first error of a compiler or a linker; long paths are shortened."""
    match = _COMPILER.search(text)
    if match is None:
        return None
    return _FOLDERS.sub("…/", tidy(match.group()))


def last_line(text: str) -> str | None:
    """Find the last line that is not empty."""
    return next(filter(None, map(tidy, reversed(text.splitlines()))), None)


def tidy(line: str) -> str:
    """Make one line of printable text without prefixes and colours."""
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line)
    spaced = "".join(character if character.isprintable() else " " for character in plain)
    return " ".join(_SOURCE.sub("", _PREFIX.sub("", spaced.strip())).split())


def clip(text: str, most: int) -> str:
    """Shorten a text at its end, between two words if possible.

    Secrets in it are hidden before: the beginning of one would not be recognized.
    """
    text = hide_in_text(text)
    if len(text) <= most:
        return text
    clipped = text[: most - 1]
    whole_words, _, rest = clipped.rpartition(" ")
    if whole_words and len(rest) < most // 2:
        clipped = whole_words
    return clipped.rstrip() + "…"
