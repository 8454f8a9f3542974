"""Reading the history of a run while it grows, and keeping it small without losing a spike."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.rundir.record import StepRecord
from zlaunch.runs import history
from zlaunch.runs.history import LineReader, RunHistory, join_samples, join_steps, num_not_finite, span_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "steps.jsonl"


def reader(file: Path, most: int = 1000) -> "LineReader[StepRecord]":
    return LineReader(file, StepRecord, join_steps, most)


def add(file: Path, *lines: dict[str, Any]) -> None:
    with file.open("a") as opened:
        opened.writelines(json.dumps(line) + "\n" for line in lines)


def test_only_what_is_new_is_read(file: Path) -> None:
    one = reader(file)
    one.update()
    add(file, {"step": 1})
    one.update()
    file.write_text(f"{'x' * (len(file.read_text()) - 1)}\n")  # what was read is not read again
    add(file, {"step": 2})
    one.update()
    assert [line["step"] for line in one.lines] == [1, 2]


def test_half_a_line_waits_for_the_rest(file: Path) -> None:
    one = reader(file)
    file.write_text('{"step": 1}\n{"st')
    one.update()
    with file.open("a") as opened:
        opened.write('ep": 2}\n')
    one.update()
    assert ([line["step"] for line in one.lines], one.num_damaged) == ([1, 2], 0)


def test_a_damaged_line_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    history = RunHistory(tmp_path)
    (tmp_path / "steps.jsonl").write_bytes(
        b'{"step": 1}\n\xff\x00{"step"\n[1]\n{"step": 2, "loss": "high"}\n'
    )
    history.update()
    assert history.steps.lines == [{"step": 1}, {"step": 2}]
    assert history.troubles == ["`steps.jsonl` has damaged lines: 2"]


def test_a_line_as_long_as_a_disk_is_not_kept(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(20 << 20)
    one = reader(file)
    one.update()
    assert len(one._rest) <= 4 << 20


losses = st.floats(width=32) | st.none()


@given(st.lists(losses, min_size=1, max_size=60), st.integers(2, 9))
def test_joined_lines_have_the_extremes_and_the_count_of_all(values: list[float | None], most: int) -> None:
    one = LineReader(Path(), StepRecord, join_steps, most)
    lines = [
        {"step": at, "phases": {"forward": 1.0}, **({} if v is None else {"loss": v})}
        for at, v in enumerate(values)
    ]
    one._take("".join(json.dumps(line) + "\n" for line in lines).encode())
    assert len(one.lines) <= most
    finite = [value for value in values if value is not None and math.isfinite(value)]
    spans = [span for line in one.lines if (span := span_of(line, "loss")) is not None]
    assert min((low for low, _ in spans), default=None) == min(finite, default=None)
    assert max((high for _, high in spans), default=None) == max(finite, default=None)
    assert sum(line.get("count", 1) for line in one.lines) == len(values)
    assert sum(line["phases"]["forward"] for line in one.lines) == len(values)
    lost = sum(num_not_finite(line, "loss") for line in one.lines)
    assert lost == len([value for value in values if value is not None]) - len(finite)


def test_the_larger_memory_of_each_rank_is_kept() -> None:
    first = {"time": 1.0, "ranks": [{"rank": 0, "rss_bytes": 9, "gpu_used_bytes": None}]}
    second = {"time": 2.0, "ranks": [{"rank": 0, "rss_bytes": 5, "gpu_used_bytes": 7}]}
    joined = join_samples(first, second)  # type: ignore[arg-type]
    assert (joined["time"], joined["ranks"]) == (2.0, [{"rank": 0, "rss_bytes": 9, "gpu_used_bytes": 7}])


def test_the_most_memory_of_a_rank_is_known_after_samples_were_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_SAMPLES", 4)
    one = RunHistory(tmp_path)
    for sizes in ([5, 6, 5], [7, 9, 5]):
        add(tmp_path / "metrics.jsonl", *({"ranks": [{"rank": 0, "rss_bytes": size}]} for size in sizes))
        one.update()
    assert (len(one.samples.lines), one.peaks("rss_bytes")) == (3, {0: 9})
