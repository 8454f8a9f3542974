"""What other programs call an option is answered with one that exists."""

import pytest

from tests.each import each
from tests.running import ROOT
from zlaunch.config.translate.launchers import ACCELERATE, DEEPSPEED, TORCHRUN, syntax_of
from zlaunch.config.translate.other_options import (
    SLANG,
    TRAINER_SLANG,
    OtherOption,
    other_option,
    trainer_argument,
)
from zlaunch.job.trainer_releases import DEFAULTS

SURFACE = (ROOT / "tests" / "surface.txt").read_text().splitlines()
OPTIONS = {option for line in SURFACE if line.startswith("zlaunch train ") for option in line.split()[2:]}
OTHERS = ("output_dir", "num_train_epochs", "dataloader_num_workers", "report_to", "torch_compile")
"""Arguments of the Trainer whose defaults zlaunch does not need."""
FLAGS = sorted(
    {
        name
        for launcher in (DEEPSPEED, TORCHRUN, ACCELERATE)
        for flag in syntax_of(launcher).flags
        for name in flag.names
        if name.startswith("--")
    }
)


@each("name", [*FLAGS, *SLANG])
def test_an_option_that_is_proposed_is_one_of_train(name: str) -> None:
    found = other_option(name)
    assert found is not None
    if found.option is None:
        assert found.why
    else:
        assert found.option.split()[0] in OPTIONS


@each("name", TRAINER_SLANG)
def test_slang_for_an_argument_of_the_trainer_is_no_name_of_one(name: str) -> None:
    assert name not in DEFAULTS
    assert trainer_argument(f"--{name}") in {*DEFAULTS, *OTHERS}


@pytest.mark.parametrize("written", ["--zero_stage", "zero-stage", "--zero"])
def test_dashes_make_no_difference(written: str) -> None:
    assert other_option(written) == OtherOption("--stage 3")


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("num_gpus", "2", "--gpus 2"),
        ("zero_stage", "1", "--stage 1"),
        ("zero3", "true", "--stage 3"),
        ("offload_optimizer_device", "nvme", "--offload optimizer:nvme"),
        ("offload_param", "cpu", "--offload param:cpu"),
        ("mixed_precision", "fp8", "--precision bf16"),
        ("deepspeed_config_file", "my ds.json", "--ds-config 'my ds.json'"),
        ("num_nodes", "2", "--hostfile FILE"),
        ("nodes", "2", "--hosts NODE1,NODE2"),
        ("max_restarts", "3", "--max-restarts 3"),
        ("gradient_clipping", "0.5", "--set gradient_clipping=0.5"),
        ("launcher", "pdsh", "--launcher deepspeed"),
    ],
)
def test_the_value_that_was_typed_is_kept_where_the_option_takes_it(
    name: str, value: str, option: str
) -> None:
    assert other_option(name, value) == OtherOption(option)


def test_an_option_of_nobody_is_not_answered() -> None:
    assert other_option("--colour") is None
    assert trainer_argument("--colour") is None
