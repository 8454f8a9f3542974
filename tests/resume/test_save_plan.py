"""What a Trainer will save, as far as that is known before it starts."""

import json
from pathlib import Path

import pytest

from tests.checkpoint.trainers import trainers
from tests.each import each
from tests.making import script
from tests.resume.resuming import TRAINER, planned
from zlaunch.job.args import ScriptArgs
from zlaunch.job.recipes import default_recipe
from zlaunch.job.script import ConfigInterface
from zlaunch.job.script_reader import read_script
from zlaunch.resume.save_plan import SavePlan, plan_saves, save_arguments


def saves(argv: str, source: str = "") -> SavePlan:
    found = plan_saves(script(source), ScriptArgs.of(argv.split()), None)
    assert found is not None
    return found


@each(
    ("argv", "strategy", "every", "count", "most"),
    [
        ("", "steps", 500, None, None),
        ("--max_steps 1200", "steps", 500, 3, 3),
        ("--max_steps 1000 --save_steps 250", "steps", 250, 4, 4),
        ("--max_steps 1000 --save_steps 0.1", "steps", 100, 10, 10),
        ("--max_steps 1000 --save_steps 1", "steps", 1, 1000, 1000),
        ("--save_total_limit 2", "steps", 500, None, 3),
        ("--max_steps 600 --save_total_limit 5", "steps", 500, 2, 2),
        ("--save_strategy epoch --max_steps 9", "epoch", None, None, None),
        ("--save_strategy best", "best", None, None, None),
        ("--save_steps x", "steps", None, None, None),
    ],
)
def test_arguments_say_when_a_trainer_saves(
    argv: str, strategy: str, every: int | None, count: int | None, most: int | None
) -> None:
    found = saves(argv)
    assert (found.strategy, found.every, found.count, found.most) == (strategy, every, count, most)


@pytest.mark.parametrize(
    ("changed", "more"),
    [
        ("", ("--save_strategy", "epoch", "--save_total_limit", "2")),
        ('save_strategy: str = "steps"', ()),
    ],
)
def test_a_copy_of_the_recipe_saves_checkpoints_as_the_recipe_does(
    changed: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    copy = tmp_path / "mine.py"
    written = 'save_strategy: str = "no"'
    copy.write_text(default_recipe().read_text().replace(written, changed or written))
    words = save_arguments(str(tmp_path / "out"), ScriptArgs(()), read_script(copy))
    assert words == ("--output_dir", str(tmp_path / "out"), *more)


@each(
    ("source", "every", "limit"),
    [
        ("args.save_steps = steps", None, 0),
        ("args.save_total_limit = keep", 500, None),
        ("TrainingArguments(save_steps=keep, save_total_limit=keep)", None, None),
    ],
)
def test_what_only_the_script_knows_is_not_taken_for_a_default(
    source: str, every: int | None, limit: int | None
) -> None:
    found = saves("--max_steps 1000", source)
    assert (found.every, found.limit) == (every, limit)


@each(
    ("argv", "source", "is_model_only"),
    [
        ("", "", False),
        ("--save_only_model True", "", True),
        ("--save_only_model", "", True),
        ("--save_only_model false", "TrainingArguments(save_only_model=True)", False),
    ],
)
def test_whether_anything_can_resume_from_what_is_saved(argv: str, source: str, is_model_only: bool) -> None:
    assert saves(argv, source).is_model_only is is_model_only


def test_what_the_script_sets_once_is_known(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "class Own(TrainingArguments):\n    save_steps: int = 10\n    save_only_model: bool = True\n"
        "    save_total_limit: int = 3\n"
        "HfArgumentParser(Own).parse_args_into_dataclasses()\nTrainer()\n"
    )
    found = plan_saves(read_script(own), ScriptArgs.of(["--max_steps", "100"]), None)
    assert found is not None
    assert (found.every, found.limit, found.count, found.most) == (10, 3, 10, 4)
    assert found.is_model_only


@each(
    ("arguments", "every", "most"),
    [
        ("save_steps=50, save_total_limit=2, max_steps=1000", 50, 3),
        ("max_steps=1000", 500, 2),
        ("save_steps=every, save_total_limit=2, max_steps=1000", None, 3),
        ("save_strategy='no'", None, None),
    ],
)
def test_a_trainer_whose_arguments_are_all_code_is_known_too(
    arguments: str, every: int | None, most: int | None, tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from transformers import Trainer, TrainingArguments\n"
        f"Trainer(model, TrainingArguments(output_dir='out', deepspeed='ds.json', {arguments})).train()\n"
    )
    found = plan_saves(read_script(own), ScriptArgs.of([]), None)
    assert (found and found.every, found and found.most) == (every, most)
    assert found is None or found.directory.name == "out"


@pytest.mark.parametrize("argv", ["--save_strategy no", "--save_strategy=no"])
def test_a_trainer_that_saves_nothing_has_no_plan_for_it(argv: str) -> None:
    assert plan_saves(script(), ScriptArgs.of(argv.split()), None) is None


@pytest.mark.parametrize(
    "source",
    [
        'TrainingArguments(save_strategy="steps", eval_strategy="no")',
        'if args.save_strategy == "no": print()',
    ],
)
def test_a_trainer_whose_source_only_mentions_no_saves(source: str) -> None:
    assert plan_saves(script(source), ScriptArgs.of([]), None) is not None


def test_a_loop_decides_itself_when_it_saves() -> None:
    assert plan_saves(script(interface=ConfigInterface.DEEPSPEED), ScriptArgs.of([]), None) is None


@pytest.mark.job
def test_a_resumed_trainer_saves_as_often_as_its_checkpoint_says(saved: Path, tmp_path: Path) -> None:
    five = trainers(tmp_path, 5, saved / "zero2")
    (five / "trainer_state.json").write_text(json.dumps({"global_step": 5, "save_steps": 4}))
    found = planned(five, TRAINER, 2, "--save_steps", "100", "--max_steps", "14").saves
    assert found is not None
    assert (found.every, found.is_kept, found.resumed_step) == (4, True, 5)
    assert found.count == len({8, 12, 14})
    assert [step for step in range(20) if found.is_at(step)] == [8, 12, 14]
