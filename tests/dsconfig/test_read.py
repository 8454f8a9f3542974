import base64
import io
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.each import each
from tests.making import json_objects
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.text.document import KeyPath, dotted
from zlaunch.dsconfig.text.edit import apply
from zlaunch.dsconfig.text.parser import MAX_DEPTH, parse
from zlaunch.errors import InputMissing, Place, Refused, Severity

LENIENT = [
    ('{"a": 1 // two\n}', "comment"),
    ('{"a": 1 # two\n}', "comment"),
    ('{"a": /* two\nlines */ 1}', "comment"),
    ('{"a": 1,}', "trailing-comma"),
    ('{"a": [1,]}', "trailing-comma"),
    ("{'a': 1}", "single-quotes"),
    ("{\"a\": 'b'}", "single-quotes"),
    ("{a: 1}", "bare-key"),
    ('{"a": cpu\n}', "no-quotes"),
    ('{"a": 5 GB\n}', "no-quotes"),
    ('{"a": 1\n "b": 2}', "missing-comma"),
    ('"a": 1\n', "no-braces"),
    ("{\"a\": '''b\n  c'''}", "single-quotes"),
]

MISREAD = [
    ('{"a": True}', True, "true"),
    ('{"a": None,\n "b": 2}', None, "null"),
    ('{"a": auto,\n "b": 2}', "auto", '"auto"'),
    ('{"a": .5}', 0.5, "0.5"),
    ('{"a": +3}', 3, "3"),
    ('{"a": 5.}', 5, "5"),
    ('{"a": 007}', 7, "7"),
]

BROKEN = [
    ("", 1, 1),
    ("[1]", 1, 1),
    ('"a"', 1, 1),
    ("null // c\n", 1, 1),
    ("{", 1, 2),
    ('{"a" 1}', 1, 6),
    ('{"a":}', 1, 6),
    ('{"a": }', 1, 7),
    ('{"a": 1', 1, 8),
    ('{"a": [1 2]}', 1, 10),
    ('{"a": [1}', 1, 9),
    ('{"a": 1]', 1, 8),
    ('{"a": "x\n"}', 1, 7),
    ('{"a": 1} 2', 1, 10),
    ('{"a": 1} /* open', 1, 10),
    ("{1: 2}", 1, 2),
    ("{,}", 1, 2),
]


def _refused(text: str) -> Refused:
    with pytest.raises(Refused) as caught:
        parse(text, "ds.json")
    return caught.value


def _members(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    yield path, value
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from _members(child, (*path, key))


@each(("text", "code"), LENIENT)
def test_what_only_deepspeed_reads_is_remarked(text: str, code: str) -> None:
    assert [remark.code for remark in parse(text, "ds.json").remarks] == [code]


@each(("text", "code"), LENIENT)
def test_what_only_deepspeed_reads_is_no_mistake(text: str, code: str) -> None:
    assert {remark.severity for remark in parse(text, "ds.json").remarks} == {Severity.ADVICE}


def test_a_comment_is_no_part_of_the_value() -> None:
    assert parse('{"a": "// b" /* c */}', "ds.json").value == {"a": "// b"}


def test_each_kind_of_leniency_is_remarked_once() -> None:
    assert len(parse("{a: 1, b: 2, c: 3}", "ds.json").remarks) == 1


def test_a_remark_stands_where_the_leniency_first_stands() -> None:
    document = parse("{\n  'a': 1,\n  'b': 2\n}", "ds.json")
    assert document.remarks[0].place == Place("ds.json", 2, 3)


def test_strict_json_is_read_without_remarks() -> None:
    assert parse('{"a": [1, {"b": null}], "c": true}', "ds.json").remarks == ()


@pytest.mark.parametrize(
    ("text", "number"),
    [("2e8", 200_000_000), ("-3", -3), ("+3", 3), ("5.", 5), (".5", 0.5), ("1E-3", 0.001), ("1.5", 1.5)],
)
def test_a_number_is_what_deepspeeds_reader_makes_of_it(text: str, number: float) -> None:
    assert repr(parse(f'{{"a": {text}}}', "ds.json").value["a"]) == repr(number)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (r"\n\t\r\b\f", "\n\t\r\b\f"),
        (r"\"\\\/", '"\\/'),
        (r"\u00e9", "é"),
        (r"\ud83d\ude00", "😀"),
        ("é😀", "é😀"),
    ],
)
def test_a_string_is_what_json_makes_of_it(text: str, meant: str) -> None:
    assert parse(f'{{"a": "{text}"}}', "ds.json").value == {"a": meant}


