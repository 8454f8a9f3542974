"""`zlaunch config diff`: compare the meaning of two ds_configs."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.options import A_CONFIG, AsJson, Release
from zlaunch.cli.views.dump import to_json
from zlaunch.config.asked_release import asked_release
from zlaunch.config.diff import Difference, compare
from zlaunch.config.report import load_config


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help=A_CONFIG)],
    second: Annotated[str, typer.Argument(metavar="B", help="Second ds_config, in any of these forms.")],
    deepspeed: Release = None,
    as_json: AsJson = False,
) -> None:
    """Compare the meaning of two ds_configs.

    Lists the keys that differ, and their effects. Defaults, old names of keys, key order and number formats
    make no difference.
    """
    left, right = (load_config(name).needed(name).value for name in (first, second))
    differences = compare(left, right, asked_release(deepspeed))
    if as_json:
        console.data(to_json({"differences": list(map(_difference_members, differences))}))
    elif differences:
        console.data(*_difference_lines(differences, (first, second)))
    else:
        console.data("no difference in meaning")


def _difference_lines(differences: Sequence[Difference], names: Sequence[str]) -> Iterator[str]:
    yield from difference_table(differences, _short_names(names))
    for difference in differences:
        if difference.effect is not None:
            effects = (("memory", difference.effect.memory), ("speed", difference.effect.speed))
            yield f"\n{difference.key}"
            yield from console.notes(effects)


def difference_table(differences: Sequence[Difference], names: tuple[str, str]) -> list[str]:
    """Write a row for each key that differs."""
    return console.table([("", *names), *_difference_rows(differences)], indent="")


def _short_names(names: Sequence[str]) -> tuple[str, str]:
    """Name two files by their base names, or A and B if those are equal or long."""
    short = [name.rpartition("/")[2] for name in names]
    first, second = short if short[0] != short[1] and max(map(len, short)) <= 24 else ("A", "B")
    return first, second


def _difference_rows(differences: Sequence[Difference]) -> Iterator[tuple[str, str, str]]:
    """Write the keys of a section indented below its name."""
    above: list[str] = []
    for difference in differences:
        *sections, key = difference.key.split(".")
        for depth, section in enumerate(sections):
            if sections[: depth + 1] != above[: depth + 1]:
                yield "  " * depth + section, "", ""
        above = sections
        yield "  " * len(sections) + key, str(difference.cells[0]), str(difference.cells[1])


def _difference_members(difference: Difference) -> dict[str, object]:
    first, second = difference.cells
    members: dict[str, object] = {"key": difference.key, "a": first, "b": second}
    if difference.effect is not None:
        members |= {"memory": difference.effect.memory, "speed": difference.effect.speed}
    return members
