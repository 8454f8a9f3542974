"""The contents of the page about a run."""

import json
import math
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded_run import GIB, SECONDS, SECRET, SPIKE, write_run
from zlaunch.cli.views.dump import to_json
from zlaunch.runs import history
from zlaunch.runs.history import RunHistory
from zlaunch.runs.report import FAR_SHARE, MOST_NAMED, report_of, standing_out
from zlaunch.runs.store import load_run

STEPS = 200


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "20260101-120000-train", STEPS)


@pytest.fixture
def own(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root, tmp_path / root.name))


def report(root: Path, **more: Any) -> dict[str, Any]:
    past = RunHistory(root)
    past.update()
    found: dict[str, Any] = json.loads(to_json(report_of(load_run(root), past, **more)))
    return found


def test_every_step_has_its_numbers(root: Path) -> None:
    past = report(root)["history"]
    assert past["step"][2:] == list(range(1, STEPS + 1))
    assert past["numbers"]["step_loss"][2 + STEPS * 6 // 10 - 1] == SPIKE
    assert past["numbers"]["step_loss"][2 + STEPS * 7 // 10 - 1] == {"lost": 1}
    assert sum(loss is not None for loss in past["numbers"]["loss"]) == STEPS // 10


def test_throughput_is_that_of_all_ranks(root: Path) -> None:
    past = report(root)["history"]
    assert past["unit"] == "tokens/s"
    assert past["rate"][10] == pytest.approx(8 * 8192 / SECONDS, rel=1e-3)


def test_without_tokens_throughput_counts_samples(own: Path) -> None:
    lines = [{"step": step, "time": 2.0 * step} for step in (1, 2, 4)]
    (own / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    past = report(own)["history"]
    assert (past["unit"], past["rate"]) == ("samples/s", [None, 32.0, 32.0])


def test_the_step_that_a_killed_script_had_not_written_yet_comes_from_its_heartbeat(own: Path) -> None:
    beat = {"step": STEPS + 1, "time": 1.7e9, "loss": 1.5, "loss_step": STEPS + 1}
    (own / "ranks" / "rank-0.pulse.json").write_text(json.dumps(beat))
    last = report(own)["history"]["last"]
    assert (last["step"], last["numbers"]) == ([STEPS + 1], {"loss": [1.5]})
    (own / "ranks" / "rank-0.pulse.json").write_text(json.dumps({**beat, "step": STEPS}))
    assert report(own)["history"]["last"] is None


def test_the_time_of_each_phase_is_added_up(root: Path) -> None:
    found = report(root)
    assert found["phases"]["saving"] == 60.0
    assert found["phases"]["forward"] == pytest.approx(0.35 * STEPS)
    assert sum(sum(spent.values()) for _, spent in found["timeline"]) == pytest.approx(
        sum(found["phases"].values())
    )


def test_the_plan_stands_beside_what_was(root: Path) -> None:
    rows = {row["name"]: (row["planned"], row["real"], row["differs"]) for row in report(root)["plan"]}
    assert rows["ZeRO stage"] == (3, 2, True)
    assert rows["global batch"] == (64, 64, False)
    assert rows["optimizer"] == ("AdamW", "DeepSpeedCPUAdam", False)


def test_each_value_of_the_ds_config_has_its_source_and_what_deepspeed_read(root: Path) -> None:
    rows = {row["name"]: row for row in report(root)["config"]}
    assert rows["zero_optimization.stage"] == {
        "name": "zero_optimization.stage", "value": 3, "source": "`--stage`", "used": 2, "differs": True,
    }  # fmt: skip
    filled = rows["optimizer.params.lr"]
    assert (filled["value"], filled["used"], filled["differs"]) == ("auto", 3e-4, False)
    assert report(root)["open"] == {"optimizer.params.lr": "the Trainer's `--learning_rate`"}


def test_a_secret_is_in_no_value(root: Path) -> None:
    found = report(root)
    assert SECRET not in json.dumps([found["config"], found["differences"]])


def test_arguments_without_effect_are_those_of_the_run_that_is_shown(root: Path) -> None:
    (ignored,) = report(root)["ignored"]
    assert ignored.startswith("`--optim adafactor` has no effect: the ds_config has an `optimizer` section")


def test_the_memory_of_few_ranks_has_a_column_for_each(tmp_path: Path) -> None:
    gpu = report(write_run(tmp_path / "few", STEPS, ranks=2))["samples"]["gpu"]
    assert (gpu["band"], list(gpu["ranks"])) == ({}, ["rank 0", "rank 1"])
    assert max(gpu["ranks"]["rank 1"]) == 64.5 * GIB


def test_the_memory_of_many_ranks_is_a_band_and_those_that_stand_out_of_it(tmp_path: Path) -> None:
    found = report(write_run(tmp_path / "many", STEPS, ranks=66))
    gpu, host = found["samples"]["gpu"], found["samples"]["host"]
    assert {name: max(column) / GIB for name, column in gpu["band"].items()} == {
        "least": 64, "median": 65.5, "most": 72.5,
    }  # fmt: skip
    assert list(gpu["ranks"]) == ["rank 37 (w9)"]
    assert host["ranks"] == {}
    assert (len(found["ranks"]), found["ranks"][0]["rank"]) == (64, 3)


@given(st.dictionaries(st.integers(0, 99), st.integers(1, 1 << 40), min_size=1))
def test_few_ranks_stand_out_and_only_some_that_are_far_from_the_median(peaks: dict[int, int]) -> None:
    named, middle = standing_out(peaks), statistics.median(peaks.values())
    assert len(named) <= MOST_NAMED
    assert all(abs(peaks[rank] - middle) > FAR_SHARE * middle for rank in named)
    assert 2 * len(named) < len(peaks)


def test_of_a_failed_run_the_log_of_the_rank_that_failed_first_is_shown(own: Path) -> None:
    traceback = "Traceback:\n  File x\nValueError: no text"
    (own / "ranks" / "rank-3.error.json").write_text(json.dumps({"traceback": traceback}))
    bars = "\x1b[31m 10%|#\r 20%|##\x1b[0m\n"
    printed = "".join(f"step {step}\n" for step in range(99)) + f"{bars}HF_TOKEN={SECRET}99\n"
    (own / "logs" / "rank-3.log").write_text(printed)
    log = report(own)["log"]
    assert (log["rank"], log["file"], log["traceback"]) == (3, "logs/rank-3.log", traceback)
    lines = log["lines"].splitlines()
    assert (len(lines), lines[0], lines[-2]) == (30, "step 71", " 20%|##")
    assert SECRET not in log["lines"]


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_a_traceback_that_the_log_ends_with_is_shown_once(prefix: str, own: Path) -> None:
    traceback = "Traceback:\n  File x\nValueError: no text"
    (own / "ranks" / "rank-3.error.json").write_text(json.dumps({"traceback": traceback}))
    printed = "".join(f"{prefix}{line}\n" for line in traceback.splitlines())
    (own / "logs" / "rank-3.log").write_text(f"a step\n{printed}")
    assert report(own)["log"]["traceback"] == ""


def test_a_running_run_shows_what_its_last_sample_says_of_the_rest(own: Path) -> None:
    (own / "how-it-ended.json").unlink()
    figures = {"seconds_left": 70.0, "seconds_per_step": 1.3, "tokens_per_second": 5e4}
    with (own / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps({"time": 1.7e9, **figures}) + "\n")
    found = report(own)
    assert found["state"] == "running"
    assert {name: found["now"][name] for name in figures} == figures


def test_a_run_that_finished_shows_no_log(own: Path) -> None:
    (own / "how-it-ended.json").write_text(json.dumps({"how": "finished", "exit_status": 0}))
    (own / "logs" / "rank-3.log").write_text("a step\n")
    assert report(own)["log"] is None


def test_a_page_that_has_some_steps_gets_the_others(root: Path) -> None:
    whole = report(root)
    more = report(root, seen=((0, 150), (0, 10)))
    assert (more["history"]["start"], more["history"]["step"][0]) == (150, whole["history"]["step"][150])
    assert more["history"]["rate"] == whole["history"]["rate"][150:]
    assert more["samples"]["host"]["band"]["most"] == whole["samples"]["host"]["band"]["most"][10:]


def test_a_page_whose_steps_were_joined_since_gets_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_STEPS", 50)
    past = report(root, seen=((0, 40), (0, 0)))["history"]
    assert (past["start"], past["epoch"] > 0, len(past["step"]) <= 50) == (0, True, True)
    spans = [one for one in past["numbers"]["step_loss"] if isinstance(one, dict)]
    assert max(one.get("high", -math.inf) for one in spans) == SPIKE
    assert sum(one["lost"] for one in spans) == 1


@pytest.mark.parametrize(
    "left", [[], ["job.json"], ["job.json", "ranks"], ["how-it-ended.json", "steps.jsonl"], ["ds_config.json", "provenance.json"]]
)  # fmt: skip
def test_a_run_with_missing_files_is_described(left: list[str], root: Path, tmp_path: Path) -> None:
    (own := tmp_path / "run").mkdir()
    for name in left:
        (shutil.copytree if (root / name).is_dir() else shutil.copy)(root / name, own / name)
    assert report(own)["id"] == "run"


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff\x00", b"[]", b'{"ranks": [{"rank": null}], "phases": [7], "step": "x"}\n']
)
def test_a_run_with_damaged_files_is_described(text: bytes, own: Path) -> None:
    for file in own.rglob("*.json*"):
        file.write_bytes(text)
    assert report(own)["id"] == own.name


def test_the_sample_of_a_rank_that_has_just_ended_is_left_out(own: Path) -> None:
    samples = [
        {"time": 1.7e9 + at, "ranks": [{"rank": 0, "rss_bytes": size}]} for at, size in enumerate((5, 0))
    ]
    (own / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in samples))
    assert report(own)["samples"]["host"]["ranks"] == {"rank 0 (w0)": [5, None]}


odd = (
    st.none()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.floats() | st.none(), max_size=3)
)
odd_lines = st.lists(
    st.dictionaries(
        st.sampled_from(["step", "time", "count", "loss", "step_loss", "tokens", "range", "not_finite", "phases", "ranks"]),
        odd | st.dictionaries(st.sampled_from(["loss", "forward", "rank"]), odd, max_size=2),
        max_size=6,
    ),
    max_size=6,
)  # fmt: skip


@given(odd_lines, st.integers(1, 3))
def test_whatever_the_lines_of_a_history_hold_they_are_shown_as_json(
    root: Path, lines: list[dict[str, Any]], most: int
) -> None:
    past = RunHistory(root)
    past.steps._most = past.samples._most = most
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    past.steps._take(text)
    past.samples._take(text)
    json.loads(to_json(report_of(load_run(root), past)))


def test_a_damaged_record_is_named_on_a_page_too(own: Path) -> None:
    (own / "job.json").write_text("NaN")
    run = load_run(own)
    assert any("job.json" in trouble for trouble in run.troubles)
