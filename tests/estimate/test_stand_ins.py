"""What kernels and quantized weights save, against the sizes that their sources give."""

from dataclasses import replace
from typing import Any

import pytest

from tests.estimate.rehearsing import rehearse
from tests.estimate.test_rehearsal import LLAMA, workload
from zlaunch.errors import Unavailable
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.rehearse import Rehearser
from zlaunch.estimate.workload import FourBits, Lora, Workload

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

Told = dict[tuple[str, object], Forecast]
"""Model, and whether Liger is used → its forecast."""


def of(name: str, liger: bool) -> Workload:
    return replace(workload(2, save=False), model=MODELS[name], liger=liger)


def below_adapters(four_bits: FourBits | None, stage: int = 2) -> Workload:
    one = workload(stage, save=False, lora=Lora(4), four_bits=four_bits)
    return replace(one, model=MODELS["4 layers"], load_dtype="bf16")


QUANTIZED = {
    "bf16": below_adapters(None),
    "nf4": below_adapters("nf4"),
    "nested": below_adapters("nf4 nested"),
}
FROZEN = replace(of("4 layers", liger=False), frozen="embed_tokens|lm_head")
OF_ZERO_PLUS_PLUS = {
    "hpZ": workload(3, {"zero_hpz_partition_size": 2}, save=False),
    "weights": workload(3, {"zero_quantized_weights": True}, save=False),
    "gradients": workload(3, {"zero_quantized_gradients": True}, save=False, ranks_per_host=2),
}
NOTHING_FROZEN = replace(FROZEN, frozen="vision")
AT_STAGE_3 = below_adapters("nf4", stage=3)


@pytest.fixture(scope="module")
def told() -> Told:
    asked: dict[tuple[str, object], Workload] = {
        (name, liger): of(name, liger) for name in MODELS if name not in TYPES for liger in (False, True)
    }
    asked |= {("adapters", name): one for name, one in QUANTIZED.items()}
    asked["adapters", "stage 3"] = AT_STAGE_3
    asked["frozen", "ends"] = FROZEN
    asked |= {("quantized", name): one for name, one in OF_ZERO_PLUS_PLUS.items()}
    return forecasts(asked)


def forecasts(asked: dict[tuple[str, object], Workload]) -> Told:
    return dict(zip(asked, rehearse([*asked.values()]), strict=True))


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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "qwen3" else pytest.mark.full) for name in TYPES]
)
def test_a_type_of_model_that_liger_has_kernels_for_takes_less(name: str) -> None:
    told = forecasts({(name, liger): of(name, liger) for liger in (False, True)})
    assert (told[name, True].method, told[name, True].unsaved) == ("rehearsal", ())
    assert saved_by_liger(told, name) > 0


def test_a_type_with_kernels_that_are_not_counted_may_take_less(told: Told) -> None:
    assert told["mixtral", True].unsaved == ("kernels of Liger for `mixtral`",)


def test_a_type_without_kernels_is_left_as_it_is(told: Told) -> None:
    plain, fused = told["gpt2", False], told["gpt2", True]
    assert (plain.phases, fused.unsaved) == (fused.phases, ())


def test_a_quantized_weight_takes_half_a_byte_and_a_scale_for_each_block(told: Told) -> None:
    def after_start(name: str) -> int:
        (phase,) = (phase for phase in told["adapters", name].phases if phase.name == "initialize")
        return phase.end["gpu"]

    # Of 4 heads, 2 have keys and values of their own.
    numel = 4 * (3 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)
    for name, of_scales in (("nf4", 4), ("nested", 1 + 4 / 256)):
        less = numel * 2 - numel // 2 - numel / 64 * of_scales
        assert after_start("bf16") - after_start(name) == pytest.approx(less, rel=5e-3)


def test_the_parameters_of_a_quantized_model_are_all_counted(told: Told) -> None:
    whole, quantized = told["adapters", "bf16"], told["adapters", "nf4"]
    assert (whole.parameters, whole.trainable) == (quantized.parameters, quantized.trainable)


def test_weights_of_four_bits_are_not_counted_at_stage_3(told: Told) -> None:
    assert told["adapters", "stage 3"].unsaved == ("weights of four bits at stage 3",)


def test_frozen_parameters_have_neither_gradients_nor_an_optimizer(told: Told) -> None:
    whole, frozen = told["4 layers", False], told["frozen", "ends"]
    ends = 2 * 2000 * HIDDEN
    assert (whole.trainable - frozen.trainable, whole.parameters) == (ends, frozen.parameters)
    of_ranks = [one.parts["gpu"]["master weights"] for one in (whole, frozen)]
    assert of_ranks[0] - of_ranks[1] == 4 * ends // 4  # bytes each, shared by four ranks


def sent(told: Told, name: str, kind: str) -> int:
    collectives = told["quantized", name].collectives
    return sum(one.nbytes for one in collectives if one.kind == kind)


def test_quantized_weights_are_gathered_in_one_byte(told: Told) -> None:
    one = told["quantized", "weights"]
    assert one.late_error is None
    small = 1_000  # elements of what stays whole on each rank
    assert sent(told, "weights", "all-gather") < 1.1 * 2 * one.parameters + small


def test_quantized_gradients_are_exchanged_in_half_a_byte(told: Told) -> None:
    one = told["quantized", "gradients"]
    assert one.late_error is None
    # A half between the ranks of a host, and as much of half of it between hosts.
    assert sent(told, "gradients", "all-to-all") == pytest.approx(0.75 * one.parameters, rel=0.1)


def test_the_traffic_of_whole_parameters_is_left_to_the_formula(told: Told) -> None:
    assert told["quantized", "hpZ"].collectives == ()


def test_a_pattern_that_matches_nothing_is_told_with_a_name() -> None:
    with Rehearser() as rehearser:
        (found,) = rehearser([NOTHING_FROZEN])
    assert isinstance(found, Unavailable)
    assert "no parameter matches `vision`; the first one is `model.embed_tokens.weight`" in found.message
