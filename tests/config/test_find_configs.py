"""The ds_configs that `zlaunch config validate` finds by itself."""

from pathlib import Path

import pytest

from tests.running import CONFIGS
from zlaunch.config.find_configs import find_configs

STAGE_2 = '{"zero_optimization": {"stage": 2}}'
FOUND = {
    "the usual name": ("ds_config.json", '{"bf16": {"enabled": true}}'),
    "a name with its stage": ("zero3_offload.json", STAGE_2),
    "a short name": ("ds_z3_config.json", STAGE_2),
    "any name, with a section of its own": ("stage2.json", STAGE_2),
    "a folder of configs": ("configs/fast.json", STAGE_2),
    "a folder in a folder": ("examples/deepspeed/z2.json", STAGE_2),
    "scripts, as in LLaVA": ("scripts/zero2.json", STAGE_2),
    "a misspelled key": ("ds_config.json", '{"zero_optimisation": {"stage": 2}}'),
    "a comma too many": ("ds_config.json", '{"bf16": {"enabled": true},, "fp16": {}}'),
}
LEFT = {
    "the config of a model": ("config.json", '{"model_type": "llama", "seed": 1, "optimizer": "adam"}'),
    "keys of something else": ("ds_config.json", '{"datasets": ["a", "b"]}'),
    "a list": ("ds_config.json", '["bf16"]'),
    "text that is no JSON": ("ds_notes.json", "to do: try another stage"),
    "a run": ("runs/20260101-train/ds_config.json", STAGE_2),
    "a hidden folder": (".ds_cache/zero.json", STAGE_2),
    "a large file": ("ds_data.json", STAGE_2 + " " * (1 << 20)),
}


def put(directory: Path, name: str, text: str) -> Path:
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text)
    return Path(name)


@pytest.mark.parametrize(("name", "text"), FOUND.values(), ids=FOUND)
def test_a_ds_config_is_found(tmp_path: Path, name: str, text: str) -> None:
    file = put(tmp_path, name, text)
    assert find_configs(tmp_path) == [file]


@pytest.mark.parametrize(("name", "text"), LEFT.values(), ids=LEFT)
def test_another_file_is_left_alone(tmp_path: Path, name: str, text: str) -> None:
    put(tmp_path, name, text)
    assert find_configs(tmp_path) == []


def test_a_link_to_nothing_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").symlink_to("nowhere.json")
    assert find_configs(tmp_path) == []


def test_all_configs_that_come_with_zlaunch_are_found() -> None:
    assert find_configs(CONFIGS) == sorted(Path(file.name) for file in CONFIGS.glob("*.json"))
