"""`zlaunch recipes`, and recipes in place of a script."""

import json
from pathlib import Path

import pytest

from tests.running import ROOT, zlaunch


def test_the_list_names_every_recipe_within_80_columns(tmp_path: Path) -> None:
    result = zlaunch("recipes", "list", cwd=tmp_path)
    names = {file.stem for file in (ROOT / "recipes").glob("*.py")}
    assert names <= {line.split(" ")[0] for line in result.out.splitlines()}
    assert [line for line in result.out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("name", sorted(file.stem for file in (ROOT / "recipes").glob("*.py")))
def test_a_recipe_is_shown_within_80_columns(name: str, tmp_path: Path) -> None:
    result = zlaunch("recipes", "show", name, cwd=tmp_path)
    assert result.status == 0
    assert [line for line in result.out.splitlines() if len(line) > 80] == []
    assert f"copy   zlaunch recipes copy {name}" in result.out


def test_a_recipe_is_described_as_json(tmp_path: Path) -> None:
    shown = json.loads(zlaunch("recipes", "show", "own_loop", "--json", cwd=tmp_path).out)
    assert shown["options"][0] == {
        "option": "--steps",
        "type": "int",
        "default": "100",
        "help": "number of training steps",
    }
    assert shown in json.loads(zlaunch("recipes", "list", "--json", cwd=tmp_path).out)


def test_a_misspelled_recipe_is_named(tmp_path: Path) -> None:
    result = zlaunch("recipes", "show", "causal-ml", cwd=tmp_path)
    assert (result.status, result.err) == (
        66,
        "error: there is no recipe `causal-ml`\nhint: did you mean `causal_lm`?\n",
    )


def test_a_copy_brings_its_configs_and_overwrites_nothing(tmp_path: Path) -> None:
    copied = zlaunch("recipes", "copy", "causal_lm", "mine", cwd=tmp_path)
    assert copied.out == "mine/causal_lm.py\nmine/small_llama/config.json\n"
    assert copied.err == "`zlaunch train mine/causal_lm.py` starts it, with or without changes\n"
    assert (tmp_path / "mine/causal_lm.py").read_text() == (ROOT / "recipes/causal_lm.py").read_text()
    again = zlaunch("recipes", "copy", "causal_lm", "mine", cwd=tmp_path)
    assert again.status == 69
    assert again.err.startswith("error: `mine/causal_lm.py` already exists\n")


def test_a_copy_leaves_a_folder_that_a_file_is_in_the_way_of(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    result = zlaunch("recipes", "copy", "own_loop", "mine", cwd=tmp_path)
    assert (result.status, result.err) == (69, "error: `mine` cannot be a directory: File exists\n")


def test_train_takes_the_name_of_a_recipe(tmp_path: Path) -> None:
    result = zlaunch("train", "own-loop", "--stage", 1, "--dry-run", cwd=tmp_path)
    assert result.status == 0
    assert f"{ROOT}/recipes/own_loop.py" in result.out


def test_a_file_wins_over_a_recipe_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "own_loop").write_text("import deepspeed\ndeepspeed.initialize(config={'a': 1})\n")
    result = zlaunch("train", "own_loop", "--dry-run", "--no-ask", cwd=tmp_path)
    assert "recipes/own_loop.py" not in result.out + result.err


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        (
            "own_loop.py",
            "`zlaunch train own_loop` starts the recipe, `zlaunch recipes copy own_loop` copies it here",
        ),
        ("own_lop", "did you mean the recipe `own_loop`?"),
    ],
)
def test_a_missing_script_hints_at_the_recipe(word: str, hint: str, tmp_path: Path) -> None:
    result = zlaunch("train", word, cwd=tmp_path)
    assert result.status == 66
    assert result.err.splitlines()[-1] == f"hint: {hint}"


def test_the_arguments_of_a_recipe_fill_in_a_config(tmp_path: Path) -> None:
    config = ROOT / "configs" / "zero2.json"
    named = [
        zlaunch("config", "resolve", config, "--", *script, cwd=tmp_path)
        for script in (["causal_lm"], [ROOT / "recipes/causal_lm.py"])
    ]
    assert named[0] == named[1]
    assert "10 steps of warmup" in named[0].out
