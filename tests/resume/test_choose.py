"""Which checkpoint `--resume` means."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.checkpoint.trainers import trainers
from tests.resume.resuming import LOOP, TRAINER, inputs, job, resumption
from tests.running import zlaunch
from zlaunch.cli.views.plan_view import PlanView
from zlaunch.errors import InputMissing, WrongUsage
from zlaunch.job.script import RESUME
from zlaunch.launch.checkpoints import with_checkpoint
from zlaunch.resume.choose import find_resumption, no_checkpoint_yet
from zlaunch.resume.saved_by_run import saved_by_run
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.run_files import RunFiles

pytestmark = pytest.mark.job


def test_latest_is_the_newest_complete_checkpoint_of_the_output_directory(
    saved: Path, tmp_path: Path
) -> None:
    nine = trainers(tmp_path, 9, saved / "zero2")
    next(trainers(tmp_path, 10, saved / "zero2").glob("*/*rank_1*")).write_bytes(b"PK")
    found = resumption("latest", TRAINER, "--output_dir", str(tmp_path))
    assert (found.checkpoint.folder, found.saved.step) == (nine, 9)
    assert resumption(tmp_path).checkpoint.folder == nine


def test_a_newer_checkpoint_that_is_damaged_is_named(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    for step in (8, 9, 10):
        trainers(tmp_path, step, saved / "zero2")
    next((tmp_path / "checkpoint-10").glob("*/*rank_1*")).write_bytes(b"PK")
    with_checkpoint(inputs(tmp_path), PlanView())
    assert "skips checkpoint-10, which is newer: " in capsys.readouterr().err
    with_checkpoint(inputs(tmp_path / "checkpoint-8"), PlanView())  # 9 is sound
    assert "skips" not in capsys.readouterr().err


def test_a_run_stands_for_the_directory_that_it_saved_to(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    five = trainers(tmp_path / "out", 5, saved / "zero2")
    ranks = tmp_path / "runs" / "first" / "ranks"
    ranks.mkdir(parents=True)
    (ranks.parent / "job.json").write_text(json.dumps({"working_directory": str(tmp_path)}))
    (ranks / "rank-0.program.json").write_text(json.dumps({"trainer_args": {"output_dir": "out"}}))
    assert resumption("first").checkpoint.folder == five
    assert resumption(ranks.parent).checkpoint.folder == five


def test_what_is_no_checkpoint_is_an_input_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputMissing, match="neither such a directory nor such a run"):
        resumption("nosuch")
    with pytest.raises(InputMissing, match="no checkpoint in"):
        resumption(tmp_path)


def test_a_name_that_is_close_to_a_directory_or_that_of_a_file_is_answered_with_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out" / "checkpoint-5").mkdir(parents=True)
    (tmp_path / "out" / "latest").touch()
    for given, hint in (
        ("out/chekpoint-5", "did you mean `--resume out/checkpoint-5`?"),
        ("out/latest", "name the directory it is in: `--resume out`"),
    ):
        with pytest.raises(InputMissing) as raised:
            resumption(given)
        assert raised.value.hint == hint


def test_of_two_trainings_one_has_to_be_named(saved: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        trainers(tmp_path / name, 5, saved / "zero2")
    with pytest.raises(WrongUsage, match="several trainings"):
        resumption(tmp_path)


def test_the_command_shows_the_checkpoint_and_refuses_what_does_not_fit(saved: Path, tmp_path: Path) -> None:
    trainers(tmp_path / "out", 5, saved / "zero2")
    words = ("train", "--dry-run", "--resume", "latest", "--gpus", "2", "--precision", "bf16")
    fits = zlaunch(*words, "--", "--output_dir", "out", cwd=tmp_path)
    assert fits.status == 0, fits.err
    assert "resume  out/checkpoint-5, step 5; the Trainer skips the data of these steps" in fits.out
    assert f"{RESUME} {tmp_path}/out/checkpoint-5" in fits.out
    other = zlaunch(*words, "--stage", "3", "--", "--output_dir", "out", cwd=tmp_path)
    assert other.status == 65
    assert "--resume [unfit-checkpoint]" in other.err
    assert other.err.endswith("hint: `--force` starts it anyway\n")
    both = zlaunch(*words, "--", RESUME, "mine", cwd=tmp_path)
    assert (both.status, both.err.count("keep one")) == (2, 1)
    missing = zlaunch(*words[:3], "nosuch", cwd=tmp_path)
    assert (missing.status, missing.err.count("neither such a directory nor such a run")) == (66, 1)


def test_latest_starts_at_step_0_if_there_is_nothing_complete_yet_and_says_so(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = job("latest", "--output_dir", "out")
    assert find_resumption(asked, TRAINER) is None
    assert (
        no_checkpoint_yet(asked, TRAINER)
        == "there is no complete checkpoint in `out` yet: the training starts at step 0"
    )
    next(trainers(tmp_path / "out", 10, saved / "zero2").glob("*/*rank_1*")).write_bytes(b"PK")
    assert find_resumption(asked, TRAINER) is None
    assert no_checkpoint_yet(asked, TRAINER).endswith(
        "; `zlaunch checkpoint verify out` shows what is wrong with those that are there"
    )
    assert find_resumption(job("latest"), LOOP) is None
    assert no_checkpoint_yet(job("latest"), LOOP).startswith(
        "no run of train.py has a complete checkpoint yet"
    )
    begun = zlaunch("train", "--dry-run", "--resume", "latest", "--", "--output_dir", "out", cwd=tmp_path)
    assert begun.status == 0, begun.err
    assert begun.err.startswith("resume  there is no complete checkpoint in `out` yet")
    assert RESUME not in begun.out


def run(folder: Path, name: str, saved: Path | None, started: float, *argv: str) -> Path:
    """Record a run that has saved a checkpoint, or none, and the seconds until it was started."""
    ranks = folder / "runs" / name / "ranks"
    ranks.mkdir(parents=True)
    job = {
        "working_directory": str(folder),
        "started": time.time() + started,
        "script": ["train.py"],
        "spec": {"script_args": list(argv)},
    }
    (ranks.parent / "job.json").write_text(json.dumps(job))
    (ranks / "rank-0.program.json").write_text(json.dumps({"saved_checkpoint": str(saved)} if saved else {}))
    return ranks.parent


def aged(checkpoint: Path, seconds: float) -> Path:
    for file in checkpoint.rglob("*"):
        os.utime(file, (time.time() - seconds,) * 2)
    return checkpoint


def test_a_later_step_of_an_earlier_training_is_not_that_of_a_run(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    five, nine = trainers(out, 5, saved / "zero2"), aged(trainers(out, 9, saved / "zero2"), 90)
    aged(five, 10)
    run(tmp_path, "old", nine, -100)
    run(tmp_path, "new", five, -60)
    assert resumption("new").saved.checkpoint.folder == five
    assert resumption("old").saved.checkpoint.folder == nine
    assert resumption("latest", TRAINER, "--output_dir", "out").saved.checkpoint.folder == five
    run(tmp_path, "failed", out, -5)
    with pytest.raises(InputMissing, match="no complete checkpoint that `failed` has saved in `out`"):
        resumption("failed")
    resumed = run(tmp_path, "resumed", None, -5)
    spec = {"spec": {"resume": str(five)}, "script": ["train.py", "--output_dir", "out"]}
    record = json.loads((resumed / "job.json").read_text()) | spec
    (resumed / "job.json").write_text(json.dumps(record))
    with pytest.raises(InputMissing) as caught:
        resumption("resumed")
    assert caught.value.hint == "`--resume out/checkpoint-5` names the one that it resumed from"
    assert resumption("latest", TRAINER, "--output_dir", "out").saved.checkpoint.folder == five


def test_the_checkpoint_that_a_run_shows_is_the_one_that_its_name_stands_for(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nine, ten = (trainers(tmp_path / "out", step, saved / "zero2") for step in (9, 10))
    diverged = RunDir(run(tmp_path, "diverged", ten, -60))
    diverged.rank_record(0, ".pulse").write_text('{"loss_lost": 11, "finite_loss_step": 10}')
    shows = saved_by_run(RunFiles(diverged.root)).checkpoint
    assert shows is not None
    assert shows.checkpoint.folder == nine
    assert resumption("diverged").saved == shows


def test_later_attempts_of_a_job_resume_from_what_the_first_saved(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    five = aged(trainers(tmp_path / "out", 5, saved / "zero2"), 50)
    run(tmp_path, "first", five, -60)
    second = run(tmp_path, "second", None, -30)
    with pytest.raises(InputMissing):
        resumption("second")
    job = json.loads((second / "job.json").read_text())
    (second / "job.json").write_text(json.dumps({**job, "continues": "first"}))
    assert resumption("second").saved.checkpoint.folder == five


def test_latest_of_a_loop_is_that_of_its_newest_run_with_the_same_arguments(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = aged(trainers(tmp_path / "kept", 5, saved / "zero2"), 10).parent
    run(tmp_path, "mine", base / "checkpoint-5", -60, "--lr", "1")
    assert resumption("latest", LOOP, "--lr", "1").saved.checkpoint.folder == base / "checkpoint-5"
    with pytest.raises(InputMissing, match="no run with these arguments") as caught:
        resumption("latest", LOOP, "--lr", "2")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("`--resume mine` resumes from a run with others;")
