"""What is found wrong, before a start, with what a Trainer will save."""

from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from tests.facts import facts_of
from tests.making import CPU_MACHINE, LAYOUT, PYTHON, SHAPE, local, script
from zlaunch.checks.host import check_host
from zlaunch.checks.requirements import DiskUse, Requirements
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Severity
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.resources import Disk, FreeResources
from zlaunch.job.args import ScriptArgs
from zlaunch.job.spec import JobSpec, Offload
from zlaunch.launch.all_hosts import findings_of
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan
from zlaunch.resume.check_saves import check_saves

MIB = 1 << 20


def inputs(*argv: str, source: str = "", config: str | None = None, **asked: Any) -> JobFacts:
    return facts_of(
        job=JobSpec(Path("train.py"), ScriptArgs.of(argv), **asked),
        script=script(source),
        ds_config=None if config is None else parse(config, "ds.json"),
        model=SHAPE,
        machine=CPU_MACHINE,
        topology=local(0, 1),
        layout=LAYOUT,
        environ={},
        python=PYTHON,
    )


ALONE = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'


@each(
    ("asked", "hinted"),
    [
        ({"config": ALONE}, 1),
        ({"config": ALONE, "stage": 2}, 0),
        ({"stage": 3}, 0),
        ({"config": ALONE.replace("3}", '3, "stage3_gather_16bit_weights_on_model_save": true}')}, 0),
    ],
)
def test_a_model_that_could_not_be_loaded_is_told_before_the_start(
    asked: dict[str, Any], hinted: int
) -> None:
    given = inputs(**asked)
    found = list(check_saves(make_plan(given).training))
    assert [one.severity for one in found] == [Severity.ADVICE] * hinted
    assert all("stage3_gather_16bit_weights_on_model_save=true`" in (one.hint or "") for one in found)


@each(
    ("argv", "severity", "said"),
    [
        ("--output_dir file/out", Severity.FAILS_LATER, "file is not a directory"),
        ("--output_dir file/out --save_strategy no", Severity.FAILS_LATER, "file is not a directory"),
        ("--output_dir out[1]", Severity.ADVICE, "may find no checkpoint in it"),
        ("--output_dir out[1] --load_best_model_at_end", Severity.FAILS_LATER, "at_end` fails"),
        ("--output_dir out* --load_best_model_at_end", Severity.ADVICE, "may find no checkpoint in it"),
    ],
)
def test_a_directory_that_cannot_be_saved_to_or_loaded_from_is_told_before_the_start(
    argv: str, severity: Severity, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (found,) = check_saves(make_plan(inputs(*argv.split(), stage=2)).training)
    assert (found.severity, said in found.message) == (severity, True)


def test_a_directory_that_can_be_written_is_passed_over_in_silence(tmp_path: Path) -> None:
    assert list(check_saves(make_plan(inputs("--output_dir", str(tmp_path / "out"), stage=2)).training)) == []


@each(
    ("argv", "asked", "severities"),
    [
        ("--save_steps 4 --max_steps 8", {"offload": Offload("nvme")}, [Severity.FAILS_LATER]),
        ("--save_steps 4 --max_steps 7", {"offload": Offload("nvme")}, [Severity.ADVICE]),
        ("--save_steps 4", {"offload": Offload("nvme")}, [Severity.ADVICE]),
        ("--save_steps 4 --max_steps 8", {"offload": Offload("cpu")}, []),
    ],
)
def test_an_optimizer_on_nvme_is_not_saved_over_an_earlier_one(
    argv: str, asked: dict[str, Any], severities: list[Severity], tmp_path: Path
) -> None:
    (tmp_path / "checkpoint-8" / "global_step8" / "offloaded_tensors").mkdir(parents=True, exist_ok=True)
    given = inputs(*argv.split(), "--output_dir", str(tmp_path), stage=3, nvme_dir=Path("/nvme"), **asked)
    found = list(check_saves(make_plan(given).training))
    assert [one.severity for one in found] == severities
    assert all("/checkpoint-8 --offload cpu --allow-reshard`" in (one.hint or "") for one in found)


@each(
    ("argv", "asked", "codes"),
    [
        ("--save_steps 4 --max_steps 8", {"stage": 2}, ["mixed-checkpoint"]),
        ("--save_steps 4 --max_steps 7", {"stage": 2}, []),
        ("--save_steps 4 --max_steps 8", {"stage": 3}, ["mixed-checkpoint"]),
        ("--save_steps 5 --max_steps 8", {"stage": 3}, ["mixed-checkpoint"]),  # the last is saved, too
    ],
)
def test_a_checkpoint_of_more_ranks_or_another_stage_is_not_silently_saved_over(
    argv: str, asked: dict[str, Any], codes: list[str], tmp_path: Path
) -> None:
    ranks = 2 if asked["stage"] == 3 else 3  # this job has 2
    folder = tmp_path / f"of-{ranks}" / "checkpoint-8" / "global_step8"
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        (folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    (folder / "mp_rank_00_model_states.pt").touch()
    plan = make_plan(inputs(*argv.split(), "--output_dir", str(folder.parents[1]), **asked))
    assert [one.code for one in check_saves(plan.training)] == codes


@pytest.mark.parametrize(("steps", "overwritten"), [(7, []), (8, [8]), (20, [8, 12, 16, 20])])
def test_checkpoints_that_will_be_overwritten_are_named(
    steps: int, overwritten: list[int], tmp_path: Path
) -> None:
    for step in (8, 12, 16, 20):
        folder = tmp_path / f"checkpoint-{step}" / f"global_step{step}"
        folder.mkdir(parents=True)
        (folder.parent / "trainer_state.json").write_text("{}")
        for rank in range(2):
            (folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
        (folder / "mp_rank_00_model_states.pt").touch()
    words = f"--save_steps 4 --max_steps {steps} --output_dir {tmp_path}"
    found = list(check_saves(make_plan(inputs(*words.split(), stage=2)).training))
    assert [one.code for one in found] == ["overwrites-checkpoints"] * bool(overwritten)
    assert all(f"checkpoint-{step}" in found[0].message for step in overwritten[:3])


def test_a_disk_with_room_for_one_checkpoint_of_many_is_worth_a_warning() -> None:
    use = DiskUse(Path("/out"), 10 * MIB, "a checkpoint", "`-- --output_dir DIR`", over_run=100 * MIB)
    needs = Requirements(ranks=1, writes=(use,))
    for free, severities in ((200, []), (50, [Severity.ADVICE]), (5, [Severity.FAILS_LATER])):
        room = FreeResources(disks={use.path: Disk(1, 999 * MIB, free * MIB)})
        found = findings_of(check_host(MachineFacts(PYTHON, free=room), needs))
        assert [one.severity for one in found] == severities
