"""Frozen dataclasses of zlaunch behave like those of the standard library."""

import dataclasses
import pickle
from dataclasses import field, replace

import pytest

from zlaunch.frozen import dataclass


@dataclass(frozen=True)
class Plain:
    number: int
    text: str = field(default="", compare=False)
    hidden: float = field(default=0.0, repr=False)


@dataclass(frozen=True, slots=True)
class Slotted:
    number: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Derived(Plain):
    more: tuple[int, ...] = ()


@dataclass(frozen=True)
class Own:  # noqa: PLW1641 - the decorator adds it
    number: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __repr__(self) -> str:
        return "own"


@dataclass
class Mutable:
    number: int


def test_fields_that_count_decide_whether_values_are_equal() -> None:
    assert Plain(1, "a") == Plain(1, "b")
    assert Plain(1, hidden=1.0) != Plain(1)
    assert Slotted(1, ("a",)) == Slotted(1, ("a",))
    assert Plain(1) != Derived(1)


def test_equal_values_are_one_key() -> None:
    assert len({Plain(1, "a"), Plain(1, "b"), Plain(2)}) == 2
    assert {Slotted(1): "x"}[Slotted(1)] == "x"


def test_a_value_is_shown_as_it_is_made() -> None:
    assert repr(Plain(1, "a")) == "Plain(number=1, text='a')"
    assert repr(Derived(1, more=(2,))) == "Derived(number=1, text='', more=(2,))"


def test_methods_of_a_class_itself_stay() -> None:
    assert (repr(Own(1)), Own(1) == Own(2), len({Own(1), Own(1)})) == ("own", True, 1)


@pytest.mark.parametrize("value", [Plain(1, "a", 2.0), Slotted(1, ("a",)), Derived(1, more=(2,))])
def test_a_value_can_be_replaced_listed_and_pickled(value: Plain | Slotted) -> None:
    assert replace(value, number=3).number == 3
    assert dataclasses.asdict(value)["number"] == 1
    assert pickle.loads(pickle.dumps(value)) == value


def test_a_dataclass_that_is_not_frozen_has_no_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Mutable(1))
