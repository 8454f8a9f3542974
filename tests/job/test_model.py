import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.making import json_values
from zlaunch.errors import InputMissing, Place, Refused
from zlaunch.job.args import ScriptArgs
from zlaunch.job.model import MODEL_FLAGS, ModelConfig, model_flag, read_model, read_processor

_keys = st.sampled_from(
    ["hidden_size", "hidden_sizes", "d_model", "vocab_size", "intermediate_size", "text_config"]
)
configs = st.dictionaries(_keys, st.integers(-1, 9) | json_values) | json_values


@pytest.mark.parametrize("flag", MODEL_FLAGS)
def test_a_command_line_names_the_model_in_many_ways(flag: str) -> None:
    assert model_flag(ScriptArgs.of(["--lr", "1", f"--{flag.replace('_', '-')}", "org/name"])) == "org/name"


def test_a_flag_without_a_value_names_no_model() -> None:
    assert model_flag(ScriptArgs.of(["--model", "--lr", "1"])) is None


def test_the_last_of_two_models_counts() -> None:
    assert model_flag(ScriptArgs.of(["--model=a", "--model=b"])) == "b"


@pytest.mark.parametrize(
    ("config", "hidden"),
    [
        ({"hidden_size": 64}, 64),
        ({"n_embd": 64}, 64),
        ({"d_model": 64}, 64),
        ({"hidden_sizes": [16, 64, 32]}, 64),
        ({"text_config": {"hidden_size": 64}}, 64),
        ({"hidden_size": 64, "text_config": {"hidden_size": 32}}, 64),
        ({"hidden_size": None, "d_model": 64}, 64),
        ({"hidden_sizes": []}, None),
        ({"model_type": "distilbert", "dim": 64}, 64),
        ({"model_type": "perceiver", "d_model": 64}, None),
        ({"model_type": "llava", "text_config": {"model_type": "llama"}}, 4096),
        ({}, None),
    ],
)
def test_a_width_goes_by_many_names(config: dict[str, Any], hidden: int | None) -> None:
    assert ModelConfig(config, "", "c").hidden_size == hidden


@pytest.mark.parametrize(
    ("config", "largest"),
    [
        ({"hidden_size": 4, "vocab_size": 100}, 400),
        ({"hidden_size": 4, "vocab_size": 10, "intermediate_size": 16}, 64),
        ({"text_config": {"hidden_size": 4, "vocab_size": 100}}, 400),
        ({"hidden_size": 4}, None),
        ({"vocab_size": 100}, None),
    ],
)
def test_the_largest_matrix_is_as_wide_as_the_widest_size(
    config: dict[str, Any], largest: int | None
) -> None:
    assert ModelConfig(config, "", "c").largest_parameter == largest


@pytest.mark.parametrize("name", ["", "config.json"])
def test_a_model_is_a_directory_or_its_config(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    assert read_model(tmp_path / name).hidden_size == 8


def test_a_model_names_the_file_it_was_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path.parent)
    assert read_model(tmp_path).source == f"{tmp_path.name}/config.json"


def test_a_directory_without_a_config_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match=r"no config\.json"):
        read_model(tmp_path)


def test_a_config_that_is_no_json_is_refused_where_it_breaks(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{\n"hidden_size": ,\n}')
    with pytest.raises(Refused) as caught:
        read_model(tmp_path)
    assert caught.value.findings[0].place == Place(str(file), 2, 1)


def test_a_config_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(Refused):
        read_model(tmp_path)


@given(configs)
def test_the_sizes_of_any_config_are_read_or_it_is_refused(
    tmp_path_factory: pytest.TempPathFactory, config: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "any-config.json"
    file.write_text(json.dumps(config))
    with suppress(Refused):
        assert isinstance(read_model(file).largest_parameter, int | None)


PROCESSOR = {"size": {"longest_edge": 980}, "do_image_splitting": False}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("preprocessor_config.json", json.dumps(PROCESSOR), PROCESSOR),
        ("processor_config.json", json.dumps({"image_processor": PROCESSOR}), PROCESSOR),
        ("preprocessor_config.json", "[1]", {}),
        ("preprocessor_config.json", "{", {}),
        ("other.json", json.dumps(PROCESSOR), {}),
    ],
)
def test_a_processor_is_read_beside_a_local_config(
    name: str, text: str, expected: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llava"}')
    (tmp_path / name).write_text(text)
    assert read_processor(read_model(tmp_path)) == expected
