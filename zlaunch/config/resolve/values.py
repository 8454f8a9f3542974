"""A ds_config as a flat list of values, each with its source."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from zlaunch.dsconfig.text.document import KeyPath, dotted, leaves, put
from zlaunch.frozen import dataclass
from zlaunch.job.source import Source

AUTO = "auto"


class Sourced(NamedTuple):
    """A value and where it comes from."""

    value: Any
    source: Source


@dataclass(frozen=True)
class Values:
    """All leaves of a ds_config, in the order in which they are written."""

    leaves: Mapping[KeyPath, Sourced]

    @classmethod
    def of(cls, config: Mapping[str, object], source: Source) -> "Values":
        """Flatten a config that comes from one source."""
        return cls({path: Sourced(value, source) for path, value in leaves(config)})

    def __getitem__(self, path: KeyPath) -> Any:
        """Look up a value; None if it is absent."""
        leaf = self.leaves.get(path)
        if leaf is None:
            return None
        return leaf.value

    def has(self, path: KeyPath) -> bool:
        """Whether the config has a key, or anything below it."""
        return any(leaf[: len(path)] == path for leaf in self.leaves)

    def put(self, path: KeyPath, value: object, source: Source) -> "Values":
        """Set a key to a value or a section, and drop what conflicts with it above and below."""
        if isinstance(value, Mapping) and value:
            below = Values({(*path, *leaf): Sourced(member, source) for leaf, member in leaves(value)})
            return below.over(self.without(path))
        kept = {
            leaf: sourced for leaf, sourced in self.leaves.items() if leaf == path or not _clash(leaf, path)
        }
        return Values({**kept, path: Sourced(value, source)})

    def without(self, path: KeyPath) -> "Values":
        """Drop a key and everything below it."""
        return Values({leaf: sourced for leaf, sourced in self.leaves.items() if leaf[: len(path)] != path})

    def over(self, other: "Values") -> "Values":
        """Lay these values over others; where both set a key, these win."""
        result = other
        for path, sourced in self.leaves.items():
            result = result.put(path, sourced.value, sourced.source)
        return result

    def placed(self, places: Mapping[str, str]) -> "Values":
        """Name the line of `zlaunch.yaml` for each value that was set there; `places` as in a JobSpec."""
        leaves = {
            path: Sourced(sourced.value, sourced.source.placed(places, dotted(path)))
            for path, sourced in self.leaves.items()
        }
        return Values(leaves)

    def autos(self) -> list[KeyPath]:
        """List the keys that are still "auto"."""
        return [path for path, sourced in self.leaves.items() if sourced.value == AUTO]

    def config(self) -> dict[str, Any]:
        """Nest the values again."""
        nested: dict[str, Any] = {}
        for path, sourced in self.leaves.items():
            put(nested, path, sourced.value)
        return nested

    def sources(self) -> dict[str, str]:
        """Give the source of each key as text."""
        return {dotted(path): str(sourced.source) for path, sourced in self.leaves.items()}


def _clash(leaf: KeyPath, path: KeyPath) -> bool:
    shorter = min(len(leaf), len(path))
    return leaf[:shorter] == path[:shorter]
