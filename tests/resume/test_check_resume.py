"""What is refused before the start of a job that resumes from a checkpoint."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoint.made import T, safetensors
from tests.checkpoint.swapping import put_on_nvme
from tests.checkpoint.trainers import trainers
from tests.each import each
from tests.making import script
from tests.resume.resuming import LOOP, PASSES, TRAINER, findings, planned
from tests.running import ACTIVATED, zlaunch
from zlaunch.errors import Finding, Severity
from zlaunch.job.script import RESUME, ConfigInterface, Script
from zlaunch.job.spec import Offload
from zlaunch.launch.plan import LaunchPlan

pytestmark = pytest.mark.job


def refused(plan: LaunchPlan) -> list[tuple[str, str | None]]:
    found = findings(plan)
    assert all(one.severity is not Severity.ADVICE for one in found)
    return [(one.message, one.hint) for one in found]


def only(plan: LaunchPlan) -> Finding:
    (found,) = findings(plan)
    return found


def test_without_a_complete_checkpoint_the_newest_is_taken_and_its_damage_told(
    saved: Path, tmp_path: Path
) -> None:
    ten = trainers(tmp_path, 10, saved / "zero2")
    next(ten.glob("*/*rank_1*")).write_bytes(b"PK")
    found = only(planned(tmp_path))
    assert (found.code, found.where) == ("bad-checkpoint", "--resume")
    assert found.hint is not None
    assert "zlaunch checkpoint list" in found.hint


def test_a_trainer_script_gets_the_checkpoint_as_its_argument(saved: Path, tmp_path: Path) -> None:
    five = trainers(tmp_path, 5, saved / "zero2")
    plan = planned(five)
    assert plan.script_words[1:3] == (RESUME, str(five))
    assert findings(plan) == []


def test_an_engine_loop_gets_what_load_checkpoint_takes_in_variables(saved: Path) -> None:
    plan = planned(saved / "zero2", LOOP)
    told = {name: one.value for name, one in plan.environment.items() if name.startswith("ZLAUNCH_RESUME")}
    assert told == {"ZLAUNCH_RESUME": str(saved / "zero2"), "ZLAUNCH_RESUME_TAG": "global_step3"}
    assert findings(plan) == []


def test_a_job_with_its_optimizer_on_nvme_resumes_in_memory(saved: Path, tmp_path: Path) -> None:
    five = trainers(tmp_path, 5, saved / "zero3-cpu")
    put_on_nvme(five / "global_step3")
    found = only(planned(five, stage=3, offload=Offload("nvme", "cpu"), nvme_dir=tmp_path))
    assert found.message == "DeepSpeed loads no moments of Adam to NVMe, and not all weights"
    assert found.hint is not None
    assert found.hint.startswith("train with `--offload cpu --allow-reshard`; or `zlaunch checkpoint export")


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
def test_a_script_that_would_restart_at_step_0_is_refused_with_the_line_to_write(
    told: Script, hint: str, saved: Path, tmp_path: Path
) -> None:
    plan = planned(trainers(tmp_path / told.interface.value, 5, saved / "zero2"), told)
    found = only(plan)
    assert (found.code, found.severity, found.hint) == ("unfit-checkpoint", Severity.FAILS_LATER, hint)
    assert found.message.endswith(": training would restart at step 0")


def test_the_end_of_a_run_recalls_what_was_forced(saved: Path, tmp_path: Path) -> None:
    lines = ("import deepspeed, os", "os.environ['ZLAUNCH_DS_CONFIG']", "raise ValueError('no such step')")
    (tmp_path / "loop.py").write_text("\n".join(lines))
    words = ("train", "loop.py", "--resume", saved / "zero2", "--gpus", 2, "--stage", 2, "--force")
    result = zlaunch(*words, cwd=tmp_path, env=ACTIVATED)
    assert result.status == 1, result.err
    told = "`--force` started it with 1 known problem: loop.py ignores `$ZLAUNCH_RESUME`:"
    assert told in " ".join(result.err.split())
    assert told in " ".join(zlaunch("runs", "why", cwd=tmp_path).out.split())


def test_a_script_that_may_be_told_in_another_module_is_not_refused(saved: Path, tmp_path: Path) -> None:
    plan = planned(trainers(tmp_path, 5, saved / "zero2"), script("trainer.train()", has_other_modules=True))
    assert only(plan).severity is Severity.ADVICE
    assert plan.script_words[1] == RESUME


def test_the_command_that_makes_a_checkpoint_fit_is_told(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    five = trainers(tmp_path, 5, saved / "zero2")
    ((message, hint),) = refused(planned(five, ranks=4))
    assert message == "its optimizer is partitioned for 2 ranks, not for 4"
    assert hint == (
        f"add `--allow-reshard`; or convert it yourself: `zlaunch checkpoint reshard {five.name} --ranks 4 --stage 2 --precision bf16 --offload none`, then add "
        "`--set checkpoint.load_universal=true`; or use 2 ranks again"
    )
    *others, (message, hint) = refused(planned(five, stage=3, offload=Offload("cpu")))
    assert [one for _, one in others] == [None]
    assert hint is not None
    assert (
        f"`zlaunch checkpoint reshard {five.name} --ranks 2 --stage 3 --precision bf16 --offload cpu`" in hint
    )
    ((message, hint),) = refused(planned(five, stage=0))
    assert hint is not None
    assert hint.startswith("train with `--stage 2`; or `zlaunch checkpoint export")


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
    assert fits.script_words[1:3] == (RESUME, str(tmp_path / "moved"))


def test_a_trainer_does_not_resume_from_what_no_trainer_saved(saved: Path, tmp_path: Path) -> None:
    assert "was saved by DeepSpeed" in refused(planned(saved / "zero2"))[0][0]
    model = tmp_path / "checkpoint-5"
    model.mkdir()
    (model / "trainer_state.json").write_text('{"global_step": 5}')
    safetensors({"a": T((1,))}, model / "model.safetensors")
    ((message, hint),) = refused(planned(model))
    assert "has no files of DeepSpeed's engine" in message
    assert hint is not None
    assert hint.startswith("save without `--save_only_model`")


def test_a_model_is_refused_once(tmp_path: Path) -> None:
    safetensors({"a": T((1,))}, tmp_path / "model.safetensors")
    found = only(planned(tmp_path))
    assert found.message.endswith("is a model, without the state of a training")
    assert found.hint == "name it to the script as its model, such as `-- --model DIR`"


def test_load_state_is_not_given_what_it_cannot_load(saved: Path, tmp_path: Path) -> None:
    loads = script('accelerator.load_state(os.environ["ZLAUNCH_RESUME"])', ConfigInterface.ACCELERATE)
    assert refused(planned(saved / "accelerate", loads)) == []
    for one in (saved / "zero2", trainers(tmp_path, 5, saved / "zero2")):
        ((message, hint),) = refused(planned(one, loads))
        assert message.startswith("`accelerator.load_state` loads `pytorch_model`")
        assert hint == "name a directory that `accelerator.save_state` has written"
        also = replace(loads, source=loads.source + "\nload_checkpoint(model)")
        assert refused(planned(one, also)) == []


def test_another_optimizer_is_refused_with_both_named(saved: Path, tmp_path: Path) -> None:
    five = trainers(tmp_path, 5, saved / "zero2")
    found = only(planned(five, TRAINER, 2, "--optim", "sgd"))
    assert found.message == "torch's Adam saved it, without `momentum` and `dampening`, which SGD needs"
    assert found.hint is not None
    assert found.hint.startswith("train with the optimizer that saved it; or `zlaunch checkpoint export")
    assert findings(planned(five, TRAINER, 2, "--optim", "adamw_torch")) == []
    own = script(f"Trainer(optimizers=(mine, None)); {PASSES}")
    assert findings(planned(five, own, 2, "--optim", "sgd")) == []
    adam = (("optimizer.type", "AdamW"), ("optimizer.params.lr", 0.01))
    found = only(planned(saved / "zero2", LOOP, overrides=adam))
    assert found.message == "torch's Adam saved it, without `bias_correction`, which DeepSpeed's Adam needs"
    assert (found.hint or "").startswith(
        "add `--allow-reshard`; or convert it yourself: `zlaunch checkpoint univ"
    )


def test_a_key_by_which_numbers_are_loaded_in_another_order_is_refused(saved: Path) -> None:
    key = "zero_optimization.round_robin_gradients"
    found = only(planned(saved / "zero2", LOOP, overrides=((key, True),)))
    assert found.message == f"it was saved without `{key}`, so its optimizer has another order"
    assert found.hint == f"add `--set {key}=false`"
    assert only(planned(saved / "zero2-dealt-out", LOOP)).hint == f"add `--set {key}=true`"
    assert findings(planned(saved / "zero2-dealt-out", LOOP, overrides=((key, True),))) == []
    *_, last = findings(planned(saved / "zero2-dealt-out", LOOP, 3, overrides=((key, True),)))
    assert findings(planned(saved / "zero2", LOOP, overrides=((key, True),), stage=1)) != []
    assert last.hint is not None
    assert "--allow-reshard" in last.hint  # 3 ranks have one parameter of each group


def test_an_elastic_checkpoint_is_refused_with_the_command_for_its_weights(saved: Path) -> None:
    found = only(planned(saved / "zero1-elastic", LOOP, stage=1))
    assert "without the step" in found.message
    assert (found.hint or "").startswith("`zlaunch checkpoint export")
