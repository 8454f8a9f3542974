"""Values that a rehearsal does not have, and the lines of a program that decide by them."""

import ast
import linecache
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from zlaunch.estimate.program import Need, ReadValue
from zlaunch.estimate.rehearsal.device import NAME
from zlaunch.estimate.rehearsal.known_data import known
from zlaunch.worker.hook.frames import is_the_users

_FOUND: dict[str, ReadValue] = {}


def read_values() -> tuple[ReadValue, ...]:
    """Return where the program decided by a value so far."""
    return tuple(_FOUND.values())


def place_of(frame: FrameType | None) -> tuple[str, str] | None:
    """Return file, line and code of the innermost frame of the program; None if it has none."""
    while frame is not None:
        if is_the_users(frame.f_code.co_filename):
            file = os.path.relpath(frame.f_code.co_filename)
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            return f"{file}:{frame.f_lineno}", line
        frame = frame.f_back
    return None


def _caller() -> FrameType | None:
    """Return the frame that uses a value, beyond those of torch and this module."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_between(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_between(file: str) -> bool:
    return file == __file__ or "/site-packages/torch/" in file


def _note(kind: Need = "compares") -> None:
    """Remember the line of the program that needs a value; what packages compare is known to be harmless."""
    frame = _caller()
    if frame is not None and is_the_users(frame.f_code.co_filename) and (place := place_of(frame)):
        _FOUND.setdefault(place[0], ReadValue(*place, kind))


def note_selection() -> None:
    """Remember where the program, or a package that it calls, selects by a mask."""
    if place := place_of(sys._getframe(1)):
        _FOUND.setdefault(place[0], ReadValue(*place, "selects"))


def note_start(program: str) -> None:
    """Remember where the program, or a package that it calls, would start another program."""
    place, _ = place_of(sys._getframe(1)) or ("the script", "")
    _FOUND.setdefault(f"{place} {program}", ReadValue(place, program, "starts"))


class UnknownNumber(float):
    """A number that stands for a value: it may be printed and computed with, and notes who compares it."""

    def __index__(self) -> int:
        _note("reads")
        return int(float.__float__(self))

    def __bool__(self) -> bool:
        _note()
        return False

    def __int__(self) -> int:
        _note("reads")
        return int(float.__float__(self))

    def __format__(self, wanted: str) -> str:
        try:
            return super().__format__(wanted)
        except ValueError:
            return format(int(float.__float__(self)), wanted)

    __hash__ = float.__hash__


def _compared(_: object, __: object) -> bool:
    _note()
    return False


def _computed(name: str) -> Callable[..., Any]:
    original = getattr(float, name)

    def compute(self: UnknownNumber, *others: object) -> Any:
        result = original(self, *others)
        if isinstance(result, float):
            return UnknownNumber(result)
        return result

    return compute


for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    setattr(UnknownNumber, _name, _compared)
for _name in ("add", "sub", "mul", "truediv", "pow", "mod", "floordiv"):
    for _prefix in ("", "r"):
        setattr(UnknownNumber, f"__{_prefix}{_name}__", _computed(f"__{_prefix}{_name}__"))
for _name in ("__neg__", "__abs__", "__pos__", "__round__"):
    setattr(UnknownNumber, _name, _computed(_name))


def _is_program() -> bool:
    frame = _caller()
    return frame is not None and is_the_users(frame.f_code.co_filename)


def apply() -> None:
    """Let fake tensors give such numbers to the program, and zeros to what wants an array."""
    item, truth = torch.Tensor.item, torch.Tensor.__bool__

    def unknown(self: FakeTensor) -> Any:
        if known(self) is None and _is_program():
            return UnknownNumber(item(self))
        return item(self)

    def decides(self: FakeTensor) -> bool:
        if known(self) is None:
            _note()
        return bool(truth(self))

    def number(self: FakeTensor) -> float:
        if known(self) is None and _branches():
            _note()
        return float(item(self))

    def integer(self: FakeTensor) -> int:
        if known(self) is None:
            _note("reads")
        return int(item(self))

    def array(self: FakeTensor, *_: object, **__: object) -> Any:
        import numpy as np

        if (data := known(self)) is not None:
            return data.numpy()
        _note("reads")
        kind = str(self.dtype).removeprefix("torch.")
        return np.zeros(tuple(self.shape), dtype=kind if hasattr(np, kind) else "float32")

    FakeTensor.item, FakeTensor.__bool__, FakeTensor.__float__ = unknown, decides, number
    FakeTensor.__int__ = FakeTensor.__index__ = integer
    FakeTensor.numpy = FakeTensor.__array__ = array
    FakeTensor.tolist = lambda self: array(self).tolist()
    _note_what_is_left_out()


def _note_what_is_left_out() -> None:
    enter, compile_nothing = torch.autocast.__enter__, torch.compile

    def entered(self: torch.autocast) -> Any:
        if self._enabled and self.device in ("cuda", NAME):
            _note("autocasts")
        return enter(self)

    def compiled(*args: Any, **kwargs: Any) -> Any:
        _note("compiles")
        return compile_nothing(*args, **kwargs)

    torch.autocast.__enter__, torch.compile = entered, compiled


def _branches() -> bool:
    """Whether the line of the program begins with a word that decides, maybe by a number."""
    place = place_of(_caller())
    if place is None or not place[1].startswith(("if ", "elif ", "while ", "assert ")):
        return False
    try:
        (statement,) = ast.parse(place[1].removeprefix("el")).body
    except (SyntaxError, ValueError):  # what it decides on is on other lines
        return True
    condition: ast.expr = statement.test  # type: ignore[attr-defined]
    return any(isinstance(node, ast.Call) for node in ast.walk(condition))
