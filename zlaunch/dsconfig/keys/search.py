"""Search for a key by a name that a user types."""

import difflib
import functools
from itertools import chain

from zlaunch.dsconfig.json_schema import catalog
from zlaunch.dsconfig.releases import ALL, NEWEST
from zlaunch.dsconfig.text.document import dotted


@functools.cache
def older_keys() -> frozenset[str]:
    """List the keys that only older releases read."""
    known = chain.from_iterable(release.keys for release in ALL)
    older = {*known} - {*NEWEST.keys}
    return frozenset({*map(dotted, older)} - {*catalog().keys} - {*catalog().other_names})


def find(text: str) -> list[str]:
    """Find the keys that a name can mean: the whole path or the end of it."""
    asked = text.strip().strip(".").replace("-", "_")
    others = catalog().other_names
    names = [*catalog().keys, *others, *sorted(older_keys())]
    exact = [name for name in names if name == asked]
    ending = [name for name in names if name.endswith(f".{asked}")]
    return list(dict.fromkeys(others.get(name, name) for name in exact or ending))


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
