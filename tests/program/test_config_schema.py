"""`zlaunch config schema`, as a person runs it."""

import json
from pathlib import Path

from tests.running import zlaunch


def test_the_schema_goes_to_stdout(tmp_path: Path) -> None:
    assert (
        json.loads(zlaunch("config", "schema", cwd=tmp_path).out)["title"] == "ds_config for DeepSpeed 0.19"
    )


def test_the_schema_of_an_older_release_says_so(tmp_path: Path) -> None:
    done = zlaunch("config", "schema", "--deepspeed", "0.16.4", cwd=tmp_path)
    assert json.loads(done.out)["title"] == "ds_config for DeepSpeed 0.16"


def test_the_schema_is_written_to_a_file(tmp_path: Path) -> None:
    zlaunch("config", "schema", "-o", "ds.schema.json", cwd=tmp_path)
    assert (tmp_path / "ds.schema.json").read_text().endswith("}\n")


def test_a_release_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    assert zlaunch("config", "schema", "--deepspeed", "latest", cwd=tmp_path).status == 2
