"""A job that goes on from a checkpoint: which one, how its script is told, and what is refused before the start."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.checkpoint.trainers import trainers
from tests.each import each
from tests.making import CPU_MACHINE, LAYOUT, PYTHON, SHAPE, local, script
from tests.running import RECIPE, zlaunch
from zlaunch.errors import Finding, InputMissing, Severity, WrongUsage
from zlaunch.job.script import RESUME, ConfigInterface, Script
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import JobSpec, Offload
from zlaunch.launch.plan import LaunchPlan, PlanInputs, make_plan
from zlaunch.launch.preflight.resume import check_resume
from zlaunch.launch.resume import Resumption, find_resumption, told_by

pytestmark = pytest.mark.job

PASSES = "trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)"
TRAINER = script(PASSES)
LOOP = script('engine.load_checkpoint(os.environ["ZLAUNCH_RESUME"])', ConfigInterface.DEEPSPEED)


def job(resume: object, *argv: str, **asked: Any) -> JobSpec:
    return JobSpec(Path("train.py"), argv, resume=str(resume), **asked)


def resumption(resume: object, told: Script = TRAINER, *argv: str) -> Resumption:
    found = find_resumption(job(resume, *argv), told)
    assert found is not None
    return found


def planned(resume: object, told: Script = TRAINER, ranks: int = 2, *argv: str, **asked: Any) -> LaunchPlan:
    asked = {"stage": 2, "precision": "bf16", **asked}
    inputs = PlanInputs(
        job=job(resume, *argv, **asked),
        script=told,
        base=None,
        model=SHAPE,
        machine=CPU_MACHINE,
        topology=local(*range(ranks)),
        port=2950,
        layout=LAYOUT,
        environ={},
        python=PYTHON,
        resume=resumption(resume, told, *argv),
    )
    return make_plan(inputs)


def refused(plan: LaunchPlan) -> list[tuple[str, str | None]]:
    found = check_resume(plan)
    assert all(one.severity is not Severity.ADVICE for one in found)
    return [(one.message, one.hint) for one in found]


def only(plan: LaunchPlan) -> Finding:
    (found,) = check_resume(plan)
    return found


def test_latest_is_the_newest_complete_checkpoint_of_the_output_directory(
    saved: Path, tmp_path: Path
) -> None:
    nine = trainers(tmp_path, 9, saved / "zero2")
    next(trainers(tmp_path, 10, saved / "zero2").glob("*/*rank_1*")).write_bytes(b"PK")
    found = resumption("latest", TRAINER, "--output_dir", str(tmp_path))
    assert (found.checkpoint.folder, found.saved.step) == (nine, 9)
    assert resumption(tmp_path).checkpoint.folder == nine


def test_without_a_complete_checkpoint_the_newest_is_taken_and_its_damage_told(
    saved: Path, tmp_path: Path
) -> None:
    ten = trainers(tmp_path, 10, saved / "zero2")
    next(ten.glob("*/*rank_1*")).write_bytes(b"PK")
    found = only(planned(tmp_path))
    assert (found.code, found.where) == ("bad-checkpoint", "--resume")
    assert found.hint is not None
    assert "zlaunch checkpoint list" in found.hint


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
    with pytest.raises(InputMissing, match=r"train\.py does not say where it saves"):
        resumption("latest", LOOP)


def test_of_two_trainings_one_has_to_be_named(saved: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        trainers(tmp_path / name, 5, saved / "zero2")
    with pytest.raises(WrongUsage, match="several trainings"):
        resumption(tmp_path)


def test_a_trainer_script_gets_the_checkpoint_as_its_argument(saved: Path, tmp_path: Path) -> None:
    five = trainers(tmp_path, 5, saved / "zero2")
    plan = planned(five)
    assert plan.script[1:3] == (RESUME, str(five))
    assert check_resume(plan) == []


def test_an_engine_loop_gets_what_load_checkpoint_takes_in_variables(saved: Path) -> None:
    plan = planned(saved / "zero2", LOOP)
    told = {name: one.value for name, one in plan.environment.items() if name.startswith("ZLAUNCH_RESUME")}
    assert told == {"ZLAUNCH_RESUME": str(saved / "zero2"), "ZLAUNCH_RESUME_TAG": "global_step3"}
    assert check_resume(plan) == []


@each(
    ("source", "flag"),
    [
        ('p.add_argument("--resume_from_checkpoint", type=str)\naccelerator.load_state(1)', RESUME),
        ('p.add_argument("--resume-from-checkpoint")', "--resume-from-checkpoint"),
        ('p.add_argument("--resume_from_checkpoint", action="store_true")', ""),
        ("print()", ""),
    ],
)
def test_a_flag_of_the_scripts_own_parser_is_used_if_it_takes_a_path(
    source: str, flag: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(f"from accelerate import Accelerator\nAccelerator()\n{source}\n")
    assert told_by(read_script(tmp_path / "own.py"))[:2] == (flag, bool(flag))


def test_both_recipes_can_be_told_for_sure() -> None:
    assert told_by(read_script(RECIPE)) == (RESUME, True, True)
    assert told_by(read_script(RECIPE.with_name("own_loop.py"))) == ("", True, True)


@each(
    ("told", "hint"),
    [
        (
            script("trainer.train()"),
            "write `trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)`",
        ),
        (
            script("engine.step()", ConfigInterface.DEEPSPEED),
            'write `engine.load_checkpoint(os.environ["ZLAUNCH_RESUME"])` in it',
        ),
        (
            script("Accelerator()", ConfigInterface.ACCELERATE),
            'write `accelerator.load_state(os.environ["ZLAUNCH_RESUME"])` in it',
        ),
        (script("loss.backward()", ConfigInterface.NONE), "load `$ZLAUNCH_RESUME` in it"),
    ],
)
def test_a_script_that_would_begin_anew_is_refused_with_the_line_to_write(
    told: Script, hint: str, saved: Path, tmp_path: Path
) -> None:
    plan = planned(trainers(tmp_path / told.interface.value, 5, saved / "zero2"), told)
    found = only(plan)
    assert (found.code, found.severity, found.hint) == ("unfit-checkpoint", Severity.FAILS_LATER, hint)
    assert found.message.endswith("so it would begin anew")


def test_a_script_that_may_be_told_in_another_module_is_not_refused(saved: Path, tmp_path: Path) -> None:
    plan = planned(trainers(tmp_path, 5, saved / "zero2"), script("trainer.train()", has_other_modules=True))
    assert only(plan).severity is Severity.ADVICE
    assert plan.script[1] == RESUME


def test_the_command_that_makes_a_checkpoint_fit_is_told(saved: Path, tmp_path: Path) -> None:
    five = trainers(tmp_path, 5, saved / "zero2")
    ((message, hint),) = refused(planned(five, ranks=4))
    assert message == "its optimizer is cut for 2 ranks, not for 4"
    assert hint == (
        f"add `--allow-reshard`, or `zlaunch checkpoint reshard {five} --ranks 4 --stage 2 --precision bf16 --offload none`, then add "
        "`--set checkpoint.load_universal=true`; or use 2 ranks again"
    )
    ((message, hint),) = refused(planned(five, stage=3, offload=Offload("cpu")))[:1]
    assert hint is not None
    assert f"`zlaunch checkpoint reshard {five} --ranks 2 --stage 3 --precision bf16 --offload cpu`" in hint
    ((message, hint),) = refused(planned(five, stage=0))
    assert hint is not None
    assert hint.startswith("`--stage 2`; or `zlaunch checkpoint export")


def test_a_converted_checkpoint_fits_other_ranks(saved: Path, tmp_path: Path) -> None:
    five = trainers(tmp_path, 5, saved / "zero2")
    assert zlaunch("checkpoint", "universal", five, cwd=tmp_path).status == 0
    ((_, hint),) = refused(planned(five, ranks=4))
    assert hint == "add `--set checkpoint.load_universal=true`; or use 2 ranks again"
    overrides = (("checkpoint.load_universal", True),)
    assert refused(planned(five, ranks=4, overrides=overrides)) == []


def test_a_key_that_looks_for_the_other_kind_of_checkpoint_is_refused(saved: Path, tmp_path: Path) -> None:
    five = trainers(tmp_path, 5, saved / "zero2")
    universal = (("checkpoint.load_universal", True),)
    ((message, hint),) = refused(planned(five, overrides=universal))
    assert message.endswith("has no universal checkpoint")
    assert hint is not None
    assert hint.startswith("leave the key out")
    result = zlaunch("checkpoint", "universal", five, tmp_path / "moved", cwd=tmp_path)
    assert result.status == 0, result.err
    ((_, hint),) = refused(planned(tmp_path / "moved", ranks=4, stage=3))
    assert hint == "add `--set checkpoint.load_universal=true`"
    fits = planned(tmp_path / "moved", ranks=4, stage=3, overrides=universal)
    assert refused(fits) == []
    assert fits.script[1:3] == (RESUME, str(tmp_path / "moved"))


def test_an_older_tag_than_latest_names_is_not_silently_replaced(saved: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(saved / "zero2", tmp_path / "base"))
    shutil.copytree(base / "global_step3", base / "best")
    ((message, hint),) = refused(planned(base / "best", LOOP))
    assert "which is not `best`" in message
    assert hint is not None
    assert hint.startswith(f"`echo best > {base / 'latest'}`")
    reads_both = replace(LOOP, source=LOOP.source + 'os.environ["ZLAUNCH_RESUME_TAG"]')
    assert refused(planned(base / "best", reads_both)) == []


def test_a_trainer_does_not_go_on_from_what_no_trainer_saved(saved: Path, tmp_path: Path) -> None:
    assert "was saved by DeepSpeed" in refused(planned(saved / "zero2"))[0][0]
    model = tmp_path / "checkpoint-5"
    model.mkdir()
    (model / "trainer_state.json").write_text('{"global_step": 5}')
    (model / "model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")
    ((message, hint),) = refused(planned(model))
    assert "has no files of DeepSpeed's engine" in message
    assert hint is not None
    assert hint.startswith("save without `--save_only_model`")


@each(
    ("argv", "seen", "skipped"),
    [
        ((), 5 * 2 * 8, 5 * 2 * 8),
        (("--per_device_train_batch_size", "4"), 5 * 2 * 8, 5 * 2 * 4),
        (("--gradient_accumulation_steps", "2"), 5 * 2 * 8, 5 * 2 * 16),
    ],
)
def test_what_is_seen_again_follows_from_both_batches(
    argv: tuple[str, ...], seen: int, skipped: int, saved: Path, tmp_path: Path
) -> None:
    import torch

    five = trainers(tmp_path / f"skips-{skipped}", 5, saved / "zero2")
    arguments = SimpleNamespace(per_device_train_batch_size=8, gradient_accumulation_steps=1)
    torch.save(arguments, five / "training_args.bin")
    position = planned(five, TRAINER, 2, *argv).resume
    assert position is not None
    assert (position.seen, position.skipped, position.ignores) == (seen, skipped, False)
    again = planned(five, TRAINER, 2, "--ignore_data_skip", *argv).resume
    assert again is not None
    assert again.ignores


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
    widened = (*words, "--allow-reshard", "--stage", "3", "--", "--output_dir", "out")
    converts = zlaunch(*widened, cwd=tmp_path)
    assert converts.status == 0, converts.err
    assert "out/checkpoint-5 is converted before the start: it was saved at stage 2" in converts.err
    assert "load_universal = true" in converts.out
    both = zlaunch(*words, "--", RESUME, "mine", cwd=tmp_path)
    assert (both.status, both.err.count("keep one")) == (2, 1)
    missing = zlaunch(*words, cwd=tmp_path)
    assert (missing.status, missing.err.count("no checkpoint in `trainer_output`")) == (66, 1)