def test_half_a_pair_of_surrogates_stays_as_it_is_written() -> None:
    assert parse(r'{"a\ud800": "\ud83d\ude00"}', "c.json").value == {r"a\ud800": "\N{GRINNING FACE}"}


@pytest.mark.parametrize(("word", "value"), [("true", True), ("false", False), ("null", None)])
def test_the_words_of_json_are_values(word: str, value: object) -> None:
    assert parse(f'{{"a": {word}}}', "ds.json").value["a"] is value


@each(("text", "line", "column"), BROKEN)
def test_broken_json_is_refused_where_it_breaks(text: str, line: int, column: int) -> None:
    assert _refused(text).findings[0].place == Place("ds.json", line, column)


def test_a_value_alone_is_no_object_and_no_key() -> None:
    assert _refused("null\n").findings[0].message == "a ds_config must be one JSON object"


@each(("text", "line", "column"), BROKEN)
def test_broken_json_is_refused_for_one_reason(text: str, line: int, column: int) -> None:
    assert [finding.code for finding in _refused(text).findings] == ["not-json"]


@pytest.mark.parametrize(("text", "meant", "_written"), MISREAD)
def test_what_deepspeed_misreads_is_read_as_it_was_meant(text: str, meant: object, _written: str) -> None:
    assert repr(parse(text, "ds.json").value["a"]) == repr(meant)


@pytest.mark.parametrize(("text", "_meant", "written"), MISREAD)
def test_what_deepspeed_misreads_is_offered_as_json(text: str, _meant: object, written: str) -> None:
    assert [remark.hint for remark in parse(text, "ds.json").remarks] == [f"write `{written}`"]


@each("text", [text for text, *_ in [*LENIENT, *MISREAD]])
def test_plaining_makes_strict_json_of_the_same_value(text: str) -> None:
    document = parse(text, "ds.json")
    edits = (*document.plain_edits, *document.comment_edits)
    assert json.loads(apply(document.text, edits)) == document.value


@each("text", [text for text, _ in LENIENT if "single" not in text])
def test_what_is_read_without_a_mistake_is_read_as_hjson_does(text: str) -> None:
    assert parse(text, "ds.json").value == hjson.loads(text)


def test_stdin_is_read_for_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}')))
    assert read("-").value == {"a": 1}


def test_base64_is_read_as_launchers_pass_it_on() -> None:
    assert read(base64.urlsafe_b64encode(b'{"a": 1}').decode()).value == {"a": 1}


def test_objects_may_be_nested_to_the_limit() -> None:
    text = '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH
    assert parse(text, "ds.json").remarks == ()


def test_objects_nested_beyond_the_limit_are_refused() -> None:
    assert "nested" in _refused('{"a":' * 100 + "1" + "}" * 100).findings[0].message


def test_a_number_too_long_for_python_is_refused() -> None:
    assert _refused('{"a": ' + "9" * 5000 + "}").findings[0].code == "not-json"


def test_a_duplicate_key_keeps_the_first_value() -> None:
    assert parse('{"a": 1, "a": 2}', "ds.json").value == {"a": 1}


def test_a_duplicate_key_names_the_line_of_the_first() -> None:
    document = parse('{\n "b": 0,\n "a": 1,\n "a": 2\n}', "ds.json")
    assert "line 3" in document.remarks[0].message


def test_a_duplicate_key_is_placed_at_the_second() -> None:
    assert parse('{"a": 1,\n "a": 2}', "ds.json").remarks[0].place == Place("ds.json", 2, 2)


def test_a_duplicate_key_is_a_mistake() -> None:
    assert parse('{"a": 1, "a": 2}', "ds.json").remarks[0].severity is Severity.ERROR


def test_a_duplicate_key_is_named_with_the_objects_around_it() -> None:
    assert parse('{"a": {"b": 1, "b": 2}}', "ds.json").remarks[0].where == "a.b"


