"""Files in place of a training script that are no Python: what to type instead."""

import os
import re
from pathlib import Path

import pytest

from tests.each import each
from zlaunch.errors import InputMissing, WrongUsage
from zlaunch.job.file_kinds import read_ds_config
from zlaunch.job.script_reader import read_script

SHELL_SCRIPT = """#!/bin/bash
# torchrun in a comment
export NCCL_DEBUG=INFO
torchrun --nproc_per_node $N \\
    train.py --lr 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(path: str) -> WrongUsage:
    with pytest.raises(WrongUsage) as error:
        read_script(Path(path))
    assert f"`{path}` is " in error.value.message
    assert error.value.hint is not None
    return error.value


@each(
    ("name", "text", "hint"),
    [
        ("ds.json", '{"zero_optimization": {"stage": 2}}', "pass the script, and add `--ds-config ds.json`"),
        (
            "args.json",
            '{"learning_rate": 1}',
            "pass the program that reads it: `zlaunch train SCRIPT -- args.json`",
        ),
        ("broken.json", "{", "pass the program that reads it: `zlaunch train SCRIPT -- broken.json`"),
        ("null.json", "null", "pass the program that reads it: `zlaunch train SCRIPT -- null.json`"),
        ("a b.yaml", "base_model: m\ndatasets: []\n", "`zlaunch train -m axolotl.cli.train -- 'a b.yaml'`"),
        (
            "lf.yaml",
            "stage: sft\nfinetuning_type: lora\n",
            "`zlaunch train -m llamafactory.launcher -- lf.yaml`",
        ),
        (
            "acc.yml",
            "distributed_type: NO\n",
            "`zlaunch config translate acc.yml -- SCRIPT` writes the command of zlaunch",
        ),
        ("sft.yaml", "- 1\n", "pass the program that reads it: `zlaunch train SCRIPT -- sft.yaml`"),
        ("x.toml", "x = 1\n", "pass the program that reads it: `zlaunch train SCRIPT -- x.toml`"),
        ("n.ipynb", "{}", "`jupyter nbconvert --to script n.ipynb` writes `n.py`: give that to zlaunch"),
    ],
)
def test_a_file_that_is_no_script_gets_a_hint_by_its_contents(
    folder: Path, name: str, text: str, hint: str
) -> None:
    (folder / name).write_text(text)
    assert refused(name).hint == hint


@each(
    ("text", "hint"),
    [
        (SHELL_SCRIPT, "translate the command in line 4 with `zlaunch config translate -- COMMAND`"),
        ("set -e; deepspeed t.py", "translate the command in line 1"),
        ("\npython -m torch.distributed.run t.py\n", "translate the command in line 2"),
        ("trl sft --model m\n", "translate the command in line 1"),
        (
            "cd x\npython3 -m pack.age --x",
            "in line 2, write `zlaunch train -m pack.age -- …` for `python3 -m pack.age …`",
        ),
        ("python t.py --deepspeed ds.json", "in line 1, write `zlaunch train t.py -- …`"),
        ("echo train", "start zlaunch in it: `zlaunch train SCRIPT -- ARGS`, and run `bash run.sh`"),
        ("zlaunch train t.py", "run `bash run.sh`"),
    ],
)
def test_a_shell_script_gets_a_hint_by_the_line_that_trains(folder: Path, text: str, hint: str) -> None:
    (folder / "run.sh").write_text(text)
    found = refused("run.sh").hint or ""
    assert (hint in found, found.endswith("run `bash run.sh`")) == (True, True), found


@each(("name", "is_shell"), [("run", True), ("run.py", True), ("job.slurm", True)])
def test_a_shell_script_is_known_by_its_first_line_or_its_name(
    folder: Path, name: str, is_shell: bool
) -> None:
    (folder / name).write_text(SHELL_SCRIPT)
    assert ("shell script" in refused(name).message) == is_shell


def test_python_is_read_whatever_the_file_is_called(folder: Path) -> None:
    (folder / "run.sh").write_text("#!/usr/bin/env python3\nimport torch\n")
    assert read_script(Path("run.sh")).source.startswith("#!")


@each(
    ("files", "hint"),
    [
        (("pack/__init__.py", "pack/__main__.py"), "`zlaunch train -m pack`"),
        (("pack/__main__.py",), "`zlaunch train pack/__main__.py`"),
        (("pack/a.py", "pack/pretrain.py"), "name a script in it: `pack/pretrain.py`, `pack/a.py`"),
    ],
)
def test_a_directory_gets_a_hint_by_its_files(
    tmp_path_factory: pytest.TempPathFactory, files: tuple[str, ...], hint: str
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    (folder / "pack").mkdir()
    for file in files:
        (folder / file).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert refused("pack").hint == hint


@pytest.mark.parametrize("name", ["-", "pipe"])
def test_a_script_cannot_come_from_a_pipe(folder: Path, name: str) -> None:
    os.mkfifo(folder / "pipe")
    assert re.search("every rank reads the script", refused(name).message)


@each(
    ("name", "hint"),
    [
        ("pretrain", "did you mean `pretrain.py`?"),
        ("./pretrian.py", "did you mean `pretrain.py`?"),
        ("nosuch/x.py", None),
    ],
)
def test_a_missing_script_gets_the_name_of_a_similar_one(folder: Path, name: str, hint: str | None) -> None:
    (folder / "pretrain.py").touch()
    with pytest.raises(InputMissing) as error:
        read_script(Path(name))
    assert error.value.hint == hint


def test_a_program_that_pip_installed_is_python_though_it_begins_like_a_shell_script(folder: Path) -> None:
    lines = [
        "#!/bin/sh",
        "'''exec' '/a b/python' \"$0\" \"$@\"",
        "' '''",
        "from trl.cli import main",
        "main()",
    ]
    (folder / "trl").write_text("\n".join(lines))
    assert not read_script(Path("trl")).is_sure


@pytest.mark.parametrize(
    ("file", "text", "hint"),
    [
        ("acc.yaml", "distributed_type: NO\n", "`zlaunch config translate acc.yaml -- SCRIPT`"),
        ("acc.json", '{"distributed_type": "NO"}', "`zlaunch config translate acc.json -- SCRIPT`"),
        ("lf.yaml", "finetuning_type: lora\nfp16: true\n", "`zlaunch train -m llamafactory.launcher"),
        ("ax.json", '{"base_model": "m"}', "`zlaunch train -m axolotl.cli.train -- ax.json`"),
    ],
)
def test_a_config_of_another_program_is_no_ds_config(folder: Path, file: str, text: str, hint: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(WrongUsage, match="not a ds_config") as error:
        read_ds_config(Path(file))
    assert (error.value.hint or "").startswith(hint)


def test_a_ds_config_in_yaml_is_told_as_such_and_not_by_what_json_makes_of_it(folder: Path) -> None:
    (folder / "ds.yaml").write_text("train_batch_size: 8\nzero_optimization:\n  stage: 3\n")
    with pytest.raises(WrongUsage, match="is a ds_config written as YAML") as error:
        read_ds_config(Path("ds.yaml"))
    assert (error.value.hint or "").endswith("' < ds.yaml > ds.json`")


@pytest.mark.parametrize("text", ["train_batch_size: 8\n", "# c\n{zero_optimization: {stage: 3}}\n"])
def test_what_the_reader_of_deepspeed_takes_as_yaml_does_is_a_ds_config(folder: Path, text: str) -> None:
    (folder / "ds.yaml").write_text(text)
    assert read_ds_config(Path("ds.yaml")).value


def test_a_ds_config_with_a_key_of_another_program_stays_one(folder: Path) -> None:
    (folder / "ds.json").write_text('{"train_batch_size": 8, "base_model": "m"}')
    assert read_ds_config(Path("ds.json")).value["train_batch_size"] == 8


def test_a_directory_without_scripts_is_told_where_there_are_some(folder: Path) -> None:
    with pytest.raises(InputMissing) as error:
        read_script(Path("pretrain.py"))
    assert error.value.hint == "`zlaunch recipes list` shows programs to begin with"
