"""Where a script reports its metrics, with modules that have what the record reads of the real ones."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from zlaunch.cli.views.run import tracker_rows
from zlaunch.worker.hook.program_record import ProgramRecorder
from zlaunch.worker.hook.trackers import turn_off, watch_tracker


class Offline:
    """A run of wandb without network."""

    disabled, offline, dir = False, True, "/work/wandb/offline-run-1/files"

    @property
    def url(self) -> None:
        raise AssertionError("wandb warns about this")


class Writer:
    """A writer of TensorBoard; its name is that of the class it stands for."""

    def __init__(self, log_dir: str, comment: str = "") -> None:
        self.log_dir = log_dir


def module(name: str, **members: object) -> Any:
    made = ModuleType(name)
    vars(made).update(members)
    return made


def noted(tmp_path: Path, made: ModuleType, use: Callable[[], object]) -> dict[str, dict[str, str]]:
    """Return what is recorded of a module that is watched and then used."""
    file = tmp_path / "rank-0.program.json"
    watch_tracker(made, ProgramRecorder(file).tracker)
    use()
    found: dict[str, dict[str, str]] = json.loads(file.read_text())["trackers"] if file.exists() else {}
    return found


@pytest.mark.parametrize(
    ("run", "place"),
    [
        (SimpleNamespace(disabled=False, offline=False, url="https://w/r/1"), {"url": "https://w/r/1"}),
        (Offline(), {"directory": "/work/wandb/offline-run-1"}),
    ],
)
def test_a_run_of_wandb_is_its_link_or_its_directory(tmp_path: Path, run: Any, place: dict[str, str]) -> None:
    wandb = module("wandb", init=lambda **_: run)
    assert noted(tmp_path, wandb, lambda: wandb.init(project="p")) == {"wandb": place}


def test_wandb_that_is_disabled_reports_to_nowhere(tmp_path: Path) -> None:
    wandb = module("wandb", init=lambda **_: SimpleNamespace(disabled=True, url="", dir="/temporary"))
    assert noted(tmp_path, wandb, lambda: wandb.init(mode="disabled")) == {}


def test_a_run_of_trackio_is_its_project(tmp_path: Path) -> None:
    trackio = module("trackio", init=lambda project: SimpleNamespace(url=None, project=project))
    assert noted(tmp_path, trackio, lambda: trackio.init("p")) == {"trackio": {"project": "p"}}


def test_a_writer_of_tensorboard_is_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Writer, "__init__", Writer.__init__)  # undone after the test
    writer = module("torch.utils.tensorboard.writer", SummaryWriter=Writer)
    found = noted(tmp_path, writer, lambda: writer.SummaryWriter("logs", comment="a"))
    assert found == {"tensorboard": {"directory": str(tmp_path / "logs")}}


def test_what_a_tracker_returns_and_raises_reaches_the_script(tmp_path: Path) -> None:
    def init(project: str) -> object:
        raise ConnectionError(project)

    trackio = module("trackio", init=init)
    with pytest.raises(ConnectionError, match="mine"):
        noted(tmp_path, trackio, lambda: trackio.init(project="mine"))
    answer = SimpleNamespace()
    wandb = module("wandb", init=lambda: answer)
    watch_tracker(wandb, lambda *_: None)
    assert wandb.init() is answer


def test_each_tracker_is_shown_with_its_link_or_with_what_to_type() -> None:
    rows = tracker_rows(
        {
            "wandb": {"directory": "/w/offline-run-1"},
            "tensorboard": {"directory": "/my logs"},
            "trackio": {"url": "https://t/p"},
            "unknown": {"directory": "/x"},
        }
    )
    assert list(rows) == [
        ("tensorboard", "`tensorboard --logdir '/my logs'` shows it"),
        ("trackio", "https://t/p"),
        ("wandb", "offline; `wandb sync /w/offline-run-1` uploads it"),
    ]


@pytest.mark.parametrize("mode", [{}, {"mode": "offline"}, {"mode": "online"}])
def test_wandb_that_is_turned_off_starts_disabled_whatever_the_script_wants(
    monkeypatch: pytest.MonkeyPatch, mode: dict[str, str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")

    def init(project: str, mode: str | None = None) -> tuple[str, str]:
        return project, mode or os.environ["WANDB_MODE"]

    wandb = module("wandb", init=init, login=lambda: os.environ["WANDB_MODE"])
    turn_off(wandb)
    os.environ["WANDB_MODE"] = "offline"  # as scripts do
    assert wandb.login() == "disabled"
    os.environ["WANDB_MODE"] = "offline"
    assert wandb.init("p", **mode) == ("p", "disabled")


def test_a_package_of_that_name_without_its_functions_is_left_alone() -> None:
    wandb = module("wandb")
    turn_off(wandb)
    assert not hasattr(wandb, "init")
