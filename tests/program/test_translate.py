"""`zlaunch config translate`, as a person runs it: one line on stdout, what changed on stderr."""

import shlex
from pathlib import Path

import pytest

from tests.running import Result, zlaunch

FILES = {
    "train.py": "import argparse\nargparse.ArgumentParser().parse_args()\n",
    "ds.json": '{"zero_optimization": {"stage": 2}}',
    "a.yaml": "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stage: 3\n",
    "wrong.yaml": "distributed_type: DEEPSPEED\nzero_stge: 3\n",
    "ignored.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stge: 3\n",
    "ds.yaml": "zero_optimization:\n  stage: 2\n",
}
DEEPSPEED = ["deepspeed", "--num_gpus", "2", "train.py", "--deepspeed", "ds.json"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def translate(*words: str, folder: Path) -> Result:
    environment = {"HF_HOME": str(folder / "hf"), "COLUMNS": "80"}
    return zlaunch("config", "translate", *words, cwd=folder, env=environment)


@pytest.mark.parametrize(
    "words", [DEEPSPEED, ["--", *DEEPSPEED], [shlex.join(DEEPSPEED)]], ids=["bare", "after --", "quoted"]
)
def test_the_command_line_stands_alone_on_stdout(words: list[str], folder: Path) -> None:
    found = translate(*words, folder=folder)
    assert found.out == "zlaunch train train.py --ds-config ds.json --gpus 2 --launcher deepspeed\n"


def test_what_changed_fits_into_a_narrow_terminal(folder: Path) -> None:
    found = translate("--", *DEEPSPEED, folder=folder)
    assert max(map(len, found.err.splitlines())) <= 80


def test_every_change_has_a_line_on_stderr(folder: Path) -> None:
    found = translate("--", *DEEPSPEED, folder=folder)
    assert [line.split("  ")[0] for line in found.err.splitlines()] == [
        "--deepspeed ds.json",
        "--num_gpus 2",
        "--local_rank",
    ]


@pytest.mark.parametrize(
    ("words", "status", "part"),
    [
        (["a.yaml", "--", "train.py"], 0, "zero_stage: 3"),
        (["wrong.yaml", "--", "train.py"], 65, "accelerate has no field `zero_stge`"),
        (["ignored.yaml", "--", "train.py"], 0, "zero_stge: 3"),
        (["ds.yaml", "--", "train.py"], 65, "ds.json"),
        (["ds.json", "--", "train.py"], 65, "--ds-config ds.json"),
        (["nosuch.yaml", "--", "train.py"], 66, "nosuch.yaml"),
        (["--", "torchrun", "--num_gpus", "2", "train.py"], 2, "did you mean `--nproc_per_node`?"),
        (["--", "torchrun", "--no_python", "train"], 65, "only starts Python scripts"),
        (["--", "python", "train.py"], 2, "start with"),
        (["--", "trl", "sft", "--num_processes", "2"], 0, "--num_processes 2"),
        (["--", "trl", "env"], 2, "`trl env` does not train a model"),
        ([], 2, "COMMAND"),
    ],
)
def test_the_exit_status_says_how_it_went(words: list[str], status: int, part: str, folder: Path) -> None:
    found = translate(*words, folder=folder)
    assert (found.status, part in found.err) == (status, True)


def test_accelerates_default_config_is_read_as_accelerate_reads_it(folder: Path) -> None:
    (folder / "hf" / "accelerate").mkdir(parents=True)
    (folder / "hf" / "accelerate" / "default_config.yaml").write_text(FILES["a.yaml"])
    found = translate("--", "accelerate", "launch", "train.py", "--fp16", folder=folder)
    assert found.out == "zlaunch train train.py --stage 3 --gpus 2 -- --fp16\n"


def test_a_program_that_starts_ranks_becomes_its_module(folder: Path) -> None:
    found = translate("--", "axolotl", "train", "a.yaml", folder=folder)
    assert found.out == "zlaunch train -m axolotl.cli.train -- a.yaml\n"


def test_the_command_line_can_be_pasted(folder: Path) -> None:
    found = translate("--", *DEEPSPEED, folder=folder)
    assert (
        zlaunch(*shlex.split(found.out)[1:], "--dry-run", cwd=folder, env={"DS_ACCELERATOR": "cpu"}).status
        == 0
    )
