"""Where ranks are: reading what `faulthandler` writes, and finding the rank that is elsewhere."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_LIBRARY = ("/site-packages/", "/dist-packages/", "/zlaunch/inside/", "/lib/python")
_OURS = "/zlaunch/inside/"


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: the file, the line in it, the function."""

    file: str
    line: str
    function: str

    @property
    def is_the_users(self) -> bool:
        """Whether it is code of the script rather than of a library."""
        return not self.file.startswith("<") and not any(part in self.file for part in _LIBRARY)

    def __str__(self) -> str:
        """Write it as `file:line function`, with the file's name alone for a library."""
        name = self.file if self.is_the_users else "/".join(PurePath(self.file).parts[-2:])
        return f"{name}:{self.line} {self.function}"


def last_stack(text: str) -> tuple[Frame, ...]:
    """Read the main thread's stack from the last dump, deepest call first.

    A dump ends with the main thread; the first line of each thread says which it is.
    """
    stack: list[Frame] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            stack = []
        elif (found := _FRAME.match(line)) and _OURS not in found["file"]:
            stack.append(Frame(found["file"], found["line"], found["function"]))
    return tuple(stack)


def place(stack: tuple[Frame, ...]) -> str:
    """Say where a stack is: the deepest call, and the user's own line that led there."""
    if not stack:
        return "unknown"
    own = next((frame for frame in stack if frame.is_the_users), None)
    return str(stack[0]) if own is None or own == stack[0] else f"{stack[0]}, called from {own}"


def odd_ranks(stacks: Mapping[int, tuple[Frame, ...]]) -> tuple[int, ...]:
    """Name the ranks that are elsewhere than most; none if all are in one place, or most are in none.

    Two ranks that wait for each other can be in two places: then the one that is in no
    communication is the odd one.
    """
    answered = {rank: stack for rank, stack in stacks.items() if stack}
    silent = tuple(rank for rank, stack in stacks.items() if not stack)
    if silent:
        return silent if answered else ()
    outside = tuple(rank for rank, stack in answered.items() if not _communicates(stack))
    if outside and len(outside) < len(answered):
        return outside
    places = {rank: [(frame.file, frame.function) for frame in stack] for rank, stack in answered.items()}
    counts = Counter(map(str, places.values()))
    common, number = counts.most_common(1)[0] if counts else ("", 0)
    return tuple(rank for rank in places if str(places[rank]) != common) if number * 2 > len(places) else ()


def _communicates(stack: tuple[Frame, ...]) -> bool:
    return any("distributed" in frame.file or "/comm/" in frame.file for frame in stack)
