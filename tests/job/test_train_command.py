"""The command that trains a program, as it is shown."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from zlaunch.cli.views.training_command import training_command
from zlaunch.job.args import ScriptArgs
from zlaunch.job.spec import JobSpec, Offload
from zlaunch.launch.estimated_script import train_command


def test_a_command_that_is_proposed_can_be_typed_into_a_shell() -> None:
    job = JobSpec(
        Path("a b.py"),
        args=ScriptArgs.of(["--name", "x y"]),
        python=Path("/v/bin/python"),
        ds_config=Path("-d.json"),
        stage=3,
        offload=Offload("nvme", "nvme"),
        nvme_dir=Path("/my drive"),
        overrides=(("fp16", {"enabled": True}),),
    )
    facts: Any = SimpleNamespace(job=job)
    assert train_command(facts) == (
        "zlaunch train 'a b.py' --python /v/bin/python --ds-config ./-d.json --stage 3 --offload nvme "
        "--nvme '/my drive' --set 'fp16={\"enabled\": true}' -- --name 'x y'"
    )


def test_a_ds_config_that_was_written_is_passed_in_the_environment_of_the_job() -> None:
    job = JobSpec(Path("a.py"), python=Path("/v/bin/python"))
    assert training_command(job, ["SCRIPT"], Path("-d.json"), ["--lr", "1"]) == [
        "  zlaunch train SCRIPT --python /v/bin/python --ds-config ./-d.json -- --lr 1"
    ]
