"""What the default recipe cannot train is said in one line, before anything is loaded."""

import sys
from pathlib import Path

import pytest

from tests.running import RECIPE, run

pytestmark = pytest.mark.job


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--dataset", "nosuch.txt"], "no such dataset: nosuch.txt"),
        (
            ["--model", "."],
            "no weights in `.`; `--from_scratch True` initializes random ones from its config",
        ),
        (["--model", ".", "--from_scratch", "True"], "no tokenizer in `.` that transformers can read"),
    ],
)
def test_the_recipe_ends_with_a_line_about_what_is_missing(
    asked: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((RECIPE.parent / "small_llama" / "config.json").read_bytes())
    result = run(sys.executable, RECIPE, "--use_cpu", *asked, cwd=tmp_path)
    assert (result.status, result.err.splitlines()[-1]) == (1, said)
