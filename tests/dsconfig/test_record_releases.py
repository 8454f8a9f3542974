"""What the recordings of single releases become when they are put together."""

import json
from typing import Any

import pytest

from tools.record_releases import merge, to_json


def recording(
    sections: dict[str, str] | None = None, refused: tuple[str, ...] = (), **keys: Any
) -> dict[str, Any]:
    return {"version": "1.0.0", "keys": keys, "sections": sections or {}, "refused": list(refused)}


def life(*defaults: Any) -> Any:
    """Tell the life of a key with these defaults in releases 1.0, 1.1 and so on."""
    return merge({f"1.{number}": recording(key=default) for number, default in enumerate(defaults)})["keys"][
        "key"
    ]


def test_a_key_that_came_says_since_when() -> None:
    table = merge({"1.0": recording(), "1.1": recording(key=None)})
    assert table["keys"] == {"key": {"since": "1.1"}}


def test_a_key_that_went_says_until_when() -> None:
    table = merge({"1.0": recording(key=None), "1.1": recording()})
    assert table["keys"] == {"key": {"until": "1.0"}}


def test_a_key_that_comes_back_is_refused() -> None:
    with pytest.raises(ValueError, match="`key` was removed and added again"):
        merge({"1.0": recording(key=1), "1.1": recording(), "1.2": recording(key=1)})


def test_a_default_stands_where_it_changed() -> None:
    assert life(1, 1, 2, 2) == {"defaults": {"1.0": 1, "1.2": 2}}


def test_a_key_without_a_default_says_nothing() -> None:
    assert life(None, None) == {}


def test_a_number_written_otherwise_is_no_change() -> None:
    assert life(0, 0.0) == {"defaults": {"1.0": 0}}


def test_false_is_another_default_than_0() -> None:
    assert life(0, False) == {"defaults": {"1.0": 0, "1.1": False}}


def test_a_section_stands_where_its_kind_changed() -> None:
    kinds = ("lenient", "lenient", "closed")
    table = merge({f"1.{number}": recording({"fp16": kind}) for number, kind in enumerate(kinds)})
    assert table["sections"] == {"fp16": {"1.0": "lenient", "1.2": "closed"}}


def test_a_refused_key_says_since_when() -> None:
    table = merge(
        {"1.0": recording(), "1.1": recording(refused=("amp",)), "1.2": recording(refused=("amp",))}
    )
    assert table["refused"] == {"amp": "1.1"}


def test_the_table_has_one_line_for_each_key_in_order() -> None:
    text = to_json(merge({"1.0": recording(b=1, a=2)}))
    assert [line.strip() for line in text.splitlines() if "defaults" in line] == [
        '"a": {"defaults": {"1.0": 2}},',
        '"b": {"defaults": {"1.0": 1}}',
    ]


def test_the_table_is_strict_json() -> None:
    table = merge({"1.0": recording(key=1.5)})
    assert json.loads(to_json(table)) == table
