"""What is said of a run whose script created no engine in the process that is watched."""

from pathlib import Path

import pytest

from zlaunch.rundir.record import ProgramRecord
from zlaunch.rundir.run_files import RunFiles
from zlaunch.runs.what_ran import differences


def told(program: ProgramRecord) -> list[str]:
    return differences(
        RunFiles(Path("run"), job={"interface": "trainer"}, ending={"how": "finished"}, programs={0: program})
    )


@pytest.mark.parametrize(
    "program",
    [ProgramRecord(trainer_args={"max_steps": 1}), ProgramRecord(parallel=["FullyShardedDataParallel"])],
)
def test_a_ds_config_had_no_effect_if_the_script_trained_without_an_engine(program: ProgramRecord) -> None:
    assert "so the ds_config had no effect" in told(program)[0]


def test_a_process_that_the_script_started_may_have_created_the_engine() -> None:
    assert told(ProgramRecord()) == [
        "the script created no DeepSpeed engine, unless in a process that it started"
    ]
