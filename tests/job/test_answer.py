"""What a program answered completes what its source told."""

from pathlib import Path
from typing import Any

import pytest

from tests.making import script
from zlaunch.job.answer import apply_answer
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface, Handover, Script
from zlaunch.job.spec import JobSpec, Stage
from zlaunch.job.trainer_releases import TrainerRelease

JOB = JobSpec(Path("train.py"))


def answered(job: JobSpec = JOB, **answer: Any) -> Script:
    unsure = script(interface=ConfigInterface.ACCELERATE, is_sure=False)
    given: Any = answer
    return apply_answer(unsure, given, job)


def trainer(**arguments: Any) -> Script:
    changed = list(arguments)
    return answered(reached="TrainingArguments", name="SFTConfig", arguments=arguments, changed=changed)


@pytest.mark.parametrize(
    ("reached", "interface", "handover"),
    [
        ("TrainingArguments", ConfigInterface.TRAINER, Handover.ACCELERATE),
        ("Accelerator", ConfigInterface.ACCELERATE, Handover.ACCELERATE),
        ("deepspeed.initialize", ConfigInterface.DEEPSPEED, Handover.VARIABLE),
        ("DistributedDataParallel", ConfigInterface.NONE, Handover.NOT),
    ],
)
def test_the_point_that_a_program_reached_tells_what_reads_the_ds_config(
    reached: str, interface: ConfigInterface, handover: Handover
) -> None:
    found = answered(reached=reached)
    assert (found.is_sure, found.interface, found.handover) == (True, interface, handover)


def test_a_program_without_deepspeed_is_told_by_what_it_trains_with() -> None:
    assert answered(reached="DistributedDataParallel").without_deepspeed == "DistributedDataParallel"


def test_a_program_that_parses_its_command_line_gets_the_ds_config_there() -> None:
    assert answered(reached="TrainingArguments", takes_flags=True).config_flags == ("--deepspeed",)


def test_an_argument_has_the_value_that_the_program_gave_it_and_names_its_class() -> None:
    args, findings = trainer(learning_rate=3e-4).trainer_args(ScriptArgs.of(()), TrainerRelease())
    assert (args["learning_rate"].value, str(args["learning_rate"].source)) == (
        3e-4,
        "`learning_rate` of SFTConfig",
    )
    assert not findings


def test_the_length_of_its_sequences_is_what_it_read_itself() -> None:
    assert answered(reached="Accelerator", seq_len=512).seq_len == 512


def test_arguments_are_reported_as_flags_unless_they_are_the_trainers_defaults() -> None:
    assert trainer(learning_rate=3e-4, weight_decay=0.0).reported == ScriptArgs(("--learning_rate", "0.0003"))


@pytest.mark.parametrize("own", ["ds.json", {"zero_optimization": {"stage": 1}}])
def test_a_ds_config_among_the_arguments_is_the_programs_own(own: object) -> None:
    found = trainer(deepspeed=own)
    assert found.own_config is not None
    assert (found.own_config.value, found.handover) == (own, Handover.NOT)


def test_the_ds_config_of_the_command_line_is_not_the_programs_own() -> None:
    job = JobSpec(Path("train.py"), ds_config=Path("ds.json"), config_flags=("--deepspeed",))
    assert answered(job, reached="deepspeed.initialize", ds_config="ds.json").own_config is None


def test_a_program_that_does_not_know_its_local_rank_wants_it() -> None:
    assert answered(reached="deepspeed.initialize", local_rank_flag="--local_rank").wants_local_rank


@pytest.mark.parametrize(("stage", "handover"), [(None, Handover.NOT), (1, Handover.ARGUMENTS)])
def test_a_ds_config_that_the_parser_names_is_used_unless_an_option_says_otherwise(
    stage: Stage | None, handover: Handover
) -> None:
    job = JobSpec(Path("train.py"), stage=stage)
    found = answered(job, reached="deepspeed.initialize", ds_config="ds.json", config_flags=["--ds_config"])
    assert found.handover is handover
