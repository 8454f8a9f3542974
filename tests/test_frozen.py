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


@dataclass(frozen=True)
class Fresh:
    names: list[str] = field(default_factory=list)
    number: int = 0


@dataclass(frozen=True)
class Checked:
    number: int
    unit: str = field(default="B", init=False)

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("less than nothing")


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


def test_each_value_has_a_default_of_its_own_if_the_field_makes_one() -> None:
    first, second = Fresh(), Fresh(number=1)
    assert (first.names, second.names) == ([], [])
    assert first.names is not second.names
    assert Fresh(["a"]).names == ["a"]


def test_a_field_that_is_no_argument_has_its_default() -> None:
    assert Checked(1).unit == "B"
    with pytest.raises(TypeError, match="unit"):
        Checked(1, unit="KiB")  # type: ignore[call-arg]


def test_what_follows_the_construction_is_called_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="less than nothing"):
            Checked(-1)


@pytest.mark.parametrize("wrong", [{}, {"number": 1, "other": 2}], ids=["missing", "unknown"])
def test_a_wrong_argument_is_refused_by_its_name(wrong: dict[str, int]) -> None:
    made: type = Plain
    with pytest.raises(TypeError, match=r"Plain\.__init__\(\) .*'(number|other)'"):
        made(**wrong)


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
