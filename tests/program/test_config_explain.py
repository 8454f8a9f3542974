"""`zlaunch config explain`, as a person runs it."""

import json
from pathlib import Path

import pytest

from tests.running import zlaunch


@pytest.mark.parametrize("words", [(), ("zero_optimization",), ("stage",), ("offload_optimizer.device",)])
def test_no_line_is_wider_than_80_columns(words: tuple[str, ...], tmp_path: Path) -> None:
    done = zlaunch("config", "explain", *words, cwd=tmp_path, env={"COLUMNS": "80"})
    assert max(map(len, done.out.splitlines())) <= 80


def test_an_ambiguous_name_lists_what_it_can_mean(tmp_path: Path) -> None:
    done = zlaunch("config", "explain", "buffer_count", cwd=tmp_path)
    assert (done.status, "zero_optimization.offload_param.buffer_count" in done.err) == (2, True)


def test_a_misspelled_name_asks_what_was_meant(tmp_path: Path) -> None:
    done = zlaunch("config", "explain", "reduce_bucketsize", cwd=tmp_path)
    assert "did you mean `zero_optimization.reduce_bucket_size`" in done.err


def test_json_is_one_object(tmp_path: Path) -> None:
    told = json.loads(zlaunch("config", "explain", "stage", "--json", cwd=tmp_path).out)
    assert told["key"] == "zero_optimization.stage"


def test_a_removed_key_says_what_to_do(tmp_path: Path) -> None:
    assert "write the batch sizes out" in zlaunch("config", "explain", "elasticity", cwd=tmp_path).out


def test_auto_is_explained_as_a_value(tmp_path: Path) -> None:
    assert "A value, not a key" in zlaunch("config", "explain", "auto", cwd=tmp_path).out


def test_a_word_of_another_tool_says_that_it_is_not_a_key(tmp_path: Path) -> None:
    said = zlaunch("config", "explain", "grad_accum", cwd=tmp_path).err
    assert "`grad_accum` is not a key of a ds_config: there it is `gradient_accumulation_steps`" in said
