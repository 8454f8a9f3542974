"""Search for a key by a name that a user types."""

import difflib
import functools
import re
from collections.abc import Sequence
from itertools import chain

from zlaunch.dsconfig.json_schema import catalog
from zlaunch.dsconfig.releases import ALL, NEWEST
from zlaunch.dsconfig.text.document import dotted

_BETWEEN = re.compile(r"[\s._]+")


@functools.cache
def older_keys() -> frozenset[str]:
    """List the keys that only older releases read."""
    known = chain.from_iterable(release.keys for release in ALL)
    older = {*known} - {*NEWEST.keys}
    return frozenset({*map(dotted, older)} - {*catalog().keys} - {*catalog().other_names})


def find(text: str) -> list[str]:
    """Find the keys that a name can mean: the whole path, the end of it, or some of its words.

    Words in any order find the keys that are nested least, as `offload` and `zero_stage` do.
    """
    asked = text.strip().strip(".").replace("-", "_")
    others = catalog().other_names
    names = [*catalog().keys, *others, *sorted(older_keys())]
    exact = [name for name in names if name == asked]
    ending = [name for name in names if name.endswith(f".{asked}")]
    found = exact or ending
    if not exact:
        found += [name for name in _with_words(asked) if all(_depth(name) < _depth(one) for one in ending)]
    return list(dict.fromkeys(others.get(name, name) for name in found))


def _with_words(asked: str) -> list[str]:
    """List the keys with all these words in their path, or their beginnings; of those the least nested."""
    words = {word for word in _BETWEEN.split(asked) if word}
    paths = {name: _BETWEEN.split(name) for name in catalog().keys if words}
    found = [name for name, path in paths.items() if words <= {*path}]
    found = found or [name for name, path in paths.items() if all(_begins(path, word) for word in words)]
    least = min(map(_depth, found), default=0)
    return [name for name in found if _depth(name) == least]


def _begins(path: Sequence[str], beginning: str) -> bool:
    return any(word.startswith(beginning) for word in path)


def _depth(name: str) -> int:
    return name.count(".")


def near(text: str) -> list[str]:
    """List similar keys, best first."""
    last = text.rpartition(".")[2].lower()
    ends: dict[str, str] = {}
    for name in [*catalog().keys, *catalog().other_names]:
        ends.setdefault(name.rpartition(".")[2], name)
    wholes = difflib.get_close_matches(text.lower(), [*catalog().keys], 3, 0.75)
    return list(
        dict.fromkeys([*wholes, *(ends[end] for end in difflib.get_close_matches(last, [*ends], 3, 0.7))])
    )[:3]
