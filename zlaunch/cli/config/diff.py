"""`zlaunch config diff`: compare the meaning of two ds_configs."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from zlaunch import console
from zlaunch.cli.options import A_CONFIG, AsJson, Release
from zlaunch.config.asked_release import asked_release
from zlaunch.config.diff import ConfigDiff, Difference, compare
from zlaunch.config.report import load_config
from zlaunch.units import plural


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help=A_CONFIG)],
    second: Annotated[str, typer.Argument(metavar="B", help="Second ds_config, in any of these forms.")],
    every: Annotated[bool, typer.Option("--all", help="Also list harmless differences.")] = False,
    deepspeed: Release = None,
    as_json: AsJson = False,
) -> None:
    """Compare the meaning of two ds_configs.

    Defaults, old names of keys, key order and number formats are harmless differences.
    """
    left, right = (load_config(name).needed(name) for name in (first, second))
    found = compare(left, right, asked_release(deepspeed))
    if as_json:
        console.data(json.dumps(_members(found), indent=2))
    else:
        console.data(*_lines(found, (first, second), every))


def _lines(found: ConfigDiff, names: Sequence[str], every: bool) -> Iterator[str]:
    if found.differences:
        yield from console.table([("", *_short(names)), *_rows(found.differences)], indent="")
    else:
        yield "no difference in meaning"
    count = plural(len(found.harmless), "harmless difference")
    if every and found.harmless:
        yield f"\n{count}"
        yield from console.notes([(one.key or one.why, one.why if one.key else "") for one in found.harmless])
    elif found.harmless:
        yield f"{count} not shown; `--all` lists {'it' if len(found.harmless) == 1 else 'them'}"


def _short(names: Sequence[str]) -> tuple[str, str]:
    """Name two files by their base names, or A and B if those are equal or long."""
    short = [name.rpartition("/")[2] for name in names]
    first, second = short if short[0] != short[1] and max(map(len, short)) <= 24 else ("A", "B")
    return first, second


def _rows(differences: Sequence[Difference]) -> Iterator[tuple[str, str, str]]:
    """Write the keys of a section indented below its name."""
    above: list[str] = []
    for one in differences:
        *sections, key = one.key.split(".")
        for depth, section in enumerate(sections):
            if sections[: depth + 1] != above[: depth + 1]:
                yield "  " * depth + section, "", ""
        above = sections
        yield "  " * len(sections) + key, str(one.cells[0]), str(one.cells[1])


def _members(found: ConfigDiff) -> dict[str, Any]:
    return {
        "differences": [_difference(one) for one in found.differences],
        "harmless": [{**_difference(one), "why": one.why} for one in found.harmless],
    }


def _difference(one: Difference) -> dict[str, Any]:
    sides = zip("ab", one.cells, strict=True)
    return {"key": one.key, **{side: {"value": cell.value, "note": cell.note} for side, cell in sides}}
