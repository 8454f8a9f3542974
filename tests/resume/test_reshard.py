"""`--allow-reshard`: what is converted, when, and by which Python."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.checkpoint.trainers import trainers
from tests.making import CPU_MACHINE, script
from tests.resume.resuming import findings, inputs
from tests.running import the_run, zlaunch
from zlaunch.checkpoint.universal import disk_need_of
from zlaunch.job.script import RESUME, ConfigInterface
from zlaunch.launch.checkpoints import with_conversion
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.requirements import requirements_of

pytestmark = pytest.mark.job


def converting(job: JobFacts) -> JobFacts:
    return with_conversion(job)


def test_the_plan_says_what_will_be_converted_and_a_dry_run_converts_nothing(
    saved: Path, tmp_path: Path
) -> None:
    five = trainers(tmp_path / "out", 5, saved / "zero2")
    words = ("train", "--dry-run", "--resume", "latest", "--gpus", "2", "--precision", "bf16", "--stage", "3")
    result = zlaunch(*words, "--allow-reshard", "--", "--output_dir", "out", cwd=tmp_path)
    assert result.status == 0, result.err
    assert "convert  before the start, to out/checkpoint-5/global_step3_universal, " in result.out
    assert "it was saved at stage 2" in result.out
    assert f"{RESUME} {five}" in result.out
    assert "load_universal = true" in result.out
    assert not (five / "global_step3_universal").exists()


def test_nothing_is_converted_for_a_job_that_is_refused(saved: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(saved / "zero2", tmp_path / "base"))
    (tmp_path / "loop.py").write_text("import deepspeed, os\nos.environ['ZLAUNCH_DS_CONFIG']\n")
    words = ("train", "loop.py", "--resume", base, "--gpus", "1", "--stage", "2", "--allow-reshard")
    result = zlaunch(*words, cwd=tmp_path)
    assert result.status == 65, result.err
    assert "ignores `$ZLAUNCH_RESUME`" in " ".join(result.err.split())
    assert not (base / "global_step3_universal").exists()


def test_allow_reshard_needs_the_checkpoint_to_be_named_to_zlaunch(tmp_path: Path) -> None:
    def hint(*words: str) -> tuple[int, str]:
        result = zlaunch("train", "--allow-reshard", *words, cwd=tmp_path)
        return result.status, result.err.splitlines()[-1]

    assert hint() == (2, "hint: write `--resume DIR` too")
    assert hint("--", RESUME, "out") == (2, f"hint: write `--resume out` instead of `{RESUME} out`")


def test_the_disk_for_the_conversion_is_checked_before_the_start(saved: Path, tmp_path: Path) -> None:
    five = trainers(tmp_path, 5, saved / "zero2")
    job = converting(inputs(five, stage=3))
    assert job.resumption is not None
    needs = requirements_of(make_plan(job), CPU_MACHINE.hostname)
    asked = {one.path: one.num_bytes for one in needs.writes}
    assert asked[five / "global_step3_universal"] == disk_need_of(job.resumption.saved.checkpoint).certain > 0


def test_what_is_in_the_way_of_the_conversion_is_refused(saved: Path, tmp_path: Path) -> None:
    five = trainers(tmp_path, 5, saved / "zero2")
    job = converting(inputs(five, stage=3))
    assert findings(make_plan(job)) == []
    (five / "global_step3_universal").mkdir()
    (found,) = findings(make_plan(job))
    assert "global_step3_universal exists and is not a conversion of it" in found.message


def test_a_checkpoint_of_accelerate_is_loaded_from_the_directory_it_is_converted_to(
    saved: Path, tmp_path: Path
) -> None:
    loads = script('accelerator.load_state(os.environ["ZLAUNCH_RESUME"])', ConfigInterface.ACCELERATE)
    base = Path(shutil.copytree(saved / "accelerate", tmp_path / "step_3"))
    job = converting(inputs(base, loads, stage=3))
    plan = make_plan(job)
    assert plan.environment["ZLAUNCH_RESUME"].value == str(tmp_path / "step_3_universal")
    assert findings(plan) == []


def test_the_python_of_the_ranks_converts_when_the_job_starts(saved: Path, tmp_path: Path) -> None:
    trainers(tmp_path / "out", 5, saved / "zero2")
    python = tmp_path / "python"
    fails = "case $* in *ds_to_universal*) echo it was this one; exit 1; esac"
    python.write_text(f'#!/bin/sh\n{fails}\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    words = ("train", "--python", python, "--resume", "latest", "--gpus", "2", "--precision", "bf16")
    result = zlaunch(*words, "--stage", "3", "--allow-reshard", "--", "--output_dir", "out", cwd=tmp_path)
    assert "DeepSpeed's conversion failed: it was this one" in result.err
    ending = json.loads((the_run(tmp_path) / "how-it-ended.json").read_text())
    assert (result.status, ending["how"]) == (69, "failed")
    assert ending["verdict"]["code"] == "conversion-failed"
    assert (the_run(tmp_path) / "logs" / "conversion.log").read_text() == "it was this one\n"
    again = zlaunch("runs", "rerun", "latest", "--dry-run", cwd=tmp_path)
    assert again.status == 0, again.err
    assert "convert  before the start, to out/checkpoint-5/global_step3_universal, " in again.out
