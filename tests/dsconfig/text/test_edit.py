import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.making import json_objects
from zlaunch.dsconfig.text.document import KeyPath
from zlaunch.dsconfig.text.edit import fix_text
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Fix, FixKind

TEXT = """{
  "a": 1,  // one
  "b": {"c": 2, "d": [3]},
  "e": 5
}
"""
DELETE = Fix(FixKind.DELETE)


def mended(text: str, path: KeyPath, fix: Fix) -> str:
    return fix_text(parse(text, "ds.json"), path, fix)


def members(value: dict[str, Any], path: KeyPath = ()) -> list[KeyPath]:
    found: list[KeyPath] = []
    for key, child in value.items():
        found.append((*path, key))
        if isinstance(child, dict):
            found += members(child, (*path, key))
    return found


def without(value: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    rest = copy.deepcopy(value)
    node: Any = rest
    for part in path[:-1]:
        node = node[part]
    del node[path[-1]]
    return rest


written = st.tuples(json_objects, st.sampled_from([None, 2, 4])).map(
    lambda pair: (pair[0], json.dumps(pair[0], indent=pair[1], ensure_ascii=False))
)


def test_a_key_is_renamed_and_nothing_else_changes() -> None:
    assert mended(TEXT, ("b", "c"), Fix(FixKind.RENAME, "x")) == TEXT.replace('"c"', '"x"')


def test_a_colon_in_a_comment_is_no_part_of_a_key() -> None:
    text = '{"a": /* b: c */ true}'
    assert mended(text, ("a",), Fix(FixKind.RENAME, "x")) == text.replace('"a"', '"x"')


def test_a_key_is_put_in_the_place_of_another() -> None:
    assert mended('{"a": true}', ("a",), Fix(FixKind.REPLACE, ("b", {"c": 1}))) == '{"b": {"c": 1}}'


def test_line_ends_of_windows_survive() -> None:
    assert mended('{\r\n "a": 1, // b\r\n "c": 2\r\n}', (), Fix(FixKind.PLAIN)).count("\r\n") == 3


def test_a_value_is_written_and_nothing_else_changes() -> None:
    assert mended(TEXT, ("e",), Fix(FixKind.WRITE, False)) == TEXT.replace("5", "false")


@pytest.mark.parametrize(
    ("path", "left"),
    [
        (("b",), TEXT.replace('  "b": {"c": 2, "d": [3]},\n', "")),
        (("b", "c"), TEXT.replace('"c": 2, ', "")),
        (("b", "d"), TEXT.replace(', "d": [3]', "")),
        (("e",), TEXT.replace(',\n  "e": 5', "")),
    ],
)
def test_a_member_goes_with_its_comma_and_its_line(path: KeyPath, left: str) -> None:
    assert mended(TEXT, path, DELETE) == left


def test_a_section_moves_to_the_top_level() -> None:
    text = '{\n  "zero": {\n    "stage": 3,\n    "aio": {"x": 1}\n  }\n}'
    moved = '{\n  "zero": {\n    "stage": 3\n  },\n  "aio": {"x": 1}\n}'
    assert mended(text, ("zero", "aio"), Fix(FixKind.MOVE, "")) == moved


def test_a_key_moves_into_a_section_that_is_made_for_it() -> None:
    assert json.loads(mended('{"a": 1, "b": 2}', ("a",), Fix(FixKind.MOVE, "s"))) == {"b": 2, "s": {"a": 1}}


def test_plain_text_is_strict_json_but_for_comments() -> None:
    plain = mended("{a: 'b', /* c */ d: [1,],}", (), Fix(FixKind.PLAIN))
    assert plain == '{"a": "b", /* c */ "d": [1]}'


@pytest.mark.parametrize("text", ["a: 1 // c", "a: 1 # c\n", "a: 1 /* c */"])
def test_a_comment_does_not_swallow_the_brace_that_was_missing(text: str) -> None:
    assert parse(mended(text, (), Fix(FixKind.PLAIN)), "ds.json").value == {"a": 1}


@pytest.mark.parametrize(("end", "lines"), [("\n", 3), ("\r\n", 3)])
def test_a_comment_goes_with_its_line(end: str, lines: int) -> None:
    text = end.join(["{", "  // about a", '  "a": 1 /* b */', "}"])
    assert mended(text, (), Fix(FixKind.UNCOMMENT)) == end.join(["{", '  "a": 1', "}"])


ABOUT = """{
  // about a
  "a": 1, // of a
  /* about b */
  "b": {"x": 2} /* of b */, // more
  "c": 3 // of c
}
"""


@pytest.mark.parametrize(
    ("key", "left"),
    [
        ("a", ABOUT.replace('  "a": 1, // of a\n', "  // of a\n")),
        ("b", ABOUT.replace('  "b": {"x": 2} /* of b */, // more\n', "  /* of b */ // more\n")),
        ("c", ABOUT.replace("*/, // more", "*/ // more").replace('"c": 3 // of c', "// of c")),
    ],
)
def test_comments_around_a_member_that_goes_stay(key: str, left: str) -> None:
    assert mended(ABOUT, (key,), DELETE) == left


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_is_appended_comes_after_a_comment_about_the_last(end: str) -> None:
    text = end.join(["{", '  "s": {"k": 5},', '  "c": 3 // of c', "}"])
    moved = end.join(["{", '  "s": {},', '  "c": 3, // of c', '  "k": 5', "}"])
    assert mended(text, ("s", "k"), Fix(FixKind.MOVE, "")) == moved


def test_a_comment_in_an_empty_section_stays() -> None:
    text = '{"k": 5, "s": { /* none */ }}'
    assert mended(text, ("k",), Fix(FixKind.MOVE, "s")) == '{"s": {"k": 5 /* none */ }}'


@given(written, st.data())
def test_deleting_a_key_deletes_it_alone(pair: tuple[dict[str, Any], str], data: st.DataObject) -> None:
    value, text = pair
    if paths := members(value):
        path = data.draw(st.sampled_from(paths))
        assert json.loads(mended(text, path, DELETE)) == without(value, path)


@given(written, st.data())
def test_writing_a_value_writes_it_alone(pair: tuple[dict[str, Any], str], data: st.DataObject) -> None:
    value, text = pair
    if paths := members(value):
        path = data.draw(st.sampled_from(paths))
        node: Any = json.loads(mended(text, path, Fix(FixKind.WRITE, 7)))
        for part in path:
            node = node[part]
        assert node == 7


@given(written, st.data())
def test_moving_a_key_keeps_its_value(pair: tuple[dict[str, Any], str], data: st.DataObject) -> None:
    value, text = pair
    paths = [path for path in members(value) if len(path) > 1 and path[-1] not in value]
    if paths:
        path = data.draw(st.sampled_from(paths))
        node: Any = value
        for part in path:
            node = node[part]
        assert json.loads(mended(text, path, Fix(FixKind.MOVE, "")))[path[-1]] == node
