"""What a Trainer is said to save before it starts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from tests.making import CPU_MACHINE, LAYOUT, PYTHON, SHAPE, local, script
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Severity
from zlaunch.hosts.machine import Disk, FreeResources
from zlaunch.job.script import ConfigInterface
from zlaunch.job.spec import JobSpec
from zlaunch.launch.facts import default_recipe
from zlaunch.launch.plan import LaunchPlan, PlanInputs, make_plan
from zlaunch.launch.preflight.checks import check_resources
from zlaunch.launch.preflight.requirements import DiskUse, ResourceRequirements, saves_of
from zlaunch.launch.preflight.saves import SavePlan, check_loadable, save_note

MIB = 1 << 20


def inputs(*argv: str, source: str = "", config: str | None = None, **asked: Any) -> PlanInputs:
    return PlanInputs(
        job=JobSpec(Path("train.py"), argv, **asked),
        script=script(source),
        base=None if config is None else parse(config, "ds.json"),
        model=SHAPE,
        machine=CPU_MACHINE,
        topology=local(0, 1),
        port=2950,
        layout=LAYOUT,
        environ={},
        python=PYTHON,
    )


@each(
    ("argv", "when", "count", "most"),
    [
        ("", "every 500 steps", None, None),
        ("--max_steps 1200", "every 500 steps", 3, 3),
        ("--max_steps 1000 --save_steps 250", "every 250 steps", 4, 4),
        ("--max_steps 1000 --save_steps 0.1", "every 100 steps", 10, 10),
        ("--max_steps 1000 --save_steps 1", "every 1 step", 1000, 1000),
        ("--save_total_limit 2", "every 500 steps", None, 3),
        ("--max_steps 600 --save_total_limit 5", "every 500 steps", 2, 2),
        ("--save_strategy epoch --max_steps 9", "after each epoch", None, None),
        ("--save_strategy best", "when the metric is best", None, None),
        ("--save_steps x", "when the script says", None, None),
    ],
)
def test_arguments_say_when_a_trainer_saves(
    argv: str, when: str, count: int | None, most: int | None
) -> None:
    found = saves_of(inputs(*argv.split()))
    assert found is not None
    assert (found.when, found.count, found.most) == (when, count, most)


def test_what_the_source_may_set_is_not_taken_for_a_default() -> None:
    found = saves_of(inputs("--max_steps", "1000", source="save_steps: int = 10"))
    assert found is not None
    assert (found.when, found.most) == ("when the script says", None)


@pytest.mark.parametrize("argv", [("--save_strategy", "no"), ("--save_strategy=no",)])
def test_a_trainer_that_saves_nothing_has_no_plan_for_it(argv: tuple[str, ...]) -> None:
    assert saves_of(inputs(*argv)) is None


def test_a_loop_decides_itself_when_it_saves() -> None:
    loop = replace(inputs(), script=script(interface=ConfigInterface.DEEPSPEED))
    assert saves_of(loop) is None
    assert save_note(make_plan(loop), None, None) is None


def planned(*argv: str, **asked: Any) -> LaunchPlan:
    return make_plan(inputs(*argv, **asked))


def test_the_note_says_how_much_is_on_the_disk_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saves = SavePlan(tmp_path / "out", "every 5 steps", 4, None)
    said = save_note(planned(), saves, 50 * MIB)
    assert said is not None
    assert said.startswith("a checkpoint every 5 steps to out, 50 MiB each, 4 in all: 200 MiB; ")
    limited = save_note(planned(), replace(saves, limit=1), 50 * MIB)
    assert limited is not None
    assert "at most 2 at once: 100 MiB" in limited
    unknown = save_note(planned(), replace(saves, count=None), None)
    assert unknown is not None
    assert "every 5 steps to out, all of them kept; " in unknown


def test_a_recipe_that_saves_nothing_says_what_to_type() -> None:
    plan = planned()
    assert save_note(plan, None, None) == "no checkpoints"
    recipe = replace(plan, program=replace(plan.program, path=default_recipe()))
    assert save_note(recipe, None, None) == "nothing; `--save DIR` keeps the model"


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
    found = list(check_loadable(make_plan(given), saves_of(given)))
    assert [one.severity for one in found] == [Severity.ADVICE] * hinted
    assert all("stage3_gather_16bit_weights_on_model_save=true`" in (one.hint or "") for one in found)


def test_a_disk_with_room_for_one_checkpoint_of_many_is_worth_a_warning() -> None:
    use = DiskUse(Path("/out"), 10 * MIB, "a checkpoint", "`-- --output_dir DIR`", over_run=100 * MIB)
    needs = ResourceRequirements(ranks=1, writes=(use,))
    for free, severities in ((200, []), (50, [Severity.ADVICE]), (5, [Severity.FAILS_LATER])):
        room = FreeResources(disks={use.path: Disk(1, 999 * MIB, free * MIB)})
        assert [one.severity for one in check_resources(needs, room)] == severities
