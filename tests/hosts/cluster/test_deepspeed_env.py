"""The file of variables that DeepSpeed's runner reads is read as it does."""

from pathlib import Path

import pytest

from zlaunch.errors import Refused
from zlaunch.hosts.cluster.deepspeed_env import read_deepspeed_env


def test_values_are_stripped_and_may_have_spaces(tmp_path: Path) -> None:
    (tmp_path / ".deepspeed_env").write_text("A=1\n\nB = two  words \nC=x=y")
    found = read_deepspeed_env(tmp_path, {})
    assert {name: one.value for name, one in found.items()} == {"A": "1", "B": "two  words", "C": "x=y"}


def test_its_name_may_be_another_one(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("A=1")
    assert [*read_deepspeed_env(tmp_path, {"DS_ENV_FILE": "mine"})] == ["A"]
    assert not read_deepspeed_env(tmp_path, {})


def test_secrets_are_kept_secret(tmp_path: Path) -> None:
    (tmp_path / ".deepspeed_env").write_text("HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345\nA=1")
    found = read_deepspeed_env(tmp_path, {})
    assert {name: one.is_secret for name, one in found.items()} == {"HF_TOKEN": True, "A": False}


def test_lines_that_need_a_shell_or_have_no_value_are_refused_together(tmp_path: Path) -> None:
    (tmp_path / ".deepspeed_env").write_text("A=1\nexport B\nPATH=/x:$PATH\n# C=1\n=x\n")
    with pytest.raises(Refused) as refused:
        read_deepspeed_env(tmp_path, {})
    found = refused.value.findings
    file = tmp_path / ".deepspeed_env"
    assert [str(one.place) for one in found] == [f"{file}:{line}:1" for line in (2, 3, 4, 5)]
    assert ["not `NAME=VALUE`" in one.message for one in found] == [True, False, True, True]
