"""What Liger's kernels save, against the sizes that its source gives."""

from dataclasses import replace
from typing import Any

import pytest

from tests.estimate.rehearsing import rehearse
from tests.estimate.test_rehearsal import LLAMA, workload
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.workload import Workload

pytestmark = pytest.mark.job

TOKENS, HIDDEN, INNER, VOCABULARY = 2 * 64, 256, 688, 32_000
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000}
TYPES: dict[str, dict[str, Any]] = {
    "mistral": {},
    "qwen2": {},
    "qwen3": {"head_dim": 64},
    "gemma": {"head_dim": 64},
    "gemma2": {"head_dim": 64},
    "olmo2": {},
    "smollm3": {"pad_token_id": 0},
}
MODELS: dict[str, dict[str, Any]] = {
    **{name: {**LLAMA, "model_type": name, **changed} for name, changed in TYPES.items()},
    "2 layers": {**LLAMA, "num_hidden_layers": 2},
    "4 layers": {**LLAMA, "num_hidden_layers": 4},
    "many tokens": {**LLAMA, "vocab_size": VOCABULARY},
    "mixtral": {**LLAMA, "model_type": "mixtral", "num_local_experts": 4},
    "gpt2": GPT2,
}

Told = dict[tuple[str, bool], Forecast]
"""Model, and whether Liger is used → its forecast."""


def of(name: str, liger: bool) -> Workload:
    return replace(workload(2, save=False), model=MODELS[name], liger=liger)


@pytest.fixture(scope="module")
def told() -> Told:
    asked = [(name, liger) for name in MODELS for liger in (False, True)]
    return dict(zip(asked, rehearse([of(*one) for one in asked]), strict=True))


def forward(one: Forecast) -> tuple[int, int]:
    """Return the peak of the forward pass, and what is held after it."""
    (phase,) = (phase for phase in one.phases if phase.name == "forward")
    return phase.peak["gpu"], phase.end["gpu"]


def saved_by_liger(told: Told, name: str) -> int:
    return forward(told[name, False])[1] - forward(told[name, True])[1]


def test_a_layer_saves_neither_fp32_normalizations_nor_the_result_of_an_activation(told: Told) -> None:
    of_two_layers = saved_by_liger(told, "4 layers") - saved_by_liger(told, "2 layers")
    # Two normalizations save their input in fp32, 4 bytes; SwiGLU saves the result of SiLU, 2 bytes.
    assert of_two_layers == 2 * TOKENS * (2 * 4 * HIDDEN + 2 * INNER)


def test_logits_exist_for_a_part_of_the_tokens_at_a_time(told: Told) -> None:
    # 125 parts would take what the hidden states take, so a part has two tokens.
    part = 2 * VOCABULARY * 2
    peak, after = forward(told["many tokens", True])
    assert part <= peak - after < part + 2 * (2 * TOKENS * HIDDEN)
    assert forward(told["many tokens", False])[0] - peak > 4 * TOKENS * VOCABULARY


@pytest.mark.parametrize("name", TYPES)
def test_a_type_of_model_that_liger_has_kernels_for_takes_less(told: Told, name: str) -> None:
    assert (told[name, True].method, told[name, True].unsaved) == ("rehearsal", ())
    assert saved_by_liger(told, name) > 0


def test_a_type_with_kernels_that_are_not_counted_may_take_less(told: Told) -> None:
    assert told["mixtral", True].unsaved == ("kernels of Liger for `mixtral`",)


def test_a_type_without_kernels_is_left_as_it_is(told: Told) -> None:
    plain, fused = told["gpt2", False], told["gpt2", True]
    assert (plain.phases, fused.unsaved) == (fused.phases, ())
