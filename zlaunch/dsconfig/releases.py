"""Which keys each DeepSpeed release reads, and what became of them from one release to the next.

The table `releases.json` is recorded from the packages themselves by `tools/record_releases.py`. A
release stands there as its last patch: DeepSpeed brings and removes keys in patches too, and an early
patch may be behind. A key is a path of its parts, so that `"a.b"` written flat is not `b` in `a`.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zlaunch.dsconfig.text.document import KeyPath
from zlaunch.errors import WrongUsage

RELEASES: tuple[str, ...] = ("0.14", "0.15", "0.16", "0.17", "0.18", "0.19")
"""Oldest to newest. They stand here too so that naming them does not read the table."""

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
    "zero_optimization.mics_shard_size": "delete it; `zero_hpz_partition_size` is the nearest",
    "zero_optimization.mics_hierarchical_params_gather": "delete it",
    "zero_optimization.zeropp_loco_param": "delete it",
}
"""Key → what to do about it. Their mere presence is refused, even as `false` or `null`."""


@dataclass(frozen=True)
class Release:
    """One DeepSpeed release, as it reads a ds_config."""

    name: str
    """As in `RELEASES`: `0.16`."""

    @property
    def reads(self) -> "Reads":
        """What the table says of it."""
        return _reads(self.name)

    def knows(self, path: KeyPath) -> bool:
        """Whether it reads a key, or hands it on."""
        return path in self.reads.keys or self._hands_on(path)

    def knows_section(self, path: KeyPath) -> bool:
        """Whether it reads an object there, or hands it on."""
        return path in self.reads.sections or self._hands_on(path)

    def is_closed(self, path: KeyPath) -> bool:
        """Whether it refuses keys that it does not know in a section."""
        return self.reads.sections.get(path) == "closed"

    def refuses(self, path: KeyPath) -> bool:
        """Whether it refuses a config that has this key; what it neither knows nor refuses, it ignores."""
        return path in self.reads.refused or (self.is_closed(path[:-1]) and not self.knows(path))

    def default(self, path: KeyPath) -> Any | None:
        """Name the value it falls back to, if that is a scalar."""
        return self.reads.keys.get(path)

    def _hands_on(self, path: KeyPath) -> bool:
        return any(self.reads.sections.get(path[:end]) == "open" for end in range(1, len(path)))


NEWEST = Release(RELEASES[-1])


@dataclass(frozen=True)
class Reads:
    """What one release reads."""

    keys: Mapping[KeyPath, Any]
    """Every key it knows, with its default; None where that is null or no scalar."""

    sections: Mapping[KeyPath, str]
    """What it does with a key that it does not know in a section: `closed` refuses it, `lenient` ignores it,
    `open` hands it on to somebody else, such as the constructor of an optimizer."""

    refused: frozenset[KeyPath]
    """Keys whose mere presence it refuses."""


@dataclass(frozen=True)
class History:
    """What became of a key."""

    known: tuple[str, ...]
    """The releases that read it, oldest to newest."""

    refused: str | None
    """The first release that refuses its mere presence."""

    changes: tuple[tuple[str, Any], ...]
    """Its scalar default where it first had one, and wherever it changed."""

    @property
    def since(self) -> str | None:
        """The release that brought it; None if it was always there."""
        return self.known[0] if self.known and self.known[0] != RELEASES[0] else None

    @property
    def until(self) -> str | None:
        """The last release that read it; None if it is still there."""
        return self.known[-1] if self.known and self.known[-1] != RELEASES[-1] else None


def release(text: str | None) -> Release:
    """Find a release as people name it: `0.16`, `0.16.4`, `v0.16`.

    What is newer than all is the newest, and so is None, for who names none.
    """
    if text is None:
        return NEWEST
    found = re.fullmatch(r"v?(\d+)\.(\d+)([.+].*)?", text.strip())
    if not found:
        raise WrongUsage(f"`{text}` is no DeepSpeed release", f"write one of {_listed()}")
    asked = (int(found[1]), int(found[2]))
    not_newer = [name for name in RELEASES if _order(name) <= asked]
    if not not_newer:
        raise WrongUsage(f"DeepSpeed {text} is older than all that are known", f"write one of {_listed()}")
    return Release(not_newer[-1])


def history(path: KeyPath) -> History:
    """Tell what became of a key, from the oldest release to the newest."""
    releases = [Release(name) for name in RELEASES]
    known = [each for each in releases if each.knows(path)]
    defaults = [(each.name, each.default(path)) for each in known]
    before = [None, *(default for _, default in defaults)]
    return History(
        known=tuple(each.name for each in known),
        refused=next((each.name for each in releases if path in each.reads.refused), None),
        changes=tuple(now for now, old in zip(defaults, before, strict=False) if now[1] != old),
    )


@functools.cache
def _reads(name: str) -> Reads:
    table = _table()
    keys = {path: row for path, row in table["keys"].items() if _lives(row, name)}
    return Reads(
        keys={_path(path): _in_force(row.get("defaults", {}), name) for path, row in keys.items()},
        sections={
            _path(path): _in_force(kinds, name)
            for path, kinds in table["sections"].items()
            if path in keys or not path
        },
        refused=frozenset(
            _path(path) for path, since in table["refused"].items() if _order(since) <= _order(name)
        ),
    )


@functools.cache
def _table() -> Any:
    from importlib import resources

    return json.loads(resources.files("zlaunch.dsconfig").joinpath("releases.json").read_text("utf-8"))


def _lives(row: Mapping[str, Any], name: str) -> bool:
    return _order(row.get("since", RELEASES[0])) <= _order(name) <= _order(row.get("until", RELEASES[-1]))


def _in_force(changes: Mapping[str, Any], name: str) -> Any:
    """Find the last change that is not newer than a release."""
    past = [value for since, value in changes.items() if _order(since) <= _order(name)]
    return past[-1] if past else None


def _path(dotted: str) -> KeyPath:
    return tuple(dotted.split(".")) if dotted else ()


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("."))


def _listed() -> str:
    return ", ".join(f"`{name}`" for name in RELEASES)
