import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.asking import LLAMA, forecast
from zlaunch.estimate import forecast_cache
from zlaunch.estimate.forecast import Resume
from zlaunch.estimate.forecast_cache import ForecastCache, key_of
from zlaunch.estimate.workload import Lora, Workload
from zlaunch.files import cache_directory

ASKED = Workload(
    model=LLAMA,
    ds_config={"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
    world_size=8,
    ranks_per_host=8,
    seq_len=256,
)
TOLD = forecast(20.0, parameters=7, flops=1.5)


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def test_what_was_kept_is_found_and_says_so(tmp_path: Path) -> None:
    ForecastCache(tmp_path / "new" / "place").keep(ASKED, TOLD)
    assert ForecastCache(tmp_path / "new" / "place").find(ASKED) == replace(TOLD, kept=True)


@pytest.mark.parametrize(
    "other",
    [
        replace(ASKED, seq_len=512),
        replace(ASKED, rank=7),
        replace(ASKED, lora=Lora(8)),
        replace(ASKED, model={**LLAMA, "num_hidden_layers": 3}),
        replace(ASKED, ds_config={**ASKED.ds_config, "zero_optimization": {"stage": 3}}),
    ],
)
def test_another_question_is_not_answered(other: Workload, tmp_path: Path) -> None:
    cache = ForecastCache(tmp_path)
    cache.keep(ASKED, TOLD)
    assert cache.find(other) is None


def test_the_order_of_keys_does_not_matter(tmp_path: Path) -> None:
    cache = ForecastCache(tmp_path)
    cache.keep(ASKED, TOLD)
    assert cache.find(replace(ASKED, model=dict(reversed(LLAMA.items())))) is not None


def test_another_release_is_another_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(ASKED)
    monkeypatch.setattr(forecast_cache, "_releases", lambda _: {"deepspeed": "99.0"})
    assert key_of(ASKED) != before


def test_other_sources_of_the_rehearsal_are_another_question(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(ASKED)
    monkeypatch.setattr(forecast_cache, "_SOURCES", ("memory/*.py",))
    assert key_of(ASKED) != before


def test_changed_code_of_a_model_is_another_question(tmp_path: Path) -> None:
    code = tmp_path / "modeling.py"
    code.write_text("layers = 1\n")
    asked = replace(ASKED, remote_code=str(tmp_path))
    before = key_of(asked)
    code.write_text("layers = 2\n")
    forecast_cache._digest.cache_clear()  # as in the next process
    assert key_of(asked) != before


def test_the_code_of_a_model_is_read_once_in_a_process(tmp_path: Path) -> None:
    (tmp_path / "modeling.py").write_text("layers = 1\n")
    asked = replace(ASKED, remote_code=str(tmp_path))
    before = key_of(asked)
    (tmp_path / "modeling.py").unlink()
    assert key_of(replace(asked, rank=7)) != key_of(asked) == before


@pytest.mark.parametrize(
    "told",
    [
        replace(TOLD, method="closed form", why_not_rehearsed="broken"),
        replace(TOLD, late_error="gave up"),
        replace(TOLD, resume=Resume(None, {}, error="no space left on device")),
        replace(TOLD, resume=Resume(None, {}, why_not_rehearsed="the rehearsal ended by SIGKILL")),
    ],
    ids=["closed form", "late error", "resuming failed", "resuming was killed"],
)
def test_only_a_rehearsal_that_came_to_its_end_is_kept(told: object, tmp_path: Path) -> None:
    ForecastCache(tmp_path).keep(ASKED, told)  # type: ignore[arg-type]
    assert files(tmp_path) == []


def _other_key(text: str) -> str:
    return json.dumps({**json.loads(text), "key": "0" * 64})


def _without_phases(text: str) -> str:
    read = json.loads(text)
    del read["forecast"]["phases"]
    return json.dumps(read)


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:-9], lambda _: "", lambda _: "[]", lambda _: "\0\xff", _other_key, _without_phases],
    ids=["cut off", "empty", "a list", "not text", "another key", "a part missing"],
)
def test_what_is_damaged_or_foreign_is_no_answer(damage: Callable[[str], str], tmp_path: Path) -> None:
    cache = ForecastCache(tmp_path)
    cache.keep(ASKED, TOLD)
    (file,) = files(tmp_path)
    file.write_bytes(damage(file.read_text()).encode("latin-1"))
    assert cache.find(ASKED) is None
    cache.keep(ASKED, TOLD)
    assert cache.find(ASKED) is not None


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_cannot_be_written_is_no_error(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine\n")
    cache = ForecastCache(tmp_path / place)
    cache.keep(ASKED, TOLD)
    assert cache.find(ASKED) is None
    assert (tmp_path / "file").read_text() == "mine\n"


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    asked = [replace(ASKED, rank=rank) for rank in range(3)]
    plenty = ForecastCache(tmp_path)
    for age, one in enumerate(asked[:2]):
        plenty.keep(one, TOLD)
        (new,) = [file for file in files(tmp_path) if file.stat().st_mtime > 10]
        os.utime(new, (age, age))
    assert plenty.find(asked[0]) is not None  # used now
    room = 2 * max(file.stat().st_size for file in files(tmp_path)) + 10
    ForecastCache(tmp_path, most_bytes=room).keep(asked[2], TOLD)
    assert [plenty.find(one) is not None for one in asked] == [True, False, True]


def test_what_a_killed_process_left_half_written_is_deleted(tmp_path: Path) -> None:
    (tmp_path / ".0.forecast.json.partial").write_text("{")
    ForecastCache(tmp_path, most_bytes=0).keep(ASKED, TOLD)
    assert files(tmp_path) == []


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x" * 1000)
    ForecastCache(tmp_path, most_bytes=0).keep(ASKED, TOLD)
    assert files(tmp_path) == [tmp_path / "mine.txt"]


@pytest.mark.parametrize(
    "environ", [{"ZLAUNCH_CACHE": "off"}, {"ZLAUNCH_CACHE": "OFF"}, {"XDG_CACHE_HOME": "~no-such-user/cache"}]
)
def test_nothing_is_kept_where_that_is_switched_off_or_there_is_no_home(environ: dict[str, str]) -> None:
    cache = ForecastCache(cache_directory(environ))
    cache.keep(ASKED, TOLD)
    assert cache.find(ASKED) is None


def test_the_cache_is_where_the_user_keeps_caches() -> None:
    assert cache_directory({"ZLAUNCH_CACHE": "~/mine"}) == Path.home() / "mine"
    assert cache_directory({"ZLAUNCH_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_directory({"XDG_CACHE_HOME": "/b"}) == Path("/b/zlaunch")
    assert cache_directory({}) == Path.home() / ".cache" / "zlaunch"
