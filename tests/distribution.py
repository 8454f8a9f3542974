"""How the tests are shared out to the workers of xdist: what shares a fixture or an import stays together.

`--dist loadfile` makes a unit of each file; here a death is a unit too, and so are all tests that ask the installed
packages, because each worker that runs one imports them. What takes longest begins first, so that no worker waits
for another at the end. `python -m tools.run_tests --record` writes the durations.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import mean

from xdist.scheduler import LoadScopeScheduling

PACKAGES = "packages"
IMPORTS_PACKAGES = (
    "tests/contract/",
    "tests/estimate/rehearsal/test_allocations.py",
    "tests/estimate/rehearsal/test_device.py",
    "tests/estimate/rehearsal/test_older_packages.py",
    "tests/job/test_model_families.py",
)
DEATHS = "tests/deaths/test_deaths.py"
DURATIONS = Path(__file__).with_name("durations.json")
RECORDED_FROM = 0.2
"""Tests that took so many seconds are recorded; the others are fast."""
MOST_CALLED_FOR = 60
"""Seconds, on one worker, of the tests marked `full` that a change calls for."""
SECONDS: dict[str, float] = json.loads(DURATIONS.read_text("utf-8"))


def unit_of(nodeid: str) -> str:
    """Name the unit of a test."""
    file = nodeid.partition("::")[0]
    if file == DEATHS:
        return nodeid
    return PACKAGES if file.startswith(IMPORTS_PACKAGES) else file


def seconds_of_units(nodeids: Iterable[str]) -> Counter[str]:
    """Add up how long the tests of each unit take on one worker."""
    total: Counter[str] = Counter()
    for nodeid in nodeids:
        total[unit_of(nodeid)] += SECONDS.get(nodeid, 0)  # type: ignore[assignment]
    return total


def left_out(full: Iterable[str], also: tuple[str, ...]) -> list[str]:
    """Name those of the tests marked `full` that are left out; of those called for, the ones that take longest.

    Tests with equal parameters stay together, because they share most.
    """
    spent, left = 0.0, []
    by_seconds = sorted(
        _with_their_share(full).items(), key=lambda test: (test[1], test[0].partition("[")[2])
    )
    for node, seconds in by_seconds:
        is_called_for = node.startswith(also)
        spent += seconds if is_called_for else 0
        if not is_called_for or spent > MOST_CALLED_FOR:
            left.append(node)
    return left


def _with_their_share(nodes: Iterable[str]) -> dict[str, float]:
    """How long tests take; one that shares a fixture was recorded without it, so each has its share of its file."""
    seconds = {node: SECONDS.get(node, 0.0) for node in nodes}
    of_file: dict[str, list[float]] = {}
    for node, own in seconds.items():
        of_file.setdefault(node.partition("::")[0], []).append(own)
    return {node: max(own, mean(of_file[node.partition("::")[0]])) for node, own in seconds.items()}


class Units(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out units in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
