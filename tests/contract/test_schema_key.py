"""`$schema`, by which editors find the JSON Schema of a ds_config, changes nothing for those who read the file."""

import json
from pathlib import Path

from tests.contract.deepspeed_side import deepspeed_reads
from tests.contract.trainer_side import training_arguments

CONFIG = {"train_batch_size": 1, "zero_optimization": {"stage": 2}}
NAMED = {"$schema": "./ds_config.schema.json", **CONFIG}


def test_deepspeed_reads_the_same_with_a_schema() -> None:
    plain, named = (deepspeed_reads(dict(config)) for config in (CONFIG, NAMED))
    assert (named.train_batch_size, named.zero_config) == (plain.train_batch_size, plain.zero_config)


def test_the_trainer_hands_a_schema_on(tmp_path: Path) -> None:
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps({**NAMED, "train_batch_size": "auto"}))
    args = training_arguments(("--deepspeed", str(file)))
    assert args.hf_deepspeed_config.config["$schema"] == NAMED["$schema"]
