import pytest

from tests.each import each
from tests.making import script
from zlaunch.config.translate.launchers import ACCELERATE, DEEPSPEED, TORCHRUN, syntax_of
from zlaunch.errors import InputMissing, WrongUsage
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_releases import DEFAULTS
from zlaunch.launch.argument_checks import check_script_args
from zlaunch.launch.argument_hints import hint_for

PARSER = "parser = argparse.ArgumentParser()"
FLAGS = [
    flag.key.replace("-", "_")
    for launcher in (DEEPSPEED, TORCHRUN, ACCELERATE)
    for flag in syntax_of(launcher).flags
    if flag.key not in DEFAULTS
]


@each("name", FLAGS)
def test_a_flag_of_a_launcher_among_the_scripts_own_is_refused(name: str) -> None:
    with pytest.raises(WrongUsage, match=f"unrecognized argument `--{name}`"):
        check_script_args(script(PARSER), ScriptArgs.of(["--lr", "1", f"--{name}", "1"]))


def test_a_misplaced_flag_is_answered_with_the_right_one() -> None:
    with pytest.raises(WrongUsage) as caught:
        check_script_args(script(PARSER), ScriptArgs.of(["--nproc-per-node=4"]))
    assert caught.value.hint == "put `--gpus 4` before the script"


def test_a_flag_in_an_example_of_the_docstring_is_not_defined() -> None:
    text = f'"""Train.\n\n    torchrun --nproc_per_node 2 train.py\n"""\n{PARSER}'
    with pytest.raises(WrongUsage, match="unrecognized argument `--nproc_per_node`"):
        check_script_args(script(text), ScriptArgs.of(["--nproc_per_node=4"]))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("model_name_or_path", "model"), ("train_file", "dataset"), ("max_seq_len", "sequence_length")],
)
def test_another_name_for_an_argument_of_the_script_is_answered_with_its_own(typed: str, meant: str) -> None:
    known = ["lr_scheduler", "do_train", "model", "dataset", "sequence_length"]
    assert hint_for(f"--{typed}", known) == f"did you mean `--{meant}`?"


def test_a_flag_that_nobody_needs_is_to_be_left_out() -> None:
    with pytest.raises(WrongUsage) as caught:
        check_script_args(script(PARSER), ScriptArgs.of(["--standalone"]))
    assert caught.value.hint == "leave it out: zlaunch picks a free port"


@pytest.mark.parametrize("name", ["num_gpus", "stage", "ds_config"])
def test_a_flag_that_the_script_declares_is_its_own(name: str) -> None:
    check_script_args(script(f"{PARSER}\nparser.add_argument('--{name}')"), ScriptArgs.of([f"--{name}", "1"]))


@pytest.mark.parametrize("flag", ["--learn", "--per-device-train", "--grad"])
def test_a_shortened_argument_of_the_trainer_is_to_be_written_out(flag: str) -> None:
    with pytest.raises(WrongUsage, match="is an abbreviation of"):
        check_script_args(script(PARSER), ScriptArgs.of([flag, "1"]))


@pytest.mark.parametrize("flag", ["--learning_rate", "--lr", "--max"])
def test_an_argument_that_is_not_shortened_is_the_scripts_own(flag: str) -> None:
    check_script_args(script(PARSER), ScriptArgs.of([flag, "1"]))


def test_a_flag_that_the_script_declares_is_no_shortened_one() -> None:
    check_script_args(script(f"{PARSER}\nparser.add_argument('--warmup')"), ScriptArgs.of(["--warmup", "1"]))


def test_a_flag_that_the_script_has_as_a_field_is_its_own() -> None:
    check_script_args(
        script("HfArgumentParser(Mine)\nclass Mine:\n    stage: str"), ScriptArgs.of(["--stage", "sft"])
    )


@pytest.mark.parametrize("declared", ["parser.add_argument('--stage_name')", "    stage_name: str"])
def test_an_abbreviation_of_a_flag_that_the_script_declares_is_its_own(declared: str) -> None:
    check_script_args(script(f"{PARSER}\n{declared}"), ScriptArgs.of(["--stage", "sft"]))


@pytest.mark.parametrize("flag", ["--stage", "--warm", "--micro-batch"])
def test_a_flag_may_be_defined_by_a_module_that_the_script_imports(flag: str) -> None:
    check_script_args(script(PARSER, has_other_modules=True), ScriptArgs.of([flag, "1"]))


@each("interface", [one for one in ConfigInterface if one is not ConfigInterface.TRAINER])
def test_only_a_script_of_the_trainer_has_abbreviations_of_its_arguments(interface: ConfigInterface) -> None:
    check_script_args(script(PARSER, interface), ScriptArgs.of(["--learn", "1"]))


def test_the_trainer_has_no_ds_config_of_that_name() -> None:
    with pytest.raises(InputMissing, match="cannot read the ds_config `zero3`"):
        check_script_args(script(PARSER), ScriptArgs.of(["--deepspeed", "zero3"]))


@pytest.mark.parametrize(
    ("flag", "meant"),
    [("--dryrun", "--dry-run"), ("--max-restart", "--max-restarts"), ("--dsconfig", "--ds-config")],
)
def test_a_misspelled_option_of_zlaunch_is_not_the_scripts(flag: str, meant: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        check_script_args(script(PARSER), ScriptArgs.of([flag]))
    assert caught.value.hint == f"did you mean `{meant}`?"


def test_an_option_of_an_estimate_has_another_name_in_a_script() -> None:
    with pytest.raises(WrongUsage) as caught:
        check_script_args(script(PARSER), ScriptArgs.of(["--micro-batch", "8"]))
    assert caught.value.hint == "did you mean `--per_device_train_batch_size`?"


def test_an_option_of_an_estimate_is_a_key_of_the_ds_config_for_a_script_without_a_trainer() -> None:
    loop = script(PARSER, ConfigInterface.DEEPSPEED)
    with pytest.raises(WrongUsage) as caught:
        check_script_args(loop, ScriptArgs.of(["--micro-batch", "8"]))
    assert caught.value.hint == "put `--set train_micro_batch_size_per_gpu=8` before the script"


@each("name", DEFAULTS)
def test_no_argument_of_the_trainer_is_taken_for_a_slip(name: str) -> None:
    check_script_args(script(PARSER), ScriptArgs.of([f"--{name}", "1"]))


def test_a_flag_that_no_launcher_has_is_the_scripts_own() -> None:
    check_script_args(script(PARSER), ScriptArgs.of(["--lr", "1"]))


@pytest.mark.parametrize("flag", ["--stgae", "--ofload", "--gpu"])
def test_a_misspelled_option_is_not_lost_in_a_script_that_reads_no_arguments(flag: str) -> None:
    with pytest.raises(WrongUsage, match="unrecognized argument"):
        check_script_args(script("print('hi')"), ScriptArgs.of([flag, "3"]))


def test_a_script_that_reads_its_arguments_itself_may_have_any() -> None:
    check_script_args(script("print(sys.argv)"), ScriptArgs.of(["--stgae", "3"]))


def test_a_script_whose_arguments_are_elsewhere_is_not_judged() -> None:
    imports = script("HfArgumentParser(Arguments)", is_sure=False, has_other_modules=True)
    check_script_args(imports, ScriptArgs.of(["--num_gpus", "2", "--stages", "3"]))


def test_a_script_whose_parser_is_elsewhere_is_not_judged() -> None:
    check_script_args(script("from mine import main\nmain()"), ScriptArgs.of(["--num_gpus", "2"]))
