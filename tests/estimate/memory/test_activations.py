from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.estimate.memory.jobs import config
from zlaunch.estimate.memory.activations import Batch, head, saved_by_checkpoint, saved_by_layer, step_flops
from zlaunch.job.transformer import read_transformer

BATCH = Batch(4, 1024, item=2)

# Bytes that a layer keeps for each token, in bf16: live after a forward pass of transformers 5.23,
# traced without memory, with three layers less with two; 4 sequences of 1024.
TRACED = {
    "gpt2": 44_608,
    "opt-1.3b": 53_392,
    "pythia-1.4b": 73_808,
    "phi-2": 143_496,
    "llama-2-7b": 186_504,
    "llama-3-8b": 200_840,
    "qwen2.5-0.5b": 57_408,
    "qwen3-8b": 215_336,
    "phi-3-mini": 157_832,
    "gemma-2b": 181_292,
    "mixtral-8x7b": 348_412,
}
# The same for what only some settings have: model, sequences, length, bytes of a number, attention.
TRACED_OTHERWISE = [
    ("bert-base", Batch(4, 512, 2), 26_176, 0.001),
    ("t5-base", Batch(4, 512, 2), 97_828, 0.01),
    ("phi-3-mini", Batch(2, 4096, 2), 159_880, 0.001),  # beyond its window
    ("mistral-7b", Batch(2, 8192, 2), 229_512, 0.001),
    ("llama-2-7b", Batch(2, 1024, 4), 340_104, 0.001),
    ("llama-3-8b", Batch(2, 1024, 4), 524_296, 0.001),  # no kernel for fewer keys in fp32
    ("gemma-2b", Batch(2, 1024, 4), 376_848, 0.001),
    ("gpt2", Batch(2, 1024, 4), 87_616, 0.001),
    ("llama-3-8b", Batch(2, 1024, 2, "eager"), 409_608, 0.001),
    ("gemma-2-2b", Batch(2, 1024, 2, "eager"), 238_626, 0.001),
]


def kept(model: str, batch: Batch) -> float:
    read = read_transformer(config(model))
    return sum(saved_by_layer(read, stack, batch) for stack in read.stacks) / batch.tokens


@pytest.mark.parametrize("model", TRACED)
def test_a_layer_keeps_what_was_traced(model: str) -> None:
    assert kept(model, BATCH) == pytest.approx(TRACED[model], rel=1e-3)


@pytest.mark.parametrize(("model", "batch", "traced", "off"), TRACED_OTHERWISE)
def test_a_layer_keeps_what_was_traced_under_other_settings(
    model: str, batch: Batch, traced: int, off: float
) -> None:
    assert kept(model, batch) == pytest.approx(traced, rel=off)


@pytest.mark.parametrize("model", TRACED)
def test_a_checkpoint_is_a_small_part_of_a_layer(model: str) -> None:
    read = read_transformer(config(model))
    assert 13 * saved_by_checkpoint(read, BATCH) < saved_by_layer(read, read.stacks[0], BATCH)


def test_the_loss_keeps_one_copy_of_the_logits_in_fp32_and_needs_two_more() -> None:
    logits = BATCH.tokens * 128_256
    found = head(read_transformer(config("llama-3-8b")), BATCH)
    assert (found.saved, found.forward, found.backward) == (4 * logits, 6 * logits, 8 * logits)


def test_an_encoders_loss_stays_in_half_precision() -> None:
    logits = BATCH.tokens * 30_522
    found = head(read_transformer(config("bert-base")), BATCH)
    assert (found.saved, found.forward, found.backward) == (2 * logits, 2 * logits, 4 * logits)


@given(st.sampled_from([*TRACED]), st.integers(1, 64), st.integers(1, 1024))
def test_activations_grow_with_the_batch_and_with_nothing_else(model: str, size: int, length: int) -> None:
    assert kept(model, Batch(size, length, 2)) == kept(model, Batch(1, length, 2))


@given(st.sampled_from(["llama-2-7b", "gpt2"]), st.lists(st.integers(1, 4096), min_size=2, max_size=2))
def test_eager_attention_grows_with_the_square_of_the_length(model: str, lengths: list[int]) -> None:
    short, long = sorted(lengths)
    per_token = [kept(model, Batch(1, length, 2, "eager")) for length in (short, long)]
    assert per_token[0] <= per_token[1]
    assert all(flash <= eager for flash, eager in pairwise([kept(model, Batch(1, long, 2)), per_token[1]]))


def test_adapters_save_a_third_of_the_work() -> None:
    read = read_transformer(config("llama-3-8b"))
    full, adapters = (step_flops(read, BATCH, recomputed=False, trainable=t) for t in (None, 0))
    assert 0.64 < adapters / full < 0.69
