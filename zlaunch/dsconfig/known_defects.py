"""Defects of releases of DeepSpeed, accelerate and transformers, and the configs that they affect.

The table is `known_defects.json`. `since` is the first release that has a defect, `fixed` the first one
without it; both may be missing. `when` has the conditions, which must all hold, or a list of alternatives.
A condition is the name of a fact, or the dotted key of a ds_config, and

- a value, which it must equal, or a list of those that it may equal,
- `{"at_least": x}` or `{"below": x}`, for numbers and versions,
- `{"not": [values]}`,
- `{"written": true}` or `{"written": false}`: whether the ds_config has the key.

`config/rules/known_defects` has the facts. A fact that is unknown fulfils no condition.
"""

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from zlaunch.frozen import dataclass

FILE: Final = Path(__file__).with_name("known_defects.json")

Outcome = Literal["wrong", "hang", "crash", "slow", "fades"]

NAMES: Final[Mapping[str, str]] = {
    "deepspeed": "DeepSpeed",
    "accelerate": "accelerate",
    "transformers": "transformers",
}
"""Package → its name in sentences."""


@dataclass(frozen=True)
class Defect:
    """A defect of some releases of a package."""

    name: str
    package: str
    what: str
    """What happens, after the name of the release."""
    where: str
    """The key of a ds_config that it is about; the part of it that is written counts."""
    outcome: Outcome
    links: tuple[str, ...]
    conditions: tuple[Mapping[str, Any], ...]
    """Alternatives."""
    since: str | None = None
    fixed: str | None = None
    cure: str = ""
    """What else helps than another release."""
    is_certain: bool = False
    """Whether the job surely fails."""
    is_reproduced: bool = False
    """Whether `tools/known_defects` shows it."""

    def affects(self, version: str | None) -> bool:
        """Whether a release has it; an unknown one does not."""
        if version is None:
            return False
        number = numbers(version)
        is_later = self.since is None or number >= numbers(self.since)
        return is_later and (self.fixed is None or number < numbers(self.fixed))

    @property
    def releases(self) -> str:
        """The releases that have it: `0.17.6 to before 0.18.3`."""
        parts: list[str] = []
        if self.since is not None:
            parts.append(f"from {self.since}")
        if self.fixed is not None:
            parts.append(f"before {self.fixed}")
        return ", ".join(parts) or "all"

    @property
    def remedy(self) -> str:
        """What to do."""
        cures: list[str] = []
        if self.fixed is not None:
            cures.append(f"use {NAMES[self.package]} {self.fixed} or newer")
        if self.cure:
            cures.append(self.cure)
        return ", or ".join(cures)

    @property
    def hint(self) -> str:
        """What to do, and where to read about it."""
        return f"{self.remedy}; see {self.links[0]}"


@functools.cache
def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a release, without what follows them: `0.18.2+cu12` is (0, 18, 2)."""
    release = re.match(r"\d+(\.\d+)*", version)
    if release is None:
        return ()
    return tuple(int(number) for number in release[0].split("."))


@functools.cache
def defects() -> tuple[Defect, ...]:
    """Read the table."""
    text = FILE.read_text("utf-8")
    return tuple(map(_defect, json.loads(text)))


def _defect(row: Mapping[str, Any]) -> Defect:
    when = row["when"]
    if isinstance(when, dict):
        when = [when]
    return Defect(
        name=row["name"],
        package=row["package"],
        what=row["what"],
        where=row["where"],
        outcome=row["outcome"],
        links=tuple(row["links"]),
        conditions=tuple(when),
        since=row.get("since"),
        fixed=row.get("fixed"),
        cure=row.get("cure", ""),
        is_certain=row.get("certain", False),
        is_reproduced=row.get("reproduced", False),
    )


def holds(value: object, wanted: object) -> bool:
    """Whether a known value fulfils a condition; `written` is up to the caller."""
    if value is None:
        return False
    if isinstance(wanted, list):
        return value in wanted
    if not isinstance(wanted, dict):
        return value == wanted
    ((test, limit),) = wanted.items()
    if test == "not":
        return value not in limit
    if isinstance(value, str) and isinstance(limit, str):
        here, there = numbers(value), numbers(limit)
        return bool(here) and (here >= there) == (test == "at_least")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return bool((value >= limit) == (test == "at_least"))
