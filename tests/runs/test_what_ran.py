"""What a run trained with, and how that differs from its plan."""

from pathlib import Path
from typing import Any

import pytest

from zlaunch.rundir.run_files import RunFiles
from zlaunch.runs.what_ran import MOST_LINES, differences, engine_line

ENGINE = {
    "stage": 2,
    "micro_batch": 4,
    "grad_accum": 1,
    "train_batch_size": 8,
    "optimizer": "AdamW",
    "ds_config": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
}


def run(interface: str = "trainer", config: Any = None, **program: Any) -> RunFiles:
    ranks: Any = {0: program}
    return RunFiles(Path("run")).holding(
        job={"interface": interface},
        ending={"how": "finished"},
        config=config or {},
        programs=ranks if program else {},
    )


def test_an_engine_is_told_by_its_stage_precision_batch_and_optimizer() -> None:
    assert engine_line(run(engine=ENGINE)) == "ZeRO stage 2, bf16, batch 8, AdamW"


def test_without_an_engine_the_wrapper_of_torch_is_told() -> None:
    assert (
        engine_line(run(parallel=["DistributedDataParallel"]))
        == "no DeepSpeed engine; DistributedDataParallel"
    )


def test_nothing_is_told_of_a_run_that_recorded_nothing() -> None:
    assert engine_line(run()) is None


def test_a_run_that_did_as_planned_does_not_differ() -> None:
    planned = {
        "zero_optimization": {"stage": 2},
        "train_micro_batch_size_per_gpu": 4,
        "train_batch_size": "auto",
    }
    assert differences(run(config=planned, engine=ENGINE)) == []


def test_lines_that_accelerate_turns_off_are_no_difference() -> None:
    planned = {"steps_per_print": 10}
    assert differences(run("accelerate", planned, engine=ENGINE)) == []
    assert differences(run("deepspeed", planned, engine=ENGINE)) == ["`steps_per_print` is not set, not 10"]


def test_a_script_that_did_not_load_its_checkpoint_is_told() -> None:
    begun: Any = {0: {"first_step": 0, "step": 4}}
    files = run(engine=ENGINE).holding(job={"interface": "trainer", "resumed_step": 8}, heartbeats=begun)
    assert differences(files) == ["the script began at step 0, not at step 8 of its checkpoint"]
    begun[0]["first_step"] = 12
    assert differences(files) == ["the script began at step 12, not at step 8 of its checkpoint"]
    begun[0]["first_step"] = 8
    assert differences(files) == []
    del begun[0]["first_step"]
    assert differences(files) == []


def test_another_stage_than_the_planned_one_is_told_first() -> None:
    planned = {"bf16": {"enabled": False}, "zero_optimization": {"stage": 3}}
    assert differences(run(config=planned, engine=ENGINE)) == [
        "`zero_optimization.stage` is 2, not 3",
        "`bf16.enabled` is true, not false",
    ]


def test_many_differences_are_counted() -> None:
    planned = {f"key{number}": number for number in range(1, MOST_LINES + 4)}
    assert differences(run(config=planned, engine=ENGINE))[-1] == "3 more"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            {"parallel": ["DistributedDataParallel"]},
            "trained with DistributedDataParallel, so the ds_config had no",
        ),
        ({"trainer_args": {"seed": 1}}, "created no DeepSpeed engine, so the ds_config had no effect"),
        ({}, "created no DeepSpeed engine, unless in a process that it started"),
    ],
)
def test_no_more_is_claimed_of_a_run_without_an_engine_than_is_known(
    program: dict[str, Any], said: str
) -> None:
    (told,) = differences(run(**program))
    assert said in told


def test_an_engine_where_none_was_planned_is_told() -> None:
    (told,) = differences(run(interface="none", engine=ENGINE))
    assert told.startswith("the script created a DeepSpeed engine: ZeRO stage 2")


@pytest.mark.parametrize("step", [0, 3])
def test_a_run_that_failed_before_its_first_step_is_not_compared(step: int) -> None:
    files = RunFiles(Path("run")).holding(job={"interface": "trainer"}, heartbeats={0: {"step": step}})
    assert bool(differences(files)) == bool(step)
