import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.console import finding_lines, notes, table
from zlaunch.errors import Finding, Place, Severity


def first_line(finding: Finding) -> str:
    return finding_lines(finding, sys.stdout)[0]


PLACE = Place("ds.json", 3, 5)
words = st.text("abc ", max_size=12)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")


def test_a_finding_begins_with_its_place() -> None:
    assert first_line(Finding("a-code", "it is wrong", place=PLACE)) == "ds.json:3:5: it is wrong [a-code]"


def test_a_finding_without_a_place_begins_with_its_key() -> None:
    assert first_line(Finding("a-code", "it is wrong", where="bf16")) == "bf16: it is wrong [a-code]"


def test_a_finding_with_a_place_leaves_its_key_out() -> None:
    assert first_line(Finding("c", "wrong", where="bf16", place=PLACE)) == "ds.json:3:5: wrong [c]"


@pytest.mark.parametrize("severity", [Severity.LATE, Severity.SILENT, Severity.ADVICE])
def test_a_finding_that_is_no_error_names_its_severity(severity: Severity) -> None:
    assert first_line(Finding("c", "wrong", severity=severity)) == f"{severity.value}: wrong [c]"


def test_the_columns_of_a_table_are_aligned() -> None:
    assert table([("a", "one"), ("long", "two")]) == ["  a     one", "  long  two"]


def test_the_last_column_of_a_table_is_cut_to_the_width() -> None:
    lines = table([("a", "word " * 30)])
    assert max(map(len, lines)) <= 60


def test_the_rest_of_a_cut_cell_stands_below_its_start() -> None:
    first, second, *_ = table([("a", "word " * 30)])
    assert first.index("word") == second.index("word")


def test_an_empty_cell_leaves_no_spaces_behind() -> None:
    assert table([("a", "")], indent="") == ["a"]


def test_a_word_that_is_too_long_is_left_whole() -> None:
    path = "/a" * 60
    assert table([("a", path)])[-1].endswith(path)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=5))
def test_a_table_loses_no_letter(rows: list[tuple[str, str]]) -> None:
    letters = "".join("".join(row) for row in rows).replace(" ", "")
    assert "".join(table(rows)).replace(" ", "") == letters


def test_a_note_stands_beside_its_item() -> None:
    assert notes([("a = 1", "why"), ("b", "because")]) == ["  a = 1  why", "  b      because"]


def test_a_note_stands_below_an_item_that_is_too_long() -> None:
    item = "x" * 40
    assert notes([(item, "why")]) == [f"  {item}", " " * 32 + "why"]


def test_an_item_without_a_note_stands_alone() -> None:
    assert notes([("section", "")]) == ["  section"]


def test_a_long_note_is_cut_to_the_width() -> None:
    assert max(map(len, notes([("a", "word " * 30)]))) <= 60


@given(st.lists(st.tuples(words, words), min_size=1, max_size=5))
def test_notes_lose_no_letter(rows: list[tuple[str, str]]) -> None:
    letters = sorted("".join("".join(row) for row in rows).replace(" ", ""))
    assert sorted("".join(notes(rows)).replace(" ", "")) == letters
