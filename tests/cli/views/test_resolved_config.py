"""Curves in plain text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.cli.views.resolved_config import plot


def test_a_falling_line_falls_from_corner_to_corner() -> None:
    assert plot(lambda step: 1.0 - step / 4, 5, ("first", "last"), (20, 3)) == [
        "1 |********",
        "  |        ****",
        "0 |            ********",
        "  +--------------------",
        "   first           last",
    ]


def test_a_constant_is_a_line_at_the_top() -> None:
    assert plot(lambda _: 0.5, 100, ("", ""), (10, 3))[0] == "0.5 |**********"


def test_nothing_but_zero_is_a_line_at_the_bottom() -> None:
    assert plot(lambda _: 0.0, 100, ("", ""), (10, 3))[2] == "0 |**********"


def test_a_peak_between_two_columns_is_drawn() -> None:
    assert "*" in plot(lambda step: float(step == 17), 50, ("", ""), (5, 4))[0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200), st.integers(1, 70), st.integers(2, 12))
def test_a_plot_is_never_wider_than_it_was_asked_to_be(rates: list[float], columns: int, rows: int) -> None:
    drawn = plot(rates.__getitem__, len(rates), ("", ""), (columns, rows))
    assert all(len(line.partition("|")[2]) <= columns for line in drawn)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200), st.integers(1, 70))
def test_every_column_has_a_mark(rates: list[float], columns: int) -> None:
    drawn = [
        line.partition("|")[2].ljust(columns)
        for line in plot(rates.__getitem__, len(rates), ("", ""), (columns, 6))[:6]
    ]
    assert all("*" in column for column in zip(*drawn, strict=True))


@pytest.mark.parametrize("num_steps", [1, 2, 59, 60, 61, 10_000_000])
def test_any_number_of_steps_can_be_drawn(num_steps: int) -> None:
    assert len(plot(float, num_steps, ("", ""), (60, 10))) == 12
