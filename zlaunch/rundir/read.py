"""Read records; parts that are missing, damaged or of a wrong type are left out without an error."""

import json
from collections.abc import Callable, Hashable, Mapping
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import TypeVar, Union, cast, get_args, get_origin, is_typeddict

from zlaunch.files import read_regular
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.record import (
    ErrorRecord,
    Finite,
    HeartbeatRecord,
    OperationsRecord,
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
    OperationsRecord: ".operations",
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
        if members := parse_record(read_regular(file), kind):
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
    records = {
        rank: read_record(run_dir.rank_record(rank, _SUFFIXES[kind]), kind, troubles) for rank in ranks
    }
    return {rank: members for rank, members in records.items() if members}


def conform(members: Mapping[str, object], kind: type[Record]) -> Record:
    """Leave out the members of a JSON object that do not have the type that a record gives them."""
    return cast("Record", _fitter(cast("Hashable", kind))(members))


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


@cache
def _fitter(hint: Hashable) -> Callable[[object], object]:
    """Return a function that returns the part of a JSON value that has a type; `_UNFIT` if none has."""
    if hint in _ATOMS:
        return partial(_atom, _ATOMS[hint])
    if is_typeddict(hint):
        hints = {name: _fitter(part) for name, part in cast("type", hint).__annotations__.items()}
        return lambda value: _fitting_members(value, hints, _FITS_ALWAYS)
    origin, args = get_origin(hint), [_fitter(part) for part in get_args(hint)]
    if origin in (Union, UnionType):
        return lambda value: next((fit for part in args if (fit := part(value)) is not _UNFIT), _UNFIT)
    if origin is list:
        return lambda value: _fitting_items(value, args[0])
    assert origin is dict
    return lambda value: _fitting_members(value, {}, args[1])


def _atom(is_fit: Callable[[object], bool], value: object) -> object:
    if is_fit(value):
        return value
    return _UNFIT


_FITS_ALWAYS = partial(_atom, _ATOMS[object])


def _fitting_items(value: object, fitter: Callable[[object], object]) -> object:
    if not isinstance(value, list):
        return _UNFIT
    return [fit for item in value if (fit := fitter(item)) is not _UNFIT]


def _fitting_members(
    value: object,
    fitters: Mapping[str, Callable[[object], object]],
    other: Callable[[object], object],
) -> object:
    if not isinstance(value, dict):
        return _UNFIT
    fits = {name: fitters.get(name, other)(member) for name, member in value.items()}
    return {name: fit for name, fit in fits.items() if fit is not _UNFIT}