def test_the_same_key_in_two_objects_is_no_duplicate() -> None:
    assert parse('{"a": {"x": 1}, "b": {"x": 1}}', "ds.json").remarks == ()


def test_what_stands_in_a_second_value_has_no_place_of_its_own() -> None:
    document = parse('{"a": {"duplicate": {"x": 1}},\n "a": {"x": 2}}', "ds.json")
    assert document.place(("a", "duplicate", "x")).line == 1


def test_a_key_has_its_place() -> None:
    document = parse('{\n  "zero_optimization": {\n    "stage": 3\n  }\n}', "ds.json")
    assert document.place(("zero_optimization", "stage")) == Place("ds.json", 3, 5)


def test_an_item_of_a_list_has_its_place() -> None:
    assert parse('{"a": [1,\n 2]}', "ds.json").place(("a", 1)) == Place("ds.json", 2, 2)


def test_an_absent_key_has_the_place_of_the_object_around_it() -> None:
    assert parse('{\n "a": {}}', "ds.json").place(("a", "b", "c")) == Place("ds.json", 2, 2)


def test_an_absent_key_at_the_top_has_the_place_of_the_whole() -> None:
    assert parse('\n{"a": 1}', "ds.json").place(("b",)) == Place("ds.json", 2, 1)


def test_a_place_is_written_as_editors_read_it() -> None:
    assert str(Place("ds.json", 2, 5)) == "ds.json:2:5"


def test_a_key_path_is_written_with_dots() -> None:
    assert dotted(("optimizer", "params", "betas", 0)) == "optimizer.params.betas.0"


def test_a_missing_file_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match=r"absent\.json"):
        read(tmp_path / "absent.json")


def test_a_directory_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(InputMissing):
        read(tmp_path)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read(file).place(("a",)).column == 2


def test_bytes_that_are_no_text_are_refused_on_their_line(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_bytes(b'{\n"a": "\xff"}')
    with pytest.raises(Refused) as caught:
        read(file)
    assert caught.value.findings[0].place == Place(str(file), 2, 1)


def test_windows_line_ends_count_once() -> None:
    assert parse('{\r\n "a": 1\r\n}', "ds.json").place(("a",)) == Place("ds.json", 2, 2)


jsonlike = st.lists(
    st.sampled_from(
        ['"a"', "'b'", "{", "}", "[", "]", ":", ",", "1", "-2e8", "true", "nul", "//", "\n", "/*"]
    )
    | st.text(max_size=2)
).map("".join)


@given(st.text() | jsonlike | jsonlike.map(lambda text: '{"a": ' + text))
@example('{"a": ' + "[" * 200)
@example('{"a": 1e999}')
@example('{"a": "\\ud800"}')
def test_any_text_is_a_document_or_refused(text: str) -> None:
    with suppress(Refused):
        parse(text, "ds.json")


@given(st.binary() | st.binary().map(lambda data: b'{"a": "' + data))
def test_any_bytes_are_a_document_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_bytes(data)
    with suppress(Refused):
        read(file)


@given(json_objects, st.booleans())
def test_strict_json_is_read_as_pythons_reader_reads_it(value: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert repr(parse(text, "ds.json").value) == repr(value)


@given(json_objects, st.sampled_from([None, 2]))
def test_every_value_stands_where_its_span_says(value: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    spans = parse(text, "ds.json").spans
    for path, member in _members(value):
        assert json.loads(text[spans[path].start : spans[path].end]) == member


@given(json_objects)
def test_every_key_stands_where_its_span_says(value: dict[str, Any]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    spans = parse(text, "ds.json").spans
    for path, _ in _members(value):
        if path and isinstance(path[-1], str):
            assert text[spans[path].key :].startswith(json.dumps(path[-1], ensure_ascii=False))


def test_a_misspelled_name_is_answered_with_the_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text("{}")
    with pytest.raises(InputMissing) as caught:
        read(tmp_path / "ds_confg.json")
    assert caught.value.hint == f"did you mean `{tmp_path / 'ds_config.json'}`?"


def test_an_empty_name_is_not_taken_for_the_current_directory() -> None:
    with pytest.raises(InputMissing, match="the name of a ds_config is empty"):
        read("")
