"""What a rank reads at each end of a step."""

import timeit
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zlaunch.rundir import control
from zlaunch.rundir.layout import RunDir
from zlaunch.worker.hook.engine_save import EngineSaver, _LastSave, _name_at_step, _updated
from zlaunch.worker.hook.save_request import SaveRequest


def test_only_the_rank_that_has_ended_this_step_saves(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    request = SaveRequest(run_dir.save_at)
    assert request.at(0) is None
    control.write_save_at(run_dir, None)
    assert request.at(0) is None
    control.write_save_at(run_dir, 12, "/data/my model é")
    assert [request.at(step) is None for step in (1, 11, 13, 120)] == [True] * 4
    assert request.at(12) == (12, "/data/my model é")


@pytest.mark.parametrize("text", ["", "12", "12 /data", "x /data\n", "-1\n", "\n"])
def test_half_a_request_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "save-at").write_text(text)
    assert SaveRequest(tmp_path / "save-at").at(12) is None


def test_looking_at_each_step_takes_microseconds(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    control.write_save_at(run_dir, None)
    request = SaveRequest(run_dir.save_at)
    assert min(timeit.repeat(lambda: request.at(7), number=500, repeat=20)) / 500 < 20e-6


def test_what_has_counted_steps_in_the_state_of_a_script_is_brought_up() -> None:
    then, now = (10, 40, 320, 9, 39, 319), (13, 52, 416, 12, 51, 415)
    state = {"step": 10, "index": 9, "micro": 40, "samples": 320, "epoch": 2, "best": 0.1, "is_first": True}
    assert _updated(state, then, now) == {
        "step": 13,
        "index": 12,
        "micro": 52,
        "samples": 416,
        "epoch": 2,
        "best": 0.1,
        "is_first": True,
    }


@pytest.mark.parametrize(
    ("last", "name"),
    [
        ("/out/step_10", "/out/step_13"),
        ("/out/step-40", "/out/step-52"),
        ("/out/epoch_1", "/out/step_13"),
        ("/out/state", "/out/state"),
        ("/out/9", "/out/12"),
    ],
)
def test_a_directory_is_named_as_the_script_names_its_own(last: str, name: str) -> None:
    then, now = (10, 40, 320, 9, 39, 319), (13, 52, 416, 12, 51, 415)
    assert _name_at_step(_LastSave(last, {}, then), now, 13) == name


class Engine:
    """Counts steps, and notes how it is asked to save."""

    global_steps = 0

    def __init__(self) -> None:
        self.saves: list[tuple[str, dict[str, object]]] = []

    def save_checkpoint(self, save_dir: str, **options: object) -> None:
        self.saves.append((save_dir, options))


def test_an_engine_saves_as_its_script_did_but_not_over_the_tag_that_the_script_named(tmp_path: Path) -> None:
    run_dir, engine = RunDir(tmp_path), Engine()
    heartbeat: Any = SimpleNamespace(
        is_trainer=False, is_here=lambda: True, counts_steps=True, note=lambda **_: None
    )
    saver = EngineSaver(heartbeat, SaveRequest(run_dir.save_at))
    engine.global_steps = 10
    saver.saved((engine, "/out", "step-10"), {"client_state": {"step": 10}, "save_latest": False})
    control.write_save_at(run_dir, 12)
    for engine.global_steps in (11, 12):
        assert engine.saves == []
        saver.begins()
        saver.stepped(engine)
    with pytest.raises(SystemExit):
        saver.begins()
    assert engine.saves == [("/out", {"client_state": {"step": 12}, "save_latest": True})]
