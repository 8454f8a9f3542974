"""A ds_config as a flat list of values that remember who set them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zlaunch.dsconfig.text.document import KeyPath, dotted

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Sourced:
    """One value of a ds_config, and who set it."""

    value: Any
    source: str


@dataclass(frozen=True)
class Values:
    """All leaves of a ds_config in the order in which they are written."""

    leaves: Mapping[KeyPath, Sourced]

    @classmethod
    def of(cls, config: Mapping[str, Any], source: str) -> "Values":
        """Flatten a config that one source wrote."""
        return cls({path: Sourced(value, source) for path, value in _flatten(config, ())})

    def __getitem__(self, path: KeyPath) -> Any:
        """Look a value up; None if it is absent."""
        leaf = self.leaves.get(path)
        return None if leaf is None else leaf.value

    def has(self, path: KeyPath) -> bool:
        """Whether a key, or anything below it, is there."""
        return any(leaf[: len(path)] == path for leaf in self.leaves)

    def put(self, path: KeyPath, value: Any, source: str) -> "Values":
        """Set a key to a value or a section; what stood at it, below it, or as a value above it goes."""
        if isinstance(value, Mapping) and value:
            below = Values({(*path, *leaf): s for leaf, s in Values.of(value, source).leaves.items()})
            return below.over(self.without(path))
        if path in self.leaves:
            return Values({**self.leaves, path: Sourced(value, source)})
        kept = {leaf: sourced for leaf, sourced in self.leaves.items() if not _clash(leaf, path)}
        return Values({**kept, path: Sourced(value, source)})

    def without(self, path: KeyPath) -> "Values":
        """Leave out a key and everything below it."""
        return Values({leaf: sourced for leaf, sourced in self.leaves.items() if leaf[: len(path)] != path})

    def over(self, other: "Values") -> "Values":
        """Lay these values over others: what is set here wins."""
        result = other
        for path, sourced in self.leaves.items():
            result = result.put(path, sourced.value, sourced.source)
        return result

    def autos(self) -> list[KeyPath]:
        """Name the keys that are still "auto"."""
        return [path for path, sourced in self.leaves.items() if sourced.value == AUTO]

    def config(self) -> dict[str, Any]:
        """Nest the values again."""
        nested: dict[str, Any] = {}
        for path, sourced in self.leaves.items():
            node = nested
            for part in path[:-1]:
                node = node.setdefault(str(part), {})
            node[str(path[-1])] = sourced.value
        return nested

    def sources(self) -> dict[str, str]:
        """Say for each key who set it."""
        return {dotted(path): sourced.source for path, sourced in self.leaves.items()}


def _clash(leaf: KeyPath, path: KeyPath) -> bool:
    shorter = min(len(leaf), len(path))
    return leaf[:shorter] == path[:shorter]


def _flatten(value: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for key, child in value.items():
        if isinstance(child, Mapping) and child:
            yield from _flatten(child, (*path, key))
        else:
            yield (*path, key), child
