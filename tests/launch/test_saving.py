"""How `--save DIR` reaches a program."""

from pathlib import Path

import pytest

from tests.running import RECIPE
from zlaunch.errors import WrongUsage
from zlaunch.launch.facts import default_recipe
from zlaunch.launch.saving import saving

TRAINER = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(None, args).train()
"""


def program(tmp_path: Path, source: str) -> Path:
    (tmp_path / "own.py").write_text(source)
    return tmp_path / "own.py"


def test_the_recipe_saves_the_model_and_the_newest_checkpoints() -> None:
    words = saving("out", default_recipe(), ())
    assert words == ("--output_dir", "out", "--save_strategy", "epoch", "--save_total_limit", "2")


def test_a_trainer_script_saves_when_it_does_anyway(tmp_path: Path) -> None:
    assert saving("out", program(tmp_path, TRAINER), ()) == ("--output_dir", "out")


def test_a_script_with_an_argument_of_this_name_gets_it_as_it_is(tmp_path: Path) -> None:
    own = program(tmp_path, 'import argparse\nargparse.ArgumentParser().add_argument("--save")')
    assert saving("out", own, ()) == ("--save", "out")


def test_a_script_that_takes_no_directory_is_not_given_one() -> None:
    with pytest.raises(WrongUsage, match=r"own_loop\.py decides itself where it saves"):
        saving("out", RECIPE.with_name("own_loop.py"), ())


def test_two_directories_are_one_too_many() -> None:
    with pytest.raises(WrongUsage, match="both name a directory"):
        saving("out", default_recipe(), ("--output_dir=other",))
