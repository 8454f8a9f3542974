from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from tests.making import json_objects
from zlaunch.config.accelerate.yaml_reader import parse, read
from zlaunch.dsconfig.text.parser import MAX_DEPTH
from zlaunch.errors import InputMissing, Place, Refused, Severity

BROKEN = [
    ("", 1, 1),
    ("# nothing", 1, 1),
    ("[1]", 1, 1),
    ("word", 1, 1),
    ("a: b: c", 1, 5),
    ("a: [1", 1, 6),
    ("a:\n  - 1\n b: 2", 3, 2),
    ("\ta: 1", 1, 1),
    ("a: 1\n---\nb: 2", 2, 1),
    ("a: \x07", 1, 4),
    ('a: "\\U99999999"', 1, 5),
    ("? [1]\n: 2", 1, 3),
    ("a: !!int abc", 1, 4),
    ("a: !!bool abc", 1, 4),
    ("a: 0x_", 1, 4),
    ("a: !mine 1", 1, 4),
    ("a: !!python/object:os.system x", 1, 4),
    ("a: !!map [1]", 1, 4),
    ("a: .inf", 1, 4),
    ("a: 1\nb: .nan", 2, 4),
    ("a: 1.0e+999", 1, 4),
    ("a: 1e999", 1, 4),
    ("a: &x 1\nb: *x", 2, 4),
    ("b:\n  <<: {a: 1}", 2, 3),
]


def refused(text: str) -> Refused:
    with pytest.raises(Refused) as caught:
        parse(text, "a.yaml")
    return caught.value


@each(("text", "line", "column"), BROKEN)
def test_what_cannot_be_a_configuration_is_refused_where_it_stands(text: str, line: int, column: int) -> None:
    assert [finding.place for finding in refused(text).findings] == [Place("a.yaml", line, column)]


@given(st.text() | st.text(alphabet="{}[]:,&*!|>-?# \n'\"ab01.e\\"))
def test_no_text_makes_anything_but_a_document_or_a_refusal(text: str) -> None:
    with suppress(Refused):
        parse(text, "a.yaml")


@given(st.binary())
def test_no_bytes_make_anything_but_a_document_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.yaml"
    file.write_bytes(data)
    with suppress(Refused):
        read(file)


@given(json_objects)
def test_what_pyyaml_writes_is_read_back(value: dict[str, object]) -> None:
    assert parse(yaml.safe_dump(value), "a.yaml").value == value


def test_depth_is_refused_before_pyyaml_gets_lost_in_it() -> None:
    assert "nested" in refused("a: " + "[" * 100_000).findings[0].message


def test_the_greatest_depth_is_read() -> None:
    depth = MAX_DEPTH - 1
    assert parse("a: " + "[" * depth + "]" * depth, "a.yaml").value["a"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("2e8", 200_000_000), ("1E-3", 0.001), ("1.5e3", 1500), ("-3e0", -3), (".5e1", 5), ("1.0e+2", 100)],
)
def test_a_number_is_what_was_meant(text: str, number: float) -> None:
    assert repr(parse(f"a: {text}", "a.yaml").value["a"]) == repr(number)


@pytest.mark.parametrize("text", ["'2e8'", '"2e8"', "!!str 2e8", "|\n  2e8", "2e8x"])
def test_a_number_that_was_written_as_text_is_text(text: str) -> None:
    assert isinstance(parse(f"a: {text}", "a.yaml").value["a"], str)


def test_a_number_that_yaml_takes_for_text_is_remarked() -> None:
    (remark,) = parse("a: 1\nb: 2e8", "a.yaml").remarks
    assert (remark.place, remark.severity) == (Place("a.yaml", 2, 4), Severity.ADVICE)


def test_a_remark_about_a_number_says_how_to_write_it() -> None:
    (remark,) = parse("b: 2e8", "a.yaml").remarks
    assert remark.hint == "write `200000000`"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True),
        ("No", False),
        ("~", None),
        ("", None),
        ("010", 8),
        ("1_000", 1000),
        ("2026-01-01", "2026-01-01"),
        ("=", "="),
    ],
)
def test_a_word_is_what_pyyaml_makes_of_it_or_else_text(text: str, value: object) -> None:
    assert parse(f"a: {text}", "a.yaml").value["a"] == value


@pytest.mark.parametrize("key", ["on", "1", "~", "2e8", "2026-01-01"])
def test_a_key_is_the_word_that_stands_there(key: str) -> None:
    assert [*parse(f"{key}: 1", "a.yaml").value] == [key]


def test_a_key_that_stands_twice_is_a_finding() -> None:
    (remark,) = parse("a: 1\nb: 2\na: 3", "a.yaml").remarks
    assert (remark.code, remark.place) == ("duplicate-key", Place("a.yaml", 3, 1))


def test_a_key_that_stands_twice_stops_nothing() -> None:
    (remark,) = parse("a: 1\na: 3", "a.yaml").remarks
    assert remark.severity is Severity.IGNORED


def test_of_two_equal_keys_the_last_counts_as_it_does_for_pyyaml() -> None:
    text = "a: {b: 1}\na: {c: 3}"
    assert parse(text, "a.yaml").value == yaml.safe_load(text)


def test_of_two_equal_keys_the_first_has_no_place() -> None:
    assert ("a", "b") not in parse("a: {b: 1}\na: {c: 3}", "a.yaml").spans


def test_an_anchor_that_nobody_uses_is_harmless() -> None:
    assert parse("a: &x 1", "a.yaml").value == {"a": 1}


TEXT = "a: 1 # one\nb:\n  c: [2, {d: 3}]\n  # end\n\ne: 'four'\n"


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        (("a",), "a", "1"),
        (("b",), "b", "c: [2, {d: 3}]"),
        (("b", "c"), "c", "[2, {d: 3}]"),
        (("b", "c", 0), "2", "2"),
        (("b", "c", 1, "d"), "d", "3"),
        (("e",), "e", "'four'"),
    ],
)
def test_a_span_holds_the_key_and_the_value(path: tuple[str | int, ...], key: str, value: str) -> None:
    span = parse(TEXT, "a.yaml").spans[path]
    assert (TEXT[span.key], TEXT[span.start : span.end]) == (key, value)


def test_a_place_is_found_behind_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read(file).place(("a",)).column == 1


def test_places_survive_windows_line_ends() -> None:
    assert parse("a: 1\r\nb: 2\r\n", "a.yaml").place(("b",)) == Place("a.yaml", 2, 1)


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputMissing):
        read(tmp_path / "nosuch.yaml")


def test_bytes_that_are_no_text_are_refused_on_their_line(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(Refused) as caught:
        read(file)
    assert caught.value.findings[0].place == Place(str(file), 2, 1)
