"""Read the stacks that `faulthandler` writes, and find the ranks whose stacks differ."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath

from zlaunch.frozen import dataclass

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
LIBRARY = re.compile(r"^<|/(site|dist)-packages/|/lib/python3\.\d+/")
"""Files that are not the user's."""
_OURS = "zlaunch/worker/hook/"
_COMMUNICATION = re.compile(r"/torch/distributed/(distributed_c10d|c10d_logger)\.py$|/deepspeed/comm/")
_ENGINE = re.compile(r"/(deepspeed|torch/cuda)/")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call in a stack."""

    file: str
    line: str
    function: str

    @property
    def is_the_users(self) -> bool:
        """Whether it is in the user's code rather than in a library."""
        return not LIBRARY.search(self.file)

    def __str__(self) -> str:
        """Write `file:line function`, with the last folder of the path."""
        return f"{'/'.join(PurePath(self.file).parts[-2:])}:{self.line} {self.function}"


def last_stack(text: str) -> tuple[Frame, ...]:
    """Read the stack of the main thread, the last one of a dump, from the last dump; deepest call first."""
    stack: list[Frame] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            stack = []
        elif (match := _FRAME.match(line)) and _OURS not in match["file"]:
            stack.append(Frame(match["file"], match["line"], match["function"]))
    return tuple(stack)


def place(stack: tuple[Frame, ...]) -> str:
    """Describe a stack by its deepest call and the user's line that led there."""
    if not stack:
        return "unknown"
    caller = next((frame for frame in stack if frame.is_the_users), stack[0])
    if caller == stack[0]:
        return str(caller)
    return f"{stack[0]}, called from {caller}"


def odd_ranks(stacks: Mapping[int, tuple[Frame, ...]]) -> tuple[int, ...]:
    """Find the ranks whose stacks differ from those of most; none if all are alike, or there is no majority.

    Ranks that did not answer differ if others did. Of ranks that wait for each other, those outside of
    communication differ; or, since a GPU communicates asynchronously, those outside of the engine.
    """
    silent = tuple(rank for rank, stack in stacks.items() if not stack)
    if silent or not stacks:
        return silent if len(silent) < len(stacks) else ()
    for waits in (_COMMUNICATION, _ENGINE):
        outside = tuple(rank for rank, stack in stacks.items() if not _is_within(waits, stack))
        if outside and len(outside) < len(stacks):
            return outside
    places = {rank: tuple((frame.file, frame.function) for frame in stack) for rank, stack in stacks.items()}
    ((common, number),) = Counter(places.values()).most_common(1)
    if number * 2 <= len(places):
        return ()
    return tuple(rank for rank in places if places[rank] != common)


def _is_within(library: re.Pattern[str], stack: tuple[Frame, ...]) -> bool:
    """Whether the user's deepest call led into a library; calls above it do not matter."""
    below = itertools.takewhile(lambda frame: not frame.is_the_users, stack)
    return any(library.search(frame.file) for frame in below)
