from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.errors import WrongUsage
from zlaunch.job.spec import (
    Device,
    GpuChoice,
    Offload,
    Profile,
    override_text,
    parse_duration,
    parse_gpus,
    parse_offload,
    parse_override,
    parse_profile,
    script_path,
)

DEVICES: tuple[Device, ...] = ("none", "cpu", "nvme")

offload_texts = st.lists(
    st.sampled_from(["optimizer", "param", "cpu", "nvme", "none", ":", ",", " ", "CPU"]), max_size=7
).map("".join)
gpu_texts = st.text("0123456789, -²٣") | st.text()


@pytest.mark.parametrize(
    ("text", "offload"),
    [
        ("cpu", Offload(optimizer="cpu")),
        ("nvme", Offload(optimizer="nvme")),
        ("none", Offload(optimizer="none", param="none")),
        ("optimizer:cpu", Offload(optimizer="cpu", param="none")),
        ("param:nvme", Offload(optimizer="none", param="nvme")),
        ("param:nvme, optimizer:cpu", Offload(optimizer="cpu", param="nvme")),
    ],
)
def test_an_offload_is_one_word_or_a_word_for_each_part(text: str, offload: Offload) -> None:
    assert parse_offload(text) == offload


@pytest.mark.parametrize(
    "text", ["", "gpu", "CPU", "optimizer", "optimizer:", "weights:cpu", "cpu,nvme", "cpu,"]
)
def test_an_offload_that_makes_no_sense_is_wrong_usage(text: str) -> None:
    with pytest.raises(WrongUsage):
        parse_offload(text)


@pytest.mark.parametrize(("optimizer", "param"), list(product(DEVICES, DEVICES)))
def test_an_offload_is_read_as_it_was_written(optimizer: Device, param: Device) -> None:
    text = f"optimizer:{optimizer},param:{param}"
    assert parse_offload(text) == Offload(optimizer=optimizer, param=param)


@given(st.text() | offload_texts)
def test_any_text_is_an_offload_or_wrong_usage(text: str) -> None:
    with suppress(WrongUsage):
        parse_offload(text)


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("2", GpuChoice(count=2)),
        ("0,", GpuChoice(devices=(0,))),
        ("2,", GpuChoice(devices=(2,))),
        ("0,2", GpuChoice(devices=(0, 2))),
        ("3, 1", GpuChoice(devices=(3, 1))),
    ],
)
def test_gpus_are_a_count_or_devices(text: str, choice: GpuChoice) -> None:
    assert parse_gpus(text) == choice


@pytest.mark.parametrize("text", ["", "0", ",", "all", "-1", "1.5", "0,,1", "0-3", "1,1", "01,1", "9" * 5000])
def test_gpus_that_make_no_sense_are_wrong_usage(text: str) -> None:
    with pytest.raises(WrongUsage):
        parse_gpus(text)


@given(gpu_texts)
def test_any_text_is_a_choice_of_gpus_or_wrong_usage(text: str) -> None:
    with suppress(WrongUsage):
        parse_gpus(text)


@given(st.lists(st.integers(0, 99), min_size=1, unique=True))
def test_devices_are_read_as_they_were_written(devices: list[int]) -> None:
    text = ",".join(map(str, devices)) + ","
    assert parse_gpus(text) == GpuChoice(devices=tuple(devices))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e8", 100_000_000),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ("cpu", "cpu"),
        ('"3"', "3"),
        ("[0.9, 0.95]", [0.9, 0.95]),
        ("/a=b", "/a=b"),
        ("", ""),
    ],
)
def test_an_override_is_json_or_a_word(text: str, value: Any) -> None:
    assert repr(parse_override(f"a.b={text}")) == repr(("a.b", value))


def test_a_number_inside_an_override_is_whole_where_one_alone_would_be() -> None:
    assert repr(parse_override('a={"b": 2e8}')[1]) == "{'b': 200000000}"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_an_override_that_is_written_is_read_as_the_same(value: Any) -> None:
    assert parse_override(override_text("a.b", value)) == ("a.b", value)


@pytest.mark.parametrize("text", ["", "a", "=3", ".a=3", "a.=3", "a..b=3"])
def test_an_override_without_a_key_and_a_value_is_wrong_usage(text: str) -> None:
    with pytest.raises(WrongUsage):
        parse_override(text)


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000, "1e999", "-1e999"])
def test_a_monstrous_override_is_a_value_or_wrong_usage(value: str) -> None:
    with suppress(WrongUsage):
        parse_override(f"a={value}")


@given(st.text())
def test_any_text_is_an_override_or_wrong_usage(text: str) -> None:
    with suppress(WrongUsage):
        assert parse_override(text)[0] == text.partition("=")[0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3:30:00", 12600),
        ("1-00:00:00", 86400),
        ("2-12:30", 217800),
        ("2-00", 172800),
        ("5:30", 330),
        ("90m", 5400),
        ("2h", 7200),
        ("1.5h", 5400),
        ("12600", 12600),
    ],
)
def test_a_time_is_written_as_a_clock_or_with_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text, "--time-limit") == seconds


@given(st.text("0123456789:-.smhd ") | st.text())
def test_any_text_is_a_time_or_wrong_usage(text: str) -> None:
    with suppress(WrongUsage):
        assert parse_duration(text, "--time-limit") > 0


def test_a_script_that_looks_like_an_option_is_named_by_its_whole_path() -> None:
    assert [script_path("./-s.py"), script_path("./s.py")] == [Path.cwd() / "-s.py", Path("s.py")]


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        ("3", Profile(3, 3)),
        ("10-12", Profile(10, 12)),
        ("1-100@3,0,3", Profile(1, 100, (0, 3))),
        ("10@all", Profile(10, 10, None)),
        ("nsys", Profile(None, None, with_nsys=True)),
        ("nsys@all", Profile(None, None, None, with_nsys=True)),
        ("nsys:10-12@1", Profile(10, 12, (1,), with_nsys=True)),
    ],
)
def test_steps_and_ranks_to_profile_are_read(text: str, profile: Profile) -> None:
    assert parse_profile(text) == profile


@pytest.mark.parametrize(
    "text", ["", "x", "0", "3-2", "1-101", "1-", "3@", "3@x", "3@0,", "-1", "3@-1", "nsys3", "nsys:", "@0"]
)
def test_what_is_no_steps_to_profile_is_refused_with_what_to_type(text: str) -> None:
    with pytest.raises(WrongUsage) as refused:
        parse_profile(text)
    assert "--profile 10-12" in str(refused.value.hint)
