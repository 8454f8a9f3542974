"""Where the next attempt of a job begins."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoint.trainers import trainers
from tests.making import script
from tests.resume.resuming import LOOP, TRAINER, inputs
from zlaunch.checkpoint.summary import Summary
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan
from zlaunch.resume.choose import newest_for_restart
from zlaunch.resume.restart import restart_point

pytestmark = pytest.mark.job


def newest(job: JobFacts, run: Path) -> Summary | None:
    return newest_for_restart(make_plan(job).training, run)


def record(folder: Path, saved: Path) -> Path:
    ranks = folder / "run" / "ranks"
    ranks.mkdir(parents=True)
    (ranks.parent / "job.json").write_text(json.dumps({"working_directory": str(folder), "started": 1.0}))
    (ranks / "rank-0.program.json").write_text(json.dumps({"saved_checkpoint": str(saved)}))
    return ranks.parent


def test_a_loop_that_reads_a_variable_resumes_from_the_newest_that_it_saved(
    saved: Path, tmp_path: Path
) -> None:
    kept = Path(shutil.copytree(saved / "zero2", tmp_path / "kept"))
    job = inputs(kept, LOOP)
    found = newest(job, record(tmp_path, kept))
    assert found is not None
    assert found.checkpoint.tag == "global_step3"


def test_a_loop_that_recorded_nothing_has_saved_to_its_known_directory(saved: Path, tmp_path: Path) -> None:
    kept = Path(shutil.copytree(saved / "zero2", tmp_path / "kept"))
    told = replace(LOOP, save_flag="--ckpt-dir")
    job, run = inputs(kept, told, 2, "--ckpt-dir", str(kept)), record(tmp_path, kept)
    (run / "ranks" / "rank-0.program.json").unlink()
    found = newest(job, run)
    assert found is not None
    assert found.checkpoint.folder == kept / "global_step3"


def test_a_script_that_loads_what_it_chooses_gets_none(saved: Path, tmp_path: Path) -> None:
    chooses = script("trainer.train(resume_from_checkpoint=True)")
    job, run = inputs(trainers(tmp_path, 5, saved / "zero2"), chooses), record(tmp_path, tmp_path)
    assert newest(job, run) is None
    assert restart_point(job.job, job.script, None, 7) == "its script chooses the checkpoint to resume from"


def test_lost_steps_count_from_where_the_next_attempt_begins(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = inputs(trainers(tmp_path, 5, saved / "zero2"), TRAINER)
    assert job.resumption is not None
    five = job.resumption.saved
    newer = replace(five, step=6)

    def start(checkpoint: Summary | None, reached: int) -> str:
        return restart_point(job.job, job.script, checkpoint, reached)

    assert start(None, 7) == "restarting at step 0, 7 steps lost"
    assert start(None, 0) == "restarting at step 0"
    assert start(five, 7) == "resuming from checkpoint-5, 2 steps lost"
    assert start(newer, 7) == "resuming from checkpoint-5, 1 step lost"
    assert start(newer, 6) == "resuming from checkpoint-5"
