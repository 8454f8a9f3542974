"""What holds of every forecast by the closed form, whatever the job."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.estimate.memory.jobs import LADDER, config, job
from zlaunch.estimate.memory.closed_form import forecast
from zlaunch.estimate.workload import Lora, Workload

models = st.sampled_from(["gpt2", "llama-3-8b", "mixtral-8x7b", "t5-base", "bert-base", "gemma-2-2b"])
rungs = st.sampled_from([*LADDER.values()])
loras = st.sampled_from([None, Lora(16), Lora(16, ("q_proj", "v_proj"))])
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")


def peak(workload: Workload) -> int:
    return forecast(workload).peak("gpu")


@settings(max_examples=40)
@given(models, rungs, loras, st.integers(1, 8192), st.booleans())
def test_a_longer_sequence_never_needs_less(
    model: str, rung: tuple[int, dict[str, Any]], lora: Lora | None, length: int, checkpointing: bool
) -> None:
    stage, rest = rung
    short, long = (
        job(model, stage, seq_len=n, lora=lora, activation_checkpointing=checkpointing, **rest)
        for n in (length, length + 1)
    )
    assert peak(short) <= peak(long)


@settings(max_examples=40)
@given(models, rungs, loras, st.integers(1, 40), st.booleans())
def test_more_layers_never_need_less(
    model: str, rung: tuple[int, dict[str, Any]], lora: Lora | None, layers: int, checkpointing: bool
) -> None:
    stage, rest = rung
    whole = job(model, stage, lora=lora, activation_checkpointing=checkpointing, **rest)
    few, many = (
        replace(whole, model=config(model) | {key: n for key in DEPTHS if key in config(model)})
        for n in (layers, layers + 1)
    )
    assert peak(few) <= peak(many)


@settings(max_examples=40)
@given(models, rungs, st.integers(1, 64))
def test_a_wider_adapter_never_needs_less(model: str, rung: tuple[int, dict[str, Any]], rank: int) -> None:
    stage, rest = rung
    narrow, wide = (job(model, stage, lora=Lora(n), **rest) for n in (rank, rank + 1))
    assert peak(narrow) <= peak(wide)


@settings(max_examples=40)
@given(models, rungs)
def test_what_a_forecast_may_be_in_truth_lies_around_it(model: str, rung: tuple[int, dict[str, Any]]) -> None:
    stage, rest = rung
    found = forecast(job(model, stage, **rest))
    least, most = found.bounds(found.peak("gpu"))
    assert 0 < least < found.peak("gpu") < most
