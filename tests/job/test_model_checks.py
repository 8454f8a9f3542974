import json
from typing import Any

import pytest

from zlaunch.errors import Severity
from zlaunch.job.model import ModelConfig, parse_model
from zlaunch.job.model_checks import check_model, usable_positions

KNOWN = frozenset({"llama", "gpt2", "roberta"})
LLAMA = {"model_type": "llama", "hidden_size": 64, "max_position_embeddings": 128}


def model(**changes: Any) -> ModelConfig:
    text = json.dumps({**LLAMA, **changes}, indent=2)
    return parse_model(text.encode(), "m/config.json", "m/config.json")


def codes(seq_len: int | None = None, trusts_code: bool = False, **changes: Any) -> list[str]:
    return [one.code for one in check_model(model(**changes), KNOWN, seq_len, trusts_code)]


def test_an_ordinary_model_has_nothing_wrong() -> None:
    assert codes(seq_len=128) == []


@pytest.mark.parametrize("kind", [None, "", 7])
def test_a_model_without_a_type_cannot_be_built(kind: Any) -> None:
    assert codes(model_type=kind) == ["no-model-type"]


def test_a_ds_config_in_the_place_of_a_model_is_told_by_its_keys() -> None:
    ds_config = parse_model(b'{"zero_optimization": {"stage": 3}}', "s3.json", "s3.json")
    (found,) = check_model(ds_config, KNOWN, None, trusts_code=False)
    assert found.message == "it is a ds_config, not the config.json of a model"


def test_an_unknown_type_names_the_nearest_known_one_and_its_place() -> None:
    (found,) = check_model(model(model_type="lama"), KNOWN, None, trusts_code=False)
    assert (found.code, found.hint) == ("unknown-model-type", "did you mean `llama`?")
    assert str(found.place) == "m/config.json:2:3"


def test_a_model_with_its_own_code_is_let_through_only_when_trusted() -> None:
    own: dict[str, Any] = {"model_type": "mine", "auto_map": {"AutoConfig": "configuration_mine.MineConfig"}}
    (found,) = check_model(model(**own), KNOWN, None, trusts_code=False)
    assert found.hint is not None
    assert "--trust-remote-code" in found.hint
    assert codes(trusts_code=True, **own) == []


@pytest.mark.parametrize("size", [0, -4, "64", True, 10**30, 1.5])
def test_a_size_that_no_model_can_have_is_found(size: Any) -> None:
    assert codes(hidden_size=size) == ["absurd-size"]
    assert codes(text_config={"num_hidden_layers": size}) == ["absurd-size"]


@pytest.mark.parametrize("size", [None, 1, [16, 32]])
def test_a_size_that_a_model_can_have_is_left_alone(size: Any) -> None:
    assert codes(num_attention_heads=size) == []


def test_a_sequence_beyond_a_table_of_positions_fails() -> None:
    (found,) = check_model(model(model_type="gpt2", n_positions=128), KNOWN, 129, trusts_code=False)
    assert (found.code, found.severity) == ("sequence-too-long", Severity.FAILS_LATER)


def test_a_sequence_beyond_rotary_positions_is_only_remarked() -> None:
    (found,) = check_model(model(), KNOWN, 129, trusts_code=False)
    assert (found.code, found.severity) == ("sequence-too-long", Severity.IGNORED)


def test_a_padded_table_has_fewer_positions_than_rows() -> None:
    roberta = model(model_type="roberta", max_position_embeddings=514, pad_token_id=1)
    assert usable_positions(roberta) == 512


def test_a_model_without_positions_takes_any_sequence() -> None:
    assert codes(seq_len=10**6, max_position_embeddings=None) == []
