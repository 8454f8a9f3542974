from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.making import WRITTEN, json_objects, nested_objects
from zlaunch.config.resolve.values import Sourced, Values
from zlaunch.dsconfig.text.document import KeyPath
from zlaunch.job.source import Source

UPPER, LOWER, FLAG = (Source.option(text) for text in ("--upper", "--lower", "--flag"))
FILE = Values.of({"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": True}}, WRITTEN)
STAGE: KeyPath = ("zero_optimization", "stage")

paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple)


def _values(config: dict[str, Any]) -> Values:
    return Values.of(config, WRITTEN)


def test_a_value_is_found_by_its_path() -> None:
    assert FILE[STAGE] == 2


def test_an_absent_value_is_none() -> None:
    assert FILE[("bf16", "enabled")] is None


def test_every_value_remembers_its_source() -> None:
    assert FILE.put(STAGE, 3, Source.option("--stage")).sources() == {
        "train_batch_size": "ds.json:1",
        "zero_optimization.stage": "`--stage`",
        "zero_optimization.overlap_comm": "ds.json:1",
    }


def test_a_section_is_there_if_anything_in_it_is() -> None:
    assert FILE.has(("zero_optimization",))


def test_a_key_is_not_there_because_of_one_that_begins_alike() -> None:
    assert not FILE.has(("zero",))


def test_a_value_stays_in_its_place_when_it_changes() -> None:
    assert list(FILE.put(("train_batch_size",), 16, FLAG).config()) == list(FILE.config())


def test_putting_below_a_value_replaces_the_value() -> None:
    assert _values({"a": 1}).put(("a", "b"), 2, FLAG).config() == {"a": {"b": 2}}


def test_putting_above_a_value_replaces_the_value() -> None:
    assert _values({"a": {"b": 2, "c": 3}}).put(("a",), 1, FLAG).config() == {"a": 1}


def test_putting_below_an_empty_section_fills_it() -> None:
    assert _values({"a": {}}).put(("a", "b"), 2, FLAG).config() == {"a": {"b": 2}}


def test_leaving_out_a_section_leaves_out_all_of_it() -> None:
    assert FILE.without(("zero_optimization",)).config() == {"train_batch_size": 8}


def test_autos_are_named_by_their_paths() -> None:
    assert _values({"a": "auto", "b": {"c": "auto", "d": 1}, "e": ["auto"]}).autos() == [("a",), ("b", "c")]


@given(json_objects | nested_objects)
def test_flattening_and_nesting_changes_nothing(config: dict[str, Any]) -> None:
    assert _values(config).config() == config


@given(json_objects | nested_objects)
def test_flattening_keeps_the_order(config: dict[str, Any]) -> None:
    assert repr(_values(config).config()) == repr(config)


@given(nested_objects, nested_objects)
def test_a_later_layer_wins(upper: dict[str, Any], lower: dict[str, Any]) -> None:
    both = Values.of(upper, UPPER).over(Values.of(lower, LOWER))
    assert all(both[path] == leaf.value for path, leaf in _values(upper).leaves.items())


@given(nested_objects, nested_objects)
def test_every_value_of_two_layers_is_one_of_theirs(upper: dict[str, Any], lower: dict[str, Any]) -> None:
    layers = {UPPER: Values.of(upper, UPPER), LOWER: Values.of(lower, LOWER)}
    both = layers[UPPER].over(layers[LOWER])
    assert all(layers[leaf.source].leaves[path] == leaf for path, leaf in both.leaves.items())


@given(nested_objects, nested_objects)
def test_what_a_later_layer_does_not_touch_stays(upper: dict[str, Any], lower: dict[str, Any]) -> None:
    apart = {f"{key}-lower": value for key, value in lower.items()}
    assert _values(upper).over(_values(apart)).config() == {**apart, **upper}


@given(nested_objects)
def test_a_layer_over_itself_is_itself(config: dict[str, Any]) -> None:
    assert _values(config).over(_values(config)) == _values(config)


@given(nested_objects, nested_objects)
def test_layers_nest_into_an_object_without_loss(upper: dict[str, Any], lower: dict[str, Any]) -> None:
    both = _values(upper).over(_values(lower))
    assert _values(both.config()).leaves.keys() == both.leaves.keys()


@given(nested_objects, paths)
def test_what_is_put_is_there(config: dict[str, Any], path: KeyPath) -> None:
    assert _values(config).put(path, 7, FLAG).leaves[path] == Sourced(7, FLAG)


@given(nested_objects, paths)
def test_what_is_left_out_is_gone(config: dict[str, Any], path: KeyPath) -> None:
    assert not _values(config).without(path).has(path)
