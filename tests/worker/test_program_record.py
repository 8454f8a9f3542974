"""What is recorded of a program with more than one engine."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from zlaunch.worker.hook.program_record import ProgramRecorder


def engine(stage: int, optimizer: object) -> Any:
    """Return an object with what the record reads from an engine."""
    return SimpleNamespace(
        basic_optimizer=optimizer,
        zero_optimization_stage=lambda: stage,
        _config=SimpleNamespace(_param_dict={"zero_optimization": {"stage": stage}}),
        train_micro_batch_size_per_gpu=lambda: 1,
        gradient_accumulation_steps=lambda: 1,
        train_batch_size=lambda: 2,
    )


def recorded(file: Path, *engines: Any) -> dict[str, Any]:
    """Return the record of a program that creates these engines."""
    recorder = ProgramRecorder(file)
    for one in engines:
        recorder.engine(one)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_the_engine_that_trains_is_recorded_and_not_that_of_a_reference_model(tmp_path: Path) -> None:
    found = recorded(tmp_path / "rank-0.program.json", engine(0, None), engine(2, object()))
    assert (found["num_engines"], found["engine"]["stage"]) == (1, 2)


def test_the_first_of_two_engines_that_train_is_recorded(tmp_path: Path) -> None:
    found = recorded(tmp_path / "rank-0.program.json", engine(2, object()), engine(3, object()))
    assert (found["num_engines"], found["engine"]["stage"]) == (2, 2)


def saves(file: Path, *calls: tuple[Any, tuple[object, ...], bool]) -> dict[str, Any]:
    """Return the record of a program whose engine or Trainer, the owner of each call, saved with arguments."""
    recorder = ProgramRecorder(file)
    for owner, args, within in calls:
        recorder.saved((owner, *args), {}, within=within)
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return {name: found[name] for name in ("saved_checkpoint", "saved_model") if name in found}


TRAINER = SimpleNamespace(args=SimpleNamespace(output_dir="/out"))
ENGINE = SimpleNamespace(save_16bit_model=print, global_steps=4)


def test_the_last_directory_of_an_engine_is_recorded_also_within_a_save_of_the_trainer(
    tmp_path: Path,
) -> None:
    calls = [(ENGINE, (f"/out/checkpoint-{step}",), True) for step in (4, 8)]
    assert saves(tmp_path / "r.json", *calls) == {"saved_checkpoint": "/out/checkpoint-8"}


def test_a_model_is_one_that_the_script_saves_and_not_the_part_of_a_checkpoint(tmp_path: Path) -> None:
    within = (TRAINER, ("/out/checkpoint-4",), True)
    assert saves(tmp_path / "r.json", within) == {}
    assert saves(tmp_path / "r.json", within, (TRAINER, (), False)) == {"saved_model": "/out"}


def test_what_the_trainer_saves_as_a_checkpoint_is_no_model(tmp_path: Path) -> None:
    assert saves(tmp_path / "r.json", (TRAINER, (object(), None), False)) == {}
