"""What the default recipe cannot train is said in one line, before anything is loaded."""

import sys
from pathlib import Path

import pytest

from tests.running import RECIPE, run

pytestmark = pytest.mark.job


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--dataset", "nosuch.txt"], "there is no dataset nosuch.txt"),
        (["--model", "."], "`.` has no weights: `--from_scratch True` trains a new model of its config"),
        (["--model", ".", "--from_scratch", "True"], ". has no tokenizer that transformers can read"),
    ],
)
def test_the_recipe_ends_with_a_line_about_what_is_missing(
    asked: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((RECIPE.parent / "small_llama" / "config.json").read_bytes())
    result = run(sys.executable, RECIPE, "--use_cpu", *asked, cwd=tmp_path)
    assert (result.status, result.err.splitlines()[-1]) == (1, said)
