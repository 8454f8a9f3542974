"""How `--save DIR` reaches a program."""

from pathlib import Path

import pytest

from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.job.args import ScriptArgs
from zlaunch.job.recipes import default_recipe
from zlaunch.job.spec import JobSpec
from zlaunch.launch.sources import read_sources

TRAINER = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(None, args).train()
"""


def program(tmp_path: Path, source: str) -> Path:
    (tmp_path / "own.py").write_text(source)
    return tmp_path / "own.py"


def saving(directory: str, script: Path, argv: tuple[str, ...] = ()) -> tuple[str, ...]:
    job = read_sources(JobSpec(script, ScriptArgs.of(argv), save=directory)).job
    assert job.save is None
    return job.args.words


def test_the_recipe_saves_the_model_and_the_newest_checkpoints() -> None:
    words = saving("out", default_recipe())
    assert words == ("--output_dir", "out", "--save_strategy", "epoch", "--save_total_limit", "2")


def test_a_trainer_script_saves_when_it_does_anyway(tmp_path: Path) -> None:
    assert saving("out", program(tmp_path, TRAINER)) == ("--output_dir", "out")


def test_a_trainer_script_with_modules_of_its_own_saves_in_the_same_way(tmp_path: Path) -> None:
    more = "import my_data\n@dataclass\nclass More:\n    save_name: str\n"
    assert saving("out", program(tmp_path, TRAINER + more)) == ("--output_dir", "out")


@pytest.mark.parametrize("flag", ["--save", "--output_dir", "--output-dir"])
def test_a_script_with_an_argument_for_it_gets_that(flag: str, tmp_path: Path) -> None:
    own = program(tmp_path, f'import argparse\nargparse.ArgumentParser().add_argument("{flag}")')
    assert saving("out", own) == (flag, "out")


def test_a_script_that_takes_no_directory_is_not_given_one(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match=r"own\.py has no known argument for the directory"):
        saving("out", program(tmp_path, "print('trained')"))


def test_two_directories_are_one_too_many() -> None:
    with pytest.raises(WrongUsage, match="both name a directory"):
        saving("out", default_recipe(), ("--output_dir=other",))


def test_a_file_is_no_directory_to_save_to_unless_the_script_has_its_own_argument(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    file.touch()
    with pytest.raises(Unavailable, match=r"`--save .*/model\.pt`: .* is not a directory"):
        saving(str(file), program(tmp_path, TRAINER))
    own = program(tmp_path, 'import argparse\nargparse.ArgumentParser().add_argument("--save")')
    assert saving(str(file), own) == ("--save", str(file))


def test_arguments_of_the_user_come_after_those_of_save(tmp_path: Path) -> None:
    words = saving("out", program(tmp_path, TRAINER), ("--save_steps", "5"))
    assert words == ("--output_dir", "out", "--save_steps", "5")
