"""Read records; parts that are missing, damaged or of a wrong type are left out without an error."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import TypeVar, Union, cast, get_args, get_origin, is_typeddict

from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.record import (
    ErrorRecord,
    Finite,
    HeartbeatRecord,
    ProgramRecord,
    RankRecord,
    SampleRecord,
)

Record = TypeVar("Record")

_SUFFIXES: Mapping[type, str] = {
    RankRecord: "",
    HeartbeatRecord: ".pulse",
    SampleRecord: ".sample",
    ErrorRecord: ".error",
    ProgramRecord: ".program",
}


def parse_record(text: str | bytes, kind: type[Record]) -> Record:
    """Read a record from JSON; empty if it is no object, or only half of one.

    Members of a wrong type are left out, at any depth; unknown ones are kept.
    """
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        return kind()
    if not isinstance(members, dict):
        return kind()
    if is_typeddict(kind):
        members.pop("version", None)  # all versions so far read the same
    return conform(members, kind)


def read_record(
    file: Path, kind: type[Record], troubles: list[str] | None = None, *, needed: bool = False
) -> Record:
    """Read a record from its file; empty if that is missing or damaged, which is added to the troubles."""
    trouble = None
    try:
        if members := parse_record(file.read_bytes(), kind):
            return members
        trouble = "is broken or half-written"
    except FileNotFoundError:
        trouble = "is missing" if needed else None
    except OSError as error:
        trouble = f"cannot be read: {error.strerror}"
    if troubles is not None and trouble is not None:
        troubles.append(f"`{file.name}` {trouble}")
    return kind()


def read_rank_records(
    run_dir: RunDir, kind: type[Record], troubles: list[str] | None = None
) -> dict[int, Record]:
    """Read the records of one kind that ranks have written: rank → record."""
    suffix = f"{_SUFFIXES[kind]}.json"
    names = (file.name for file in run_dir.ranks.glob(f"rank-*{suffix}"))
    numbers = (name.removeprefix("rank-").removesuffix(suffix) for name in names)
    ranks = sorted(int(number) for number in numbers if number.isdecimal())
    found = {rank: read_record(run_dir.rank_record(rank, _SUFFIXES[kind]), kind, troubles) for rank in ranks}
    return {rank: members for rank, members in found.items() if members}


def conform(members: Mapping[str, object], kind: type[Record]) -> Record:
    """Leave out the members of a JSON object that do not have the type that a record gives them."""
    return cast("Record", _fitting(members, kind))


_UNFIT = object()
_MOST = 1e18
"""A larger number is no time, count or amount of memory."""


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_MOST < value < _MOST


_ATOMS: Mapping[object, Callable[[object], bool]] = {
    object: lambda _: True,
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    type(None): lambda value: value is None,
    float: lambda value: isinstance(value, float) or _is_whole(value),
    Finite: lambda value: _is_whole(value) or (isinstance(value, float) and -_MOST < value < _MOST),
    int: _is_whole,
}


def _fitting(value: object, hint: object) -> object:
    """Return the part of a JSON value that has a type; `_UNFIT` if none has."""
    if is_typeddict(hint):
        hints = cast("type", hint).__annotations__
        return _fitting_members(value, lambda name: hints.get(name, object))
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return next((fit for one in args if (fit := _fitting(value, one)) is not _UNFIT), _UNFIT)
    if origin is list:
        if not isinstance(value, list):
            return _UNFIT
        return [fit for item in value if (fit := _fitting(item, args[0])) is not _UNFIT]
    if origin is dict:
        return _fitting_members(value, lambda _: args[1])
    return value if _ATOMS[hint](value) else _UNFIT


def _fitting_members(value: object, hint_of: Callable[[str], object]) -> object:
    if not isinstance(value, dict):
        return _UNFIT
    fits = {name: _fitting(member, hint_of(name)) for name, member in value.items()}
    return {name: fit for name, fit in fits.items() if fit is not _UNFIT}
