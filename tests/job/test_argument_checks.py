import pytest

from tests.making import script
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.job.argument_checks import INSTEAD, refuse_misplaced, refuse_unreachable
from zlaunch.job.script import Interface
from zlaunch.job.trainer_args import DEFAULTS

PARSER = "parser = argparse.ArgumentParser()"


@pytest.mark.parametrize("name", INSTEAD)
def test_a_flag_of_a_launcher_among_the_scripts_own_is_refused(name: str) -> None:
    with pytest.raises(WrongUsage, match=f"`--{name}` stands among"):
        refuse_misplaced(script(PARSER), ["--lr", "1", f"--{name}", "1"])


def test_a_misplaced_flag_is_answered_with_the_right_one() -> None:
    with pytest.raises(WrongUsage) as caught:
        refuse_misplaced(script(PARSER), ["--nproc-per-node=4"])
    assert caught.value.hint == "put `--gpus N` before the script"


def test_a_flag_that_nobody_needs_is_to_be_left_out() -> None:
    with pytest.raises(WrongUsage) as caught:
        refuse_misplaced(script(PARSER), ["--standalone"])
    assert caught.value.hint == "leave it out"


@pytest.mark.parametrize("name", ["num_gpus", "stage", "ds_config"])
def test_a_flag_that_the_script_declares_is_its_own(name: str) -> None:
    refuse_misplaced(script(f"{PARSER}\nparser.add_argument('--{name}')"), [f"--{name}", "1"])


@pytest.mark.parametrize("flag", ["--learn", "--per-device-train", "--grad"])
def test_a_shortened_argument_of_the_trainer_is_to_be_written_out(flag: str) -> None:
    with pytest.raises(WrongUsage, match="is short for"):
        refuse_misplaced(script(PARSER), [flag, "1"])


@pytest.mark.parametrize("flag", ["--learning_rate", "--lr", "--max"])
def test_an_argument_that_is_not_shortened_is_the_scripts_own(flag: str) -> None:
    refuse_misplaced(script(PARSER), [flag, "1"])


def test_a_flag_that_the_script_declares_is_no_shortened_one() -> None:
    refuse_misplaced(script(f"{PARSER}\nparser.add_argument('--warmup')"), ["--warmup", "1"])


def test_a_flag_that_the_script_has_as_a_field_is_its_own() -> None:
    refuse_misplaced(script("HfArgumentParser(Mine)\nclass Mine:\n    stage: str"), ["--stage", "sft"])


@pytest.mark.parametrize(
    ("flag", "meant"),
    [("--dryrun", "--dry-run"), ("--max-restart", "--max-restarts"), ("--dsconfig", "--ds-config")],
)
def test_a_misspelled_option_of_zlaunch_is_not_the_scripts(flag: str, meant: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        refuse_misplaced(script(PARSER), [flag])
    assert caught.value.hint == f"did you mean `{meant}`?"


def test_an_option_of_an_estimate_has_another_name_in_a_script() -> None:
    with pytest.raises(WrongUsage) as caught:
        refuse_misplaced(script(PARSER), ["--micro-batch", "8"])
    assert caught.value.hint == "to a script with a Trainer it is `--per_device_train_batch_size`"


@pytest.mark.parametrize("name", DEFAULTS)
def test_no_argument_of_the_trainer_is_taken_for_a_slip(name: str) -> None:
    refuse_misplaced(script(PARSER), [f"--{name}", "1"])


def test_a_flag_that_no_launcher_has_is_the_scripts_own() -> None:
    refuse_misplaced(script(PARSER), ["--lr", "1"])


def test_a_script_whose_parser_is_elsewhere_is_not_judged() -> None:
    refuse_misplaced(script("from mine import main\nmain()"), ["--num_gpus", "2"])


def test_a_ds_config_of_the_scripts_own_is_refused() -> None:
    with pytest.raises(WrongUsage, match=r"train\.py:7"):
        refuse_unreachable(script(line=7), "cuda")


def test_accelerate_without_a_gpu_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="on GPUs only"):
        refuse_unreachable(script(interface=Interface.ACCELERATE), "cpu")


@pytest.mark.parametrize(
    ("interface", "accelerator"),
    [(Interface.ACCELERATE, "cuda"), (Interface.TRAINER, "cpu"), (Interface.DEEPSPEED, "cpu")],
)
def test_a_script_that_a_ds_config_reaches_is_not_refused(interface: Interface, accelerator: str) -> None:
    refuse_unreachable(script(interface=interface), accelerator)
