"""Recipes are described by their own source, and are programs that a user can copy away."""

import ast
from pathlib import Path

import pytest

from tests.running import ROOT
from zlaunch.job.recipes import (
    FOLDER,
    Recipe,
    read_recipe,
    recipe_names,
    recipe_of,
    recipe_path,
    similar_recipe,
)

RECIPES = [read_recipe(FOLDER / f"{name}.py") for name in recipe_names()]
MOST_LINES = 150


def named(recipe: Recipe) -> str:
    return recipe.name


@pytest.mark.parametrize("recipe", RECIPES, ids=named)
def test_a_recipe_says_what_it_shows_and_how_to_start_it(recipe: Recipe) -> None:
    assert recipe.summary
    assert recipe.zero
    assert recipe.on_gpus
    launchers = ["zlaunch train", "deepspeed ", "torchrun "]
    assert [one for one in launchers if f"    {one}" not in recipe.text] == []
    assert recipe.start.startswith(f"zlaunch train {recipe.name}")


@pytest.mark.parametrize("recipe", RECIPES, ids=named)
def test_every_option_of_a_recipe_has_a_help_text(recipe: Recipe) -> None:
    assert recipe.options
    assert [one.flag for one in recipe.options if not one.help] == []


@pytest.mark.parametrize("recipe", RECIPES, ids=named)
def test_a_recipe_needs_nothing_of_zlaunch(recipe: Recipe) -> None:
    modules = {
        name
        for node in ast.walk(ast.parse(recipe.path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert [name for name in modules if name.partition(".")[0] == "zlaunch"] == []


@pytest.mark.parametrize("recipe", RECIPES, ids=named)
def test_a_recipe_is_short(recipe: Recipe) -> None:
    assert len(recipe.path.read_text().splitlines()) <= MOST_LINES


def test_the_page_lists_every_recipe() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert [name for name in recipe_names() if f"[{name}](../recipes/{name}.py)" not in page] == []


def test_options_of_a_parser_and_of_a_dataclass_are_read() -> None:
    by_name = {one.name: {option.flag: option for option in one.options} for one in RECIPES}
    steps = by_name["own_loop"]["--steps"]
    assert (steps.kind, steps.default, steps.help) == ("int", "100", "number of training steps")
    column = by_name["causal_lm"]["--text_column"]
    assert (column.kind, column.default, column.help) == ("str", "text", "column with the text")


def test_a_recipe_is_found_by_its_name_with_either_dash() -> None:
    assert recipe_path("own-loop") == recipe_path("own_loop") == FOLDER / "own_loop.py"
    assert recipe_path("own_loop.py") is None
    assert similar_recipe("casual_lm") == "causal_lm"


def test_a_copy_of_a_recipe_is_a_script_of_the_user(tmp_path: Path) -> None:
    copy = tmp_path / "own_loop.py"
    copy.write_bytes((ROOT / "recipes" / "own_loop.py").read_bytes())
    assert recipe_of(copy) is None
    assert recipe_of(FOLDER / "own_loop.py") is not None


def test_the_configs_that_a_recipe_reads_are_copied_with_it() -> None:
    (causal_lm,) = (one for one in RECIPES if one.name == "causal_lm")
    assert [str(file.relative_to(FOLDER)) for file in causal_lm.files] == [
        "causal_lm.py",
        "small_llama/config.json",
    ]
    assert {"transformers", "datasets", "accelerate"} <= {*causal_lm.packages}
