"""Which keys each DeepSpeed release reads, and how they changed between releases.

`tools/record_releases.py` records the table `releases.json` from the packages. Each release is recorded at
its last patch, because patches add and remove keys too. A key is a path of its parts, so that a flat key
`"a.b"` is not `b` in `a`.
"""

import functools
import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from zlaunch.dsconfig.text.document import KeyPath
from zlaunch.errors import WrongUsage
from zlaunch.frozen import dataclass

FILE: Final = Path(__file__).with_name("releases.json")

RELEASES: tuple[str, ...] = ("0.14", "0.15", "0.16", "0.17", "0.18", "0.19")
"""Oldest to newest; repeated here so that listing them does not load the table."""

REMOVED: Mapping[str, str] = {
    "amp": "use `bf16` or `fp16`",
    "compression_training": "delete it",
    "curriculum_learning": "use `data_efficiency.data_sampling.curriculum_learning`",
    "eigenvalue": "delete it",
    "elasticity": "delete it, and write the batch sizes out",
    "graph_harvesting": "delete it",
    "nebula": "delete it",
    "progressive_layer_drop": "delete it",
    "quantize_training": "delete it",
    "sparse_attention": "delete it",
    "sparse_gradients": "delete it",
    "zero_optimization.mics_shard_size": "use `zero_hpz_partition_size`, which is the nearest",
    "zero_optimization.mics_hierarchical_params_gather": "delete it",
    "zero_optimization.zeropp_loco_param": "delete it",
}
"""Key → what to do about it. DeepSpeed refuses their presence, even with `false` or `null`."""


@dataclass(frozen=True)
class Release:
    """One DeepSpeed release, as it reads a ds_config."""

    name: str
    """As in `RELEASES`: `0.16`."""

    @cached_property
    def keys(self) -> Mapping[KeyPath, Any]:
        """Every key it knows, with its default; None where that is null or no scalar."""
        rows = _table()["keys"].items()
        return {_key_path(path): self._now(row.get("defaults", {})) for path, row in rows if self._lists(row)}

    @cached_property
    def sections(self) -> Mapping[KeyPath, str]:
        """What it does with a key that it does not know in a section.

        `closed` refuses it, `lenient` ignores it, `open` passes it on, for example to the constructor of an
        optimizer.
        """
        kinds = {_key_path(path): self._now(kinds) for path, kinds in _table()["sections"].items()}
        return {path: kind for path, kind in kinds.items() if path in self.keys or not path}

    @cached_property
    def refused(self) -> frozenset[KeyPath]:
        """Keys whose presence it refuses."""
        return frozenset(_key_path(path) for path, since in _table()["refused"].items() if self._has(since))

    def is_newer_than(self, name: str) -> bool:
        """Whether it came after another release."""
        return _version_numbers(self.name) > _version_numbers(name)

    def knows(self, path: KeyPath) -> bool:
        """Whether it reads a key or passes it on."""
        return path in self.keys or self._hands_on(path)

    def knows_section(self, path: KeyPath) -> bool:
        """Whether it reads a section or passes it on."""
        return path in self.sections or self._hands_on(path)

    def is_closed(self, path: KeyPath) -> bool:
        """Whether it refuses unknown keys in a section."""
        return self.sections.get(path) == "closed"

    def refuses(self, path: KeyPath) -> bool:
        """Whether it refuses a config with this key; keys that it neither knows nor refuses, it ignores."""
        return path in self.refused or (self.is_closed(path[:-1]) and not self.knows(path))

    def default(self, path: KeyPath) -> Any | None:
        """The default of a key, if that is a scalar."""
        return self.keys.get(path)

    def _hands_on(self, path: KeyPath) -> bool:
        return any(self.sections.get(path[:end]) == "open" for end in range(1, len(path)))

    def _has(self, since: str) -> bool:
        return _version_numbers(since) <= _version_numbers(self.name)

    def _lists(self, row: Mapping[str, Any]) -> bool:
        last = row.get("until", RELEASES[-1])
        return self._has(row.get("since", RELEASES[0])) and _version_numbers(self.name) <= _version_numbers(
            last
        )

    def _now(self, changes: Mapping[str, Any]) -> Any:
        past = [value for since, value in changes.items() if self._has(since)]
        if not past:
            return None
        return past[-1]


ALL = tuple(map(Release, RELEASES))
NEWEST = ALL[-1]


class History(NamedTuple):
    """How a key changed between releases."""

    known: tuple[str, ...]
    """The releases that read it, oldest to newest."""

    refused: str | None
    """The first release that refuses its presence."""

    changes: tuple[tuple[str, Any], ...]
    """Its scalar default where it first had one, and wherever it changed."""

    @property
    def since(self) -> str | None:
        """The release that added it; None if it was always there."""
        if not self.known or self.known[0] == RELEASES[0]:
            return None
        return self.known[0]

    @property
    def until(self) -> str | None:
        """The last release that read it; None if it is still there."""
        if not self.known or self.known[-1] == RELEASES[-1]:
            return None
        return self.known[-1]


def release(text: str | None) -> Release:
    """Find a release by name: `0.16`, `0.16.4`, `v0.16`.

    None, and anything newer than the newest, mean the newest.
    """
    if text is None:
        return NEWEST
    numbers = _numbers_in(text)
    if numbers is None:
        raise WrongUsage(f"`{text}` is not a DeepSpeed release", f"write one of {_known_releases()}")
    not_newer = [known for known in ALL if _version_numbers(known.name) <= numbers]
    if not not_newer:
        raise WrongUsage(
            f"DeepSpeed {text} is older than all known releases", f"write one of {_known_releases()}"
        )
    return not_newer[-1]


def newer_than_known(text: str) -> str | None:
    """Say for what a release is taken that is newer than the newest; None for any other text."""
    numbers = _numbers_in(text)
    if numbers is None or numbers <= _version_numbers(NEWEST.name):
        return None
    return f"zlaunch knows DeepSpeed up to {NEWEST.name}, and takes {text} for that"


def _numbers_in(text: str) -> tuple[int, int] | None:
    version = re.fullmatch(r"v?(\d+)\.(\d+)([.+].*)?", text.strip())
    return None if version is None else (int(version[1]), int(version[2]))


def last_patch(name: str) -> str:
    """Return the last patch of a release: `0.16` → `0.16.9`; an unknown one as it is."""
    return str(_table()["releases"].get(name, name))


def nearest(version: str | None) -> Release:
    """The release of an installed version: the oldest known for an older one, the newest if unknown."""
    match = re.match(r"(\d+)\.(\d+)", version or "")
    if match is None:
        return NEWEST
    installed = (int(match[1]), int(match[2]))
    return next((known for known in reversed(ALL) if _version_numbers(known.name) <= installed), ALL[0])


def history(path: KeyPath) -> History:
    """Trace a key from the oldest release to the newest."""
    known = [release for release in ALL if release.knows(path)]
    defaults = [(release.name, release.default(path)) for release in known]
    before = [None, *(default for _, default in defaults)]
    return History(
        known=tuple(release.name for release in known),
        refused=next((release.name for release in ALL if path in release.refused), None),
        changes=tuple(now for now, old in zip(defaults, before, strict=False) if now[1] != old),
    )


@functools.cache
def _table() -> Any:
    return json.loads(FILE.read_text("utf-8"))


def _key_path(dotted: str) -> KeyPath:
    if not dotted:
        return ()
    return tuple(dotted.split("."))


def _version_numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("."))


def _known_releases() -> str:
    return ", ".join(f"`{name}`" for name in RELEASES)
