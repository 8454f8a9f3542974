"""Search for a key by a name that a user types."""

import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from itertools import chain

from zlaunch.dsconfig.json_schema import catalog
from zlaunch.dsconfig.keys.intended import other_names
from zlaunch.dsconfig.releases import ALL, NEWEST
from zlaunch.dsconfig.text.document import dotted

WHOLE_LIKE, END_LIKE = 0.75, 0.7
"""How like a path, or its last part, a misspelled name has to be."""
LIKE_THE_BEST = 0.1
"""So much less like it than the best name, another one is noise."""

_BETWEEN = re.compile(r"[\s._]+")


@functools.cache
def older_keys() -> frozenset[str]:
    """List the keys that only older releases read."""
    known = chain.from_iterable(release.keys for release in ALL)
    older = {*known} - {*NEWEST.keys}
    return frozenset({*map(dotted, older)} - {*catalog().keys} - {*catalog().other_names})


def find(text: str) -> list[str]:
    """Find the keys that a name can mean: the whole path, the end of it, or some of its words.

    A word of another tool, or of a paper, finds the keys for it. Words in any order find the keys that are
    nested least, as `zero_stage` does.
    """
    asked = text.strip().strip(".").replace("-", "_").lower()
    others = catalog().other_names
    names = [*catalog().keys, *others, *sorted(older_keys())]
    exact = [name for name in names if name == asked]
    ending = [name for name in names if name.endswith(f".{asked}")]
    meant = [dotted(path) for path in other_names().words_of_others.get(asked, ())]
    found = exact or [*meant, *ending]
    if not exact and not meant:
        words = _with_words(asked, catalog().keys) or _with_words(asked, older_keys())
        found += [name for name in words if all(_depth(name) < _depth(one) for one in ending)]
    return list(dict.fromkeys(others.get(name, name) for name in found))


def _with_words(asked: str, names: Iterable[str]) -> list[str]:
    """List the names with all these words in their path, or their beginnings; of those the least nested."""
    words = {word for word in _BETWEEN.split(asked) if word}
    paths = {name: _BETWEEN.split(name) for name in names if words}
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
    whole, last = text.lower(), text.rpartition(".")[2].lower()
    likeness: dict[str, float] = {}
    ends: set[str] = set()
    for name in [*catalog().keys, *catalog().other_names]:
        end = name.rpartition(".")[2]
        alike = _likeness(whole, name, WHOLE_LIKE)
        if end not in ends:
            ends.add(end)
            alike = max(alike, _likeness(last, end, END_LIKE))
        likeness[name] = alike
    least = max(likeness.values(), default=0.0) - LIKE_THE_BEST
    found = [name for name, alike in likeness.items() if alike and alike >= least]
    return sorted(found, key=lambda name: -likeness[name])[:3]


def _likeness(text: str, name: str, least: float) -> float:
    """Compare two names, from 0 to 1; 0 for less than `least`."""
    matcher = difflib.SequenceMatcher(None, text, name)
    if matcher.real_quick_ratio() < least or matcher.quick_ratio() < least or matcher.ratio() < least:
        return 0.0
    return matcher.ratio()
