"""`--json` everywhere alike: what prints data has it, and an error leaves stdout empty."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running import zlaunch
from zlaunch.cli import program
from zlaunch.cli.lazy import LazyCommand

WITHOUT = {
    "init": "asks, and writes a file",
    "config write": "writes a ds_config, which is JSON",
    "config schema": "writes a schema, which is JSON",
}


def commands(group: Any = program, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in group.commands.items():
        if isinstance(one, LazyCommand):
            yield f"{above}{name}", one.load()
        else:
            yield from commands(one, f"{above}{name} ")


def test_every_command_that_prints_data_has_json() -> None:
    have = {name for name, one in commands() if any("--json" in option.opts for option in one.params)}
    assert {name for name, _ in commands()} - have == set(WITHOUT)


@pytest.mark.parametrize(
    "words",
    [
        "train absent.py",
        "train --dry-run --stage 3 absent.py",
        "estimate ./absent",
        "plan ./absent",
        "config resolve absent.json",
        "config diff absent.json absent.json",
        "config explain no_such_key_at_all",
        "config translate -- torchrun",
        "checkpoint list absent",
        "checkpoint show absent",
        "checkpoint verify absent",
        "checkpoint can-resume absent",
        "checkpoint prune absent --keep 1",
        "checkpoint export absent out",
        "checkpoint universal absent",
        "checkpoint reshard absent",
        "recipes show absent",
        "runs show absent",
        "runs logs absent",
        "runs why absent",
        "runs stop absent",
        "runs rerun absent",
    ],
)
def test_an_error_with_json_is_on_stderr_alone(tmp_path: Path, words: str) -> None:
    command, dashes, rest = words.partition(" -- ")
    done = zlaunch(*command.split(), "--json", *filter(None, [dashes.strip()]), *rest.split(), cwd=tmp_path)
    assert (done.out, done.status != 0, done.err[:7]) == ("", True, "error: ")


def test_a_dry_run_is_one_object_with_the_source_of_each_value(tmp_path: Path) -> None:
    done = zlaunch("train", "--stage", 3, "--dry-run", "--json", cwd=tmp_path)
    plan = json.loads(done.out)
    assert (plan["ds_config"]["zero_optimization"]["stage"], len(plan["ranks"])) == (3, 2)
    assert plan["sources"]["zero_optimization.stage"] == "`--stage`"
    assert [*tmp_path.iterdir()] == []


def test_a_dry_run_leaves_out_the_values_of_secret_variables(tmp_path: Path) -> None:
    env = {"NCCL_SECRET_TOKEN": "hf_abcdefgh"}
    assert "hf_abcdefgh" not in zlaunch("train", "--dry-run", "--json", cwd=tmp_path, env=env).out


def test_a_translation_is_an_object_with_its_notes(tmp_path: Path) -> None:
    done = zlaunch(
        "config", "translate", "--json", "--", "torchrun", "--nproc_per_node", 2, "train.py", cwd=tmp_path
    )
    told = json.loads(done.out)
    assert told["command"].startswith("zlaunch train train.py")
    assert {"about": "--nproc_per_node 2", "text": "`--gpus 2`"} in told["notes"]


@pytest.mark.job
def test_the_last_line_of_a_run_is_an_object_about_it_as_in_rerun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('import os\nos.environ["ZLAUNCH_DS_CONFIG"]\nprint("trained")\n')
    done = zlaunch("train", "train.py", "--no-ask", "--run-dir", "out", "--json", cwd=tmp_path)
    told = json.loads(done.out.splitlines()[-1])
    planned = json.loads(zlaunch("runs", "rerun", "./out", "--dry-run", "--json", cwd=tmp_path).out)
    assert (told["state"], Path(told["directory"]).name, told["exit_status"]) == ("finished", "out", 0)
    assert planned["ds_config"]["zero_optimization"]["stage"] == told["stage"]
