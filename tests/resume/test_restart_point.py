"""Where the next attempt of a job begins."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from zlaunch.resume.restart_checkpoint import beginning, newest_for_restart

from tests.checkpoint.trainers import trainers
from tests.making import script
from tests.resume.resuming import LOOP, TRAINER, inputs
from zlaunch.diagnosis.evidence import JobEvidence
from zlaunch.launch.plan import PlanInputs
from zlaunch.resume.restart import Retry

pytestmark = pytest.mark.job

RAN = JobEvidence(stage=2, world_size=2)


def anew(job: PlanInputs) -> PlanInputs:
    return replace(job, resume=None, job=replace(job.job, resume=None))


def record(folder: Path, saved: Path) -> Path:
    ranks = folder / "run" / "ranks"
    ranks.mkdir(parents=True)
    (ranks.parent / "job.json").write_text(json.dumps({"working_directory": str(folder), "started": 1.0}))
    (ranks / "rank-0.program.json").write_text(json.dumps({"saved_checkpoint": str(saved)}))
    return ranks.parent


def test_a_loop_that_is_told_by_a_variable_goes_on_from_the_newest_that_it_saved(
    saved: Path, tmp_path: Path
) -> None:
    kept = Path(shutil.copytree(saved / "zero2", tmp_path / "kept"))
    job = inputs(kept, LOOP)
    found = newest_for_restart(job, record(tmp_path, kept), RAN, Retry(job.job, ""))
    assert found is not None
    assert found.checkpoint.tag == "global_step3"


def test_a_loop_that_recorded_nothing_has_saved_where_it_was_told_to(saved: Path, tmp_path: Path) -> None:
    kept = Path(shutil.copytree(saved / "zero2", tmp_path / "kept"))
    told = replace(LOOP, save_flag="--ckpt-dir")
    job, run = inputs(kept, told, 2, "--ckpt-dir", str(kept)), record(tmp_path, kept)
    (run / "ranks" / "rank-0.program.json").unlink()
    found = newest_for_restart(job, run, RAN, Retry(job.job, ""))
    assert found is not None
    assert found.checkpoint.folder == kept / "global_step3"


def test_a_script_that_loads_what_it_chooses_gets_none(saved: Path, tmp_path: Path) -> None:
    chooses = script("trainer.train(resume_from_checkpoint=True)")
    job, run = inputs(trainers(tmp_path, 5, saved / "zero2"), chooses), record(tmp_path, tmp_path)
    assert newest_for_restart(job, run, RAN, Retry(job.job, "")) is None
    assert beginning(anew(job), None, 7) == "its script chooses the checkpoint to go on from"


def test_lost_steps_count_from_where_the_next_attempt_begins(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = inputs(trainers(tmp_path, 5, saved / "zero2"), TRAINER)
    assert job.resume is not None
    newer = replace(job.resume.saved, step=6)
    assert beginning(anew(job), None, 7) == "starting over, 7 steps lost"
    assert beginning(anew(job), None, 0) == "starting over"
    assert beginning(job, None, 7) == "going on from checkpoint-5, 2 steps lost"
    assert beginning(job, newer, 7) == "going on from checkpoint-5, 1 step lost"
    assert beginning(job, newer, 6) == "going on from checkpoint-5"
