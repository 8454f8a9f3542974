"""What a run has left: found by its records, and only if it can be used."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.trainers import trainers
from tests.recorded_run import write_run
from tests.running import zlaunch
from zlaunch.cli.views.run import saved_rows
from zlaunch.resume.saved_by_run import output_dir_of, saved_by_run
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.record import JobRecord
from zlaunch.rundir.run_files import RunFiles

pytestmark = pytest.mark.job


def files(folder: Path, **program: Any) -> RunFiles:
    programs: Any = {0: program}
    return RunFiles(folder / "run").holding(job={"working_directory": str(folder)}, programs=programs)


def said_at_end(saved: Path, run: RunFiles, asked: str) -> str:
    """Say what resumes from out/checkpoint-9 of the working directory, for a run that was asked for like this."""
    trainers(Path("out").absolute(), 9, saved / "zero2")
    run.job["asked"] = ["/bin/zlaunch", *asked.split()]
    ((_, said),) = saved_rows(saved_by_run(run))
    return said


def test_the_newest_complete_checkpoint_is_found_from_the_last_that_was_saved(
    saved: Path, tmp_path: Path
) -> None:
    nine = trainers(tmp_path / "out", 9, saved / "zero2")
    ten = trainers(tmp_path / "out", 10, saved / "zero2")
    next(ten.glob("*/*rank_1*")).write_bytes(b"PK")
    run = files(tmp_path, saved_checkpoint=str(ten))
    found = saved_by_run(run).checkpoint
    assert found is not None
    assert found.checkpoint.folder == nine
    assert output_dir_of(run) == tmp_path / "out"


def test_a_checkpoint_that_may_have_lost_its_weights_is_left_out_until_it_is_written_anew(
    saved: Path, tmp_path: Path
) -> None:
    nine, ten = (trainers(tmp_path / "out", step, saved / "zero2") for step in (9, 10))
    first, second = (RunDir(tmp_path / "runs" / name) for name in ("first", "second"))
    for run in (first, second):
        run.ranks.mkdir(parents=True)
        run.rank_record(0, ".program").write_text(json.dumps({"saved_checkpoint": str(ten)}))
    first.job.write_text("{}")
    second.job.write_text('{"continues": "first"}')

    def newest() -> list[Path | None]:
        found = [saved_by_run(RunFiles(run.root)).checkpoint for run in (first, second)]
        return [None if one is None else one.checkpoint.folder for one in found]

    assert newest() == [ten, ten]
    first.rank_record(0, ".pulse").write_text('{"loss_lost": 11, "finite_loss_step": 10}')
    assert newest() == [nine, nine]
    first.ending.write_text('{"started": 1.0, "seconds": 2.0}')
    assert newest() == [ten, ten]


def test_the_last_step_of_a_run_is_its_own_and_a_later_one_of_another(saved: Path, tmp_path: Path) -> None:
    four, ten = (trainers(tmp_path / "out", step, saved / "zero2") for step in (4, 10))
    heartbeats: Any = {0: {"step": 4}}
    run = files(tmp_path, saved_checkpoint=str(four)).holding(heartbeats=heartbeats)
    found = saved_by_run(run).checkpoint
    assert found is not None
    assert found.checkpoint.folder == four
    assert ten.is_dir()


def test_the_tags_of_an_engine_are_below_what_it_was_given(saved: Path, tmp_path: Path) -> None:
    run = files(tmp_path, saved_checkpoint=str(saved / "zero2"))
    found = saved_by_run(run).checkpoint
    assert found is not None
    assert found.checkpoint.tag == "global_step3"
    assert output_dir_of(run) == saved / "zero2"


def test_a_model_without_weights_is_none(saved: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(saved / "models" / "dense", tmp_path / "model"))
    for file in model.glob("*.safetensors"):
        file.unlink()
    run = files(tmp_path, saved_model=str(model))
    assert saved_by_run(run).model is None
    (model / "model.safetensors").touch()
    assert saved_by_run(run).model == model


def test_a_run_that_saved_nothing_has_the_checkpoint_that_it_resumed_from(
    saved: Path, tmp_path: Path
) -> None:
    five = trainers(tmp_path / "out", 5, saved / "zero2")
    job: JobRecord = {
        "working_directory": str(tmp_path),
        "started": time.time(),
        "spec": {"resume": str(five)},
    }
    found = saved_by_run(RunFiles(tmp_path / "run").holding(job=job))
    assert found.checkpoint is not None
    assert found.checkpoint.checkpoint.folder == five
    ((_, said),) = saved_rows(found)
    assert "step 5, from which the run resumed; it saved none" in said


def test_a_run_that_saved_nothing_has_nothing_to_say(tmp_path: Path) -> None:
    assert list(saved_rows(saved_by_run(files(tmp_path)))) == []
    gone = files(tmp_path, saved_checkpoint=str(tmp_path / "gone"), saved_model="gone")
    assert list(saved_rows(saved_by_run(gone))) == []


def test_the_commands_are_told_as_they_are_typed(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainers(tmp_path / "my out", 9, saved / "zero2")
    rows = list(saved_rows(saved_by_run(files(tmp_path, saved_checkpoint="my out/checkpoint-9"))))
    typed = "'my out/checkpoint-9'"
    resume = f"`zlaunch train --resume {typed} …` resumes from step 9"
    assert rows == [("checkpoint", f"{resume}; `zlaunch checkpoint export {typed} DIR` exports its model")]


def test_a_training_at_its_end_does_not_resume_unless_more_is_asked_for(saved: Path, tmp_path: Path) -> None:
    trainers(tmp_path / "out", 9, saved / "zero2")
    run = files(tmp_path, saved_checkpoint="out/checkpoint-9")
    for steps, is_at_end in ((10, False), (9, True)):
        run.heartbeats[0] = {"steps": steps}
        ((_, said),) = saved_rows(saved_by_run(run))
        assert ("its last step: ask for more steps" in said) == is_at_end


@pytest.mark.parametrize(
    ("asked", "typed"),
    [
        (
            "train train.py --stage 2 --run-dir r -- --lr 3",
            "--resume out/checkpoint-9 train.py --stage 2 -- --lr 3",
        ),
        ("train --resume=old --run_dir=r -- --resume x", "--resume out/checkpoint-9 -- --resume x"),
        ("train t.py -- --resume_from_checkpoint old --lr 3", "--resume out/checkpoint-9 t.py -- --lr 3"),
        ("runs rerun last", "--resume out/checkpoint-9 …"),
    ],
)
def test_the_command_that_resumes_is_the_one_that_was_typed(
    asked: str, typed: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = said_at_end(saved, files(tmp_path, saved_checkpoint="out/checkpoint-9"), asked)
    assert said.startswith(f"`zlaunch train {typed}` resumes from step 9")


@pytest.mark.parametrize(
    ("asked", "typed"),
    [
        ("--set a.b=1 --set checkpoint.load_universal=true t.py", "--set a.b=1 t.py"),
        ("--set=checkpoint.load_universal=true t.py", "t.py"),
        ("--ds-config ds.json t.py", "--set checkpoint.load_universal=false --ds-config ds.json t.py"),
        ("--allow-reshard t.py", "--allow-reshard t.py"),
    ],
)
def test_a_run_that_loaded_a_universal_checkpoint_resumes_from_its_own_without_that_key(
    asked: str, typed: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = files(tmp_path, saved_checkpoint="out/checkpoint-9")
    run = run.holding(config={"checkpoint": {"load_universal": True}})
    said = said_at_end(saved, run, f"train {asked}")
    assert said.startswith(f"`zlaunch train --resume out/checkpoint-9 {typed}` resumes from step 9")


def test_a_run_that_ended_shows_what_it_resumed_from_and_what_resumes_from_it(
    saved: Path, tmp_path: Path
) -> None:
    trainers(tmp_path / "out", 9, saved / "zero2")
    ranks = tmp_path / "runs" / "first" / "ranks"
    ranks.mkdir(parents=True)
    job = {"working_directory": str(tmp_path), "spec": {"resume": str(tmp_path / "before")}}
    (ranks.parent / "job.json").write_text(json.dumps(job))
    (ranks / "rank-0.program.json").write_text(json.dumps({"saved_checkpoint": "out/checkpoint-9"}))
    shown = zlaunch("runs", "show", cwd=tmp_path).out
    assert "resumed     from before" in shown
    assert "checkpoint  `zlaunch train --resume out/checkpoint-9" in shown
    assert "`zlaunch train --resume out/checkpoint-9" in zlaunch("runs", "why", cwd=tmp_path).out


def test_what_a_failed_run_resumes_from_stands_before_what_made_it_slow(saved: Path, tmp_path: Path) -> None:
    trainers(tmp_path / "out", 9, saved / "zero2")
    root = write_run(tmp_path / "runs" / "first", 40)
    for file, known in (
        (root / "job.json", {"working_directory": str(tmp_path)}),
        (root / "ranks" / "rank-0.program.json", {"saved_checkpoint": "out/checkpoint-9"}),
    ):
        file.write_text(json.dumps({**json.loads(file.read_text()), **known}))
    said = zlaunch("runs", "why", cwd=tmp_path).out
    assert 0 < said.index("checkpoint  ") < said.index("slow      ")
