"""Run a program in this process as Python would, and say where and how it ended."""

import os
import runpy
import sys
import textwrap
import traceback
from collections.abc import Iterable, Sequence
from typing import Final

from zlaunch.worker.hook.frames import is_the_users

_MOST_CHARACTERS: Final = 300
"""How much of an error is shown."""


def run_as_python(argv: Sequence[str]) -> None:
    """Run a file, or the module after `-m`, with its arguments; no compiled files are left beside it."""
    program, *args = argv
    sys.dont_write_bytecode = True  # `__pycache__` beside the user's modules, past any confinement
    if program == "-m":
        sys.argv = args
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does
        runpy.run_module(args[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [program, *args]
        sys.path.insert(0, os.path.dirname(os.path.abspath(program)))  # noqa: PTH100, PTH120
        runpy.run_path(program, run_name="__main__")


def place_in_program(frames: Iterable[traceback.FrameSummary], program: str) -> str | None:
    """Return file and line of the innermost frame of a program; None if it has none."""
    own = [frame for frame in frames if is_the_users(frame.filename) or frame.filename == program]
    if not own:
        return None
    return f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}"


def is_of_engine(frames: traceback.StackSummary) -> bool:
    """Whether the innermost line raises, or asserts, in what DeepSpeed's engine consists of."""
    if not frames or "/deepspeed/runtime/" not in frames[-1].filename:
        return False
    return (frames[-1].line or "").startswith(("raise ", "assert ", "assert("))


def is_status(error: BaseException | None) -> bool:
    """Whether a program exited with a status, without an exception of its own."""
    return isinstance(error, SystemExit) and not isinstance(error.code, str)


def one_line(error: BaseException) -> str:
    """Write an exception in one line."""
    if isinstance(error, SystemExit) and isinstance(error.code, str):
        return error.code
    if isinstance(error, SystemExit):
        return f"it exited with {error.code}"
    words = "".join(traceback.format_exception_only(error))
    return textwrap.shorten(words, _MOST_CHARACTERS, placeholder=" …")
