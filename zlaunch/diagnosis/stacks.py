"""Where ranks are: reading what `faulthandler` writes, and finding the rank that is elsewhere."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_LIBRARY = re.compile(r"^<|/(site|dist)-packages/|/lib/python3\.\d+/")
_OURS = "zlaunch/worker/hook/"
_COMMUNICATION = re.compile(r"/torch/distributed/(distributed_c10d|c10d_logger)\.py$|/deepspeed/comm/")
_ENGINE = re.compile(r"/(deepspeed|torch/cuda)/")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: the file, the line in it, the function."""

    file: str
    line: str
    function: str

    @property
    def is_the_users(self) -> bool:
        """Whether it is code of the script rather than of a library."""
        return not _LIBRARY.search(self.file)

    def __str__(self) -> str:
        """Write it as `file:line function`, with the last folder of the file's path."""
        return f"{'/'.join(PurePath(self.file).parts[-2:])}:{self.line} {self.function}"


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

    Ranks that did not answer are odd where others did. Two ranks that wait for each other can be in
    two places: then the one that is in no communication is the odd one; or, since a GPU communicates
    on its own, the one that is not in the engine while another is.
    """
    silent = tuple(rank for rank, stack in stacks.items() if not stack)
    if silent:
        return silent if len(silent) < len(stacks) else ()
    for waits in (_COMMUNICATION, _ENGINE):
        outside = tuple(rank for rank, stack in stacks.items() if not _is_within(waits, stack))
        if outside and len(outside) < len(stacks):
            return outside
    places = {rank: tuple((frame.file, frame.function) for frame in stack) for rank, stack in stacks.items()}
    common, number = Counter(places.values()).most_common(1)[0] if places else ((), 0)
    return tuple(rank for rank in places if places[rank] != common) if number * 2 > len(places) else ()


def _is_within(library: re.Pattern[str], stack: tuple[Frame, ...]) -> bool:
    """Whether the user's deepest call led into a library: what lies above it says nothing about now."""
    below = itertools.takewhile(lambda frame: not frame.is_the_users, stack)
    return any(library.search(frame.file) for frame in below)
