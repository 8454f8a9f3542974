"""`make check` ends with a report of how plain the code is, which nothing has to pass."""

import json
from pathlib import Path

import pytest

from tools.report import LAST_RELEASE, main, measure, modules, places

PLAIN = '''
"""A module."""

import json
from zlaunch.beta import thing


class Reader(Protocol):
    def read(self) -> str: ...


def _name(rows: list[str], few: bool) -> list[str]:
    """Name."""
    # a comment
    if few and rows:
        return rows[:1] if few else []
    return [row for row in rows if row]
'''
DENSE = """
from zlaunch.alpha import json

def _name(a, b):
    return [*([a] if a else []), *(x for y in b for x in y)]

def other(a, b):
    return 1 if a else 2 if b else 3
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    files = {"alpha": PLAIN, "beta/thing": DENSE, "beta/__init__": "", "gamma": "def _name(): pass\n"}
    for name, text in files.items():
        path = tmp_path / f"zlaunch/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip())
    return tmp_path


def test_a_decision_is_a_branch_a_conditional_expression_an_operator_or_a_comprehension(
    checkout: Path,
) -> None:
    numbers = measure(modules(checkout))
    # 1 + if, and, conditional expression, for, if; 1 + conditional expression, for, for; 1 + 2; 1
    assert numbers["decisions per function, mean"] == (6 + 4 + 3 + 1) / 4
    assert numbers["functions of more than 8 decisions, %"] == 0


def test_what_is_dense_is_counted(checkout: Path) -> None:
    numbers = measure(modules(checkout))
    assert numbers["code lines"] == 6 + 4 + 1
    assert numbers["conditional expressions per 1,000 code lines"] == 1000 * 4 / 11
    assert numbers["nested conditional expressions"] == 1
    assert numbers["`*([x] if y else [])`"] == 1
    assert numbers["`return a if b else c`, % of returns"] == 50
    assert numbers["private functions with a docstring"] == 1


def test_imports_are_counted_between_modules_and_packages(checkout: Path) -> None:
    numbers = measure(modules(checkout))
    assert (numbers["imports between modules"], numbers["pairs of packages"]) == (2, 2)
    assert numbers["lines of beta"] == DENSE.lstrip().count("\n")


def test_places_to_work_off_have_file_and_line(checkout: Path) -> None:
    assert [str(place) for place in places(modules(checkout))] == [
        "zlaunch/beta/thing.py:7: nested conditional expressions: return 1 if a else 2 if b else 3",
        "zlaunch/beta/thing.py:4: star lists: return [*([a] if a else []), *(x for y in b for x in y)]",
        "zlaunch/beta/thing.py:4: dense comprehensions: return [*([a] if a else []), *(x for y in b for x in y)]",
        "zlaunch/alpha.py:11: shared helper name: _name",
        "zlaunch/beta/thing.py:3: shared helper name: _name",
        "zlaunch/gamma.py:1: shared helper name: _name",
    ]


def test_the_report_shows_the_last_release_beside_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    last = json.loads(LAST_RELEASE.read_text())
    assert main([]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == [last["release"], "now"]
    assert "nested conditional expressions" in rows[3]
    assert rows[3].split()[-2] == str(last["numbers"]["nested conditional expressions"])
