"""What the default recipe cannot train is said in one line, before anything is loaded."""

import json
import sys
from pathlib import Path

import pytest

from tests.running import RECIPE, run

pytestmark = pytest.mark.job

SEPARATED = """
from datasets import Dataset
from recipes.causal_lm import RecipeArguments, into_blocks
from transformers import ByT5Tokenizer
tokenizer = ByT5Tokenizer()
blocks = into_blocks(Dataset.from_dict({"text": ["ab", "cd"]}), tokenizer, RecipeArguments(sequence_length=3))
assert [row[-1] == tokenizer.eos_token_id for row in blocks["input_ids"]] == [True, True], blocks["input_ids"]
"""


STREAMED = """
import pathlib
from recipes.causal_lm import RecipeArguments, into_blocks, read_dataset
from transformers import ByT5Tokenizer
pathlib.Path("long.jsonl").write_text('{"text": "abcde"}\\n' * 5000)
asked = RecipeArguments(dataset="long.jsonl", streaming=True, sequence_length=6)
blocks = into_blocks(read_dataset(asked), ByT5Tokenizer(), asked)
assert type(blocks).__name__ == "IterableDataset", type(blocks)
assert sum(len(row["input_ids"]) for row in blocks) == 30000
"""


def test_a_streamed_dataset_is_packed_while_it_is_read(tmp_path: Path) -> None:
    result = run(sys.executable, "-c", STREAMED, cwd=tmp_path, env={"PYTHONPATH": str(RECIPE.parents[1])})
    assert result.status == 0, result.err


def test_every_document_ends_with_the_token_that_ends_texts(tmp_path: Path) -> None:
    result = run(sys.executable, "-c", SEPARATED, cwd=tmp_path, env={"PYTHONPATH": str(RECIPE.parents[1])})
    assert result.status == 0, result.err


MISSING = [
    (["--dataset", "nosuch.txt"], "no such dataset: nosuch.txt"),
    (["--model", "."], "no weights in `.`; `--from_scratch True` initializes random ones"),
    (["--output_dir", "adapted"], "`adapted` has an adapter; name another directory: `--output_dir`"),
    (["--streaming"], "--streaming needs a --dataset, and cannot split it for --eval_fraction"),
]
IN_FORKS = f"""
import json, os, runpy, sys
import accelerate, datasets, deepspeed, transformers
from transformers import Trainer  # what all forks import
for words in json.loads(sys.argv[1]):
    if (fork := os.fork()) == 0:
        sys.argv = [{str(RECIPE)!r}, "--use_cpu", *words]
        runpy.run_path(sys.argv[0], run_name="__main__")
        os._exit(0)
    print("status", os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), file=sys.stderr)
"""


def test_the_recipe_ends_with_a_line_about_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((RECIPE.parent / "small_llama" / "config.json").read_bytes())
    (tmp_path / "adapted").mkdir()
    (tmp_path / "adapted" / "adapter_config.json").write_text("{}")
    result = run(sys.executable, "-c", IN_FORKS, json.dumps([words for words, _ in MISSING]), cwd=tmp_path)
    lines = result.err.splitlines()
    ends = [lines[number - 1] for number, line in enumerate(lines) if line == "status 1"]
    assert ends == [said for _, said in MISSING], result.err
