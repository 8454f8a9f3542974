"""How many buffers swapping takes, beside what rehearsals of DeepSpeed 0.19.8 held at the most."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from tests.estimate.memory.jobs import CONFIGS
from zlaunch.config.resolve.nvme_buffers import (
    MOST_DISTANCE,
    ParameterUse,
    most_gathered,
    nvme_buffers,
    parameter_order,
)
from zlaunch.job.transformer import Transformer, read_transformer

MIB_OF_HALVES = 1 << 19

REHEARSED = [
    ("llama-3-8b", 8, True, 7),
    ("llama-2-7b", 2, True, 9),
    ("llama-2-7b", 2, False, 13),
    ("mixtral-8x7b", 8, True, 27),
    ("mixtral-8x7b", 8, False, 39),
    ("phi-3-mini", 2, True, 12),
    ("phi-3-mini", 2, False, 15),
    ("gemma-2b", 2, True, 5),
    ("gpt2", 1, True, 50),
    ("gpt2", 1, False, 50),
    ("t5-base", 1, False, 193),
    ("opt-1.3b", 2, True, 33),
    ("opt-1.3b", 2, False, 48),
]
"""Model, ranks, activation checkpointing, and the most buffers in use at once: all parameters on NVMe,
nothing read ahead, DeepSpeed's own reuse distance."""


def sizes(name: str) -> Transformer:
    return read_transformer(json.loads((CONFIGS / f"{name}.json").read_text()))


@each(("name", "ranks", "checkpointing", "held"), REHEARSED)
def test_what_is_gathered_at_once_is_what_rehearsals_saw_but_for_one(
    name: str, ranks: int, checkpointing: bool, held: int
) -> None:
    uses = list(parameter_order(sizes(name), checkpointing))
    assert abs(most_gathered(uses, MOST_DISTANCE, ranks * MIB_OF_HALVES) - held) <= 1


@each("name", sorted(file.stem for file in CONFIGS.glob("*.json")))
def test_a_dozen_buffers_are_enough_for_every_model(name: str) -> None:
    assert 5 <= nvme_buffers(sizes(name), 8, 2).buffer_count <= 12


def test_a_buffer_holds_a_share_of_the_largest_parameter() -> None:
    needed = nvme_buffers(sizes("mixtral-8x7b"), 8, 2)
    assert needed.buffer_size == 4096 * 8 * 2 * 14336 // 8


def test_what_is_kept_for_longer_takes_more_buffers() -> None:
    few, many = (nvme_buffers(sizes("gpt2"), 1, 2, distance).buffer_count for distance in (0, MOST_DISTANCE))
    assert few < many


def test_an_unknown_type_gets_twice_as_many_buffers() -> None:
    config = json.loads((CONFIGS / "llama-3-8b.json").read_text())
    known, unknown = (
        nvme_buffers(read_transformer({**config, "model_type": kind}), 8, 2)
        for kind in ("llama", "unheard-of")
    )
    assert unknown.buffer_count == 2 * known.buffer_count
    assert (known.is_exact, unknown.is_exact) == (True, False)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=24),
    st.lists(st.integers(1, 9), min_size=6, max_size=6),
    st.integers(0, 60),
)
def test_a_parameter_is_kept_exactly_while_its_next_use_is_near(
    used: list[int], numels: list[int], distance: int
) -> None:
    uses = [ParameterUse(one, numels[one]) for one in used]
    assert most_gathered(uses, distance, 3) == most_by_walking(uses, distance, 3)


def most_by_walking(uses: list[ParameterUse], distance: int, least: int) -> int:
    """Walk through the uses as DeepSpeed does, and look ahead at each release."""
    gathered: dict[int, int] = {}
    most = 0
    for at, use in enumerate(uses):
        gathered[use.parameter] = use.numel
        most = max(most, sum(numel >= least for numel in gathered.values()))
        if not is_near(uses, at, distance):
            del gathered[use.parameter]
    return most


def is_near(uses: list[ParameterUse], at: int, distance: int) -> bool:
    passed = 0
    for later in uses[at + 1 :]:
        if passed >= distance:
            return False
        if later.parameter == uses[at].parameter:
            return True
        passed += later.numel
    return False
