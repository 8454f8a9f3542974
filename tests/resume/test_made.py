"""Jobs that resume from checkpoints that were made without training."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.made import T, safetensors, trainers
from tests.making import script
from tests.resume.resuming import PASSES, TRAINER, findings, inputs, planned
from zlaunch.cli.checkpoint.show import show
from zlaunch.cli.views.run import saved_rows
from zlaunch.errors import Finding, InputMissing, Severity
from zlaunch.files import shown
from zlaunch.hosts.machine.interpreter import Package
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import RESUME
from zlaunch.launch.make_plan import make_plan
from zlaunch.resume.choose import resumption_by_argument
from zlaunch.resume.saved_by_run import saved_by_run
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.run_files import RunFiles

SHAPES = {"first.weight": (4, 3), "last.weight": (5,)}
WRITER = ("checkpoint.writer.type", "python")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return trainers(tmp_path / "checkpoint-3", SHAPES, 2, config={"bf16": {"enabled": True}})


def told(checkpoint: Path, torch: str = "2.13", **asked: Any) -> list[Finding]:
    """Find what is said of a job in an environment with a release of torch."""
    facts = inputs(checkpoint, TRAINER, 2, **asked)
    packages = {**facts.python.packages, "torch": Package("/venv/torch", torch)}
    python = replace(facts.python, packages=packages)
    return findings(make_plan(replace(facts, here=replace(facts.here, python=python))))


def test_a_job_with_a_checkpoint_writer_is_refused_what_torch_would_refuse_it(checkpoint: Path) -> None:
    assert told(checkpoint) == told(checkpoint, "2.5", overrides=(WRITER,)) == []
    (found,) = told(checkpoint, overrides=(WRITER,))
    assert found.severity is Severity.FAILS_LATER
    assert found.hint is not None
    assert "leave `checkpoint.writer` out" in found.hint
    variable = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"
    assert variable in found.hint
    assert told(checkpoint, overrides=(WRITER,), env=(variable,)) == []


def typed(folder: Path, *words: str, **asked: Any) -> list[Finding]:
    """Find what is said of a job whose script is given the checkpoint by its own argument."""
    facts = inputs(folder, TRAINER, 2, **asked)
    args = ScriptArgs.of((RESUME, str(folder), *words))
    found = resumption_by_argument(TRAINER, args)
    plan = make_plan(replace(facts, job=replace(facts.job, resume=None, args=args), resumption=found))
    assert plan.script_words.count(RESUME) == 1
    return findings(plan)


def test_an_argument_of_the_script_is_checked_as_the_option_is(checkpoint: Path) -> None:
    assert typed(checkpoint) == []
    for asked in ({"stage": 3}, {"precision": "fp32"}):
        by_option, by_argument = findings(planned(checkpoint, **asked)), typed(checkpoint, **asked)
        assert [found.message for found in by_argument] == [found.message for found in by_option]
        assert {found.where for found in by_argument} == {RESUME}
        assert f"`--resume {shown(checkpoint)} --allow-reshard` in place of" in (by_argument[-1].hint or "")
    (checkpoint / "trainer_state.json").unlink()
    assert [found.code for found in typed(checkpoint)] == ["bad-checkpoint"]


def test_a_checkpoint_of_the_model_alone_is_refused_whichever_way_it_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5"
    safetensors({"a": T((2,))}, folder / "model.safetensors")
    (folder / "trainer_state.json").write_text('{"global_step": 5}')
    (by_option,), (by_argument,) = findings(planned(folder)), typed(folder)
    assert by_option.message == by_argument.message
    assert "no files of DeepSpeed's engine" in by_option.message


def test_damage_does_not_hide_that_a_checkpoint_is_of_another_kind(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5"
    safetensors({"a": T((0,))}, folder / "model.safetensors")
    (folder / "trainer_state.json").write_text('{"global_step": 5}')
    damage, kind = findings(planned(folder))
    assert (damage.code, kind.code) == ("bad-checkpoint", "unfit-checkpoint")
    assert "no files of DeepSpeed's engine" in kind.message


@pytest.mark.parametrize("word", ["True", "latest", "last"])
def test_a_word_that_the_trainer_would_open_as_a_directory_is_refused(word: str) -> None:
    with pytest.raises(InputMissing, match="there is no such directory") as raised:
        resumption_by_argument(TRAINER, ScriptArgs.of((RESUME, word)))
    assert "`--resume latest`, before the script" in (raised.value.hint or "")


def test_what_a_script_makes_of_a_word_that_is_no_checkpoint_is_left_to_it(tmp_path: Path) -> None:
    assert resumption_by_argument(TRAINER, ScriptArgs.of((RESUME, str(tmp_path)))) is None
    for makes in ("last = args.resume_from_checkpoint == 'last'\n", "if args.resume_from_checkpoint: pass\n"):
        chooses = script(makes + PASSES)
        assert resumption_by_argument(chooses, ScriptArgs.of((RESUME, "last"))) is None
    looks = script(f"{PASSES} if os.path.isdir(args.resume_from_checkpoint) else None")
    assert resumption_by_argument(looks, ScriptArgs.of((RESUME, "out/checkpoint-5"))) is None


def test_the_directory_above_a_checkpoint_is_refused_with_the_option_that_searches_it(
    checkpoint: Path,
) -> None:
    with pytest.raises(InputMissing, match="not a checkpoint") as raised:
        resumption_by_argument(TRAINER, ScriptArgs.of((RESUME, str(checkpoint.parent))))
    assert f"`--resume {shown(checkpoint.parent)}`, before the script" in (raised.value.hint or "")


def test_a_path_that_is_not_there_is_refused_with_one_that_is(checkpoint: Path) -> None:
    gone = checkpoint.with_name("checkpoint-4")
    with pytest.raises(InputMissing, match="there is no such directory") as raised:
        resumption_by_argument(TRAINER, ScriptArgs.of((RESUME, str(gone))))
    assert "did you mean `--resume_from_checkpoint" in (raised.value.hint or "")


def test_the_end_of_a_run_names_a_model_that_holds_nothing_and_what_has_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = trainers(tmp_path / "out" / "checkpoint-3", SHAPES, 3, config={"bf16": {"enabled": True}})
    safetensors({name: T((0,)) for name in SHAPES}, tmp_path / "out" / "model.safetensors")
    program: Any = {"saved_checkpoint": str(saved), "saved_model": str(tmp_path / "out")}
    run = RunFiles(tmp_path / "run").holding(job={"working_directory": str(tmp_path)}, programs={0: program})
    rows = dict(saved_rows(saved_by_run(run)))
    empty = "its tensors are empty: saved at stage 3 without gathering"
    assert rows["model"] == f"it cannot be loaded: out/model.safetensors: {empty}"
    assert "`zlaunch checkpoint export out/checkpoint-3 DIR` exports its model" in rows["checkpoint"]


def test_show_takes_the_newest_checkpoint_of_a_directory_and_names_those_beside_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for step in (2, 3):
        trainers(tmp_path / "out" / f"checkpoint-{step}", SHAPES, 2)
    os.utime(tmp_path / "out" / "checkpoint-2", (0, 0))
    show(Path("out"))
    shown = capsys.readouterr()
    assert "using out/checkpoint-3, the newest complete checkpoint in out" in shown.err
    assert "checkpoint  out/checkpoint-3\n" in shown.out
    safetensors({name: T((1,)) for name in SHAPES}, tmp_path / "out" / "model.safetensors")
    show(Path("out"))
    beside = " ".join(capsys.readouterr().err.split())
    assert "out has checkpoints, too: `zlaunch checkpoint show out/checkpoint-3`" in beside


def test_a_restart_finds_what_the_attempt_before_it_has_saved(checkpoint: Path, tmp_path: Path) -> None:
    now = time.time()
    first, second = (RunDir(tmp_path / "runs" / name) for name in ("first", "second"))
    first.ranks.mkdir(parents=True)
    second.root.mkdir()
    first.job.write_text(json.dumps({"started": now - 60}))
    first.rank_record(0, ".program").write_text(json.dumps({"saved_checkpoint": str(checkpoint)}))
    second.job.write_text(json.dumps({"started": now + 60, "continues": "first"}))
    found = saved_by_run(RunFiles(second.root)).checkpoint
    assert found is not None
    assert found.checkpoint.folder == checkpoint
