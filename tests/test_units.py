import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.units import (
    brief,
    brief_range,
    count,
    decimal,
    duration,
    gib,
    in_gib,
    memory,
    plural,
    signed_percent,
    whole,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (42.4, "42 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7620, "2 h 07 min"),
        (100_000, "27 h 46 min"),
    ],
)
def test_a_time_is_written_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e6))
def test_no_part_of_a_time_reaches_sixty(seconds: float) -> None:
    units = {"s": 60, "min": 60, "h": 1000}
    words = duration(seconds).split()
    assert all(int(amount) < units[unit] for amount, unit in zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(-0.3, 0, "0 %"), (0.04, 1, "0.0 %"), (-0.06, 1, "-0.1 %"), (3.4, 0, "+3 %"), (-120.0, 0, "-120 %")],
)
def test_a_difference_of_nothing_has_no_sign(value: float, digits: int, text: str) -> None:
    assert signed_percent(value, digits) == text


@pytest.mark.parametrize("value", ["auto", "8", 8.0, True, None])
def test_only_a_whole_number_is_one(value: object) -> None:
    assert whole(value) is None


@pytest.mark.parametrize(("count", "text"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks")])
def test_a_noun_follows_its_count(count: int, text: str) -> None:
    assert plural(count, "rank") == text


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.00000022, "0.22 µs"),
        (0.0064, "6.4 ms"),
        (0.094, "94 ms"),
        (0.34, "0.34 s"),
        (8.14, "8.1 s"),
        (9.96, "10 s"),
        (142.3, "142 s"),
    ],
)
def test_a_short_time_has_two_digits_that_matter(seconds: float, written: str) -> None:
    assert brief(seconds) == written


@pytest.mark.parametrize(
    ("least", "most", "written"),
    [
        (0.000035, 0.000095, "0.035 ms to 0.095 ms"),
        (0.0064, 25.0, "0.0064 s to 25 s"),
        (0.0, 0.2, "0 s to 0.20 s"),
        (8.14, 8.12, "8.1 s"),
    ],
)
def test_a_range_of_times_has_one_unit(least: float, most: float, written: str) -> None:
    assert brief_range(least, most) == written


@pytest.mark.parametrize(
    ("number", "written"), [(512, "512"), (125e6, "125 M"), (8.03e9, "8.03 B"), (1.04e12, "1.04 T")]
)
def test_a_large_count_has_three_digits_that_matter(number: float, written: str) -> None:
    assert count(number) == written


def test_memory_is_written_in_gib() -> None:
    assert gib(3 << 29) == "1.5"
    assert gib(1134.4 * (1 << 30)) == "1134"


@pytest.mark.parametrize(
    ("num_bytes", "written"),
    [
        (0, "0"),
        (1000, "<1 MiB"),
        (1 << 20, "1 MiB"),
        (102 << 20, "102 MiB"),
        (103 << 20, "0.10"),
        (1 << 29, "0.50"),
        (1 << 30, "1.0"),
        (1134.4 * (1 << 30), "1134"),
    ],
)
def test_an_amount_that_would_round_to_nothing_is_in_mib(num_bytes: float, written: str) -> None:
    assert in_gib(num_bytes) == written


def test_an_amount_alone_names_its_unit() -> None:
    assert [memory(size) for size in (0, 35 << 20, 3 << 29)] == ["0 GiB", "35 MiB", "1.5 GiB"]


@given(st.integers(1, 1 << 50))
def test_an_amount_is_read_back_within_six_per_cent(num_bytes: int) -> None:
    text, unit = memory(num_bytes).split()
    size = float(text.removeprefix("<")) * {"GiB": 1 << 30, "MiB": 1 << 20}[unit]
    assert abs(size - num_bytes) <= max(0.06 * num_bytes, 1 << 20)


@pytest.mark.parametrize(
    ("amount", "written"),
    [(0, "0.0 kB"), (3.24e6, "3.2 MB"), (41.4e9, "41.4 GB"), (1.2e12, "1.2 TB"), (1.2e15, "1.2 PB")],
)
def test_a_decimal_amount_has_the_prefix_that_keeps_it_short(amount: float, written: str) -> None:
    assert decimal(amount, "B") == written
