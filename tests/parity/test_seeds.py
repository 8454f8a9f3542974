"""Defects that are put into the engine are caught, with the parameters that are wrong."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.running import ROOT
from zlaunch.estimate.rehearse import ENVIRONMENT
from zlaunch.estimate.workload import Workload
from zlaunch.hosts.adapters import adapter_of
from zlaunch.parity.trial import Trial, to_line
from zlaunch.parity.verdict import Comparison, ParityAnswer, ParityVerdict, judge

pytestmark = pytest.mark.job

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "tie_word_embeddings": True,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}
ADAMW = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True, "weight_decay": 0.0}}
NORMS = 5
"""Parameters of the model that are norms; all others are matrices."""
ALL = 2 * 9 + 2


def trial(stage: int = 2, accumulated: int = 2, steps: int = 2, model: Mapping[str, Any] = LLAMA) -> Trial:
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulated,
        "gradient_clipping": 0.5,
        "optimizer": ADAMW,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": False},
    }
    workload = Workload(model, config, 2, 2, seq_len=16, accelerator="cpu", load_dtype="fp32")
    return Trial(workload, "fp32", steps)


ALBERT = {
    "model_type": "albert",
    "architectures": ["AlbertForMaskedLM"],
    "embedding_size": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""It uses its one layer twice."""


class Seeded:
    """Checks trials in an engine with a defect; the packages are imported once for all of them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.parity.seeded"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
            text=True,
        )

    def verdict(self, defect: str | None, asked: Trial) -> ParityVerdict:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"defect": defect, "trial": json.loads(to_line(asked))})
        print(line, file=self._process.stdin, flush=True)
        reply: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "failure" not in reply, reply["failure"]
        comparison: Comparison = adapter_of(Comparison).validate_python(reply)
        assert comparison.unsaved == ()
        return judge(comparison.distances, asked.precision)

    def end(self) -> None:
        self._process.communicate("")


@pytest.fixture(scope="module")
def seeded() -> Iterator[Seeded]:
    program = Seeded()
    yield program
    program.end()


def wrong(found: ParityVerdict, quantity: str) -> set[str]:
    return {item.distance.parameter for item in found.differing if item.distance.quantity == quantity}


def test_gradients_that_are_not_divided_by_the_number_of_ranks_differ_all_by_a_factor_of_two(
    seeded: Seeded,
) -> None:
    found = seeded.verdict("scale_factor", trial(steps=1, accumulated=1))
    gradients = [item.distance for item in found.differing if item.distance.quantity == "gradient"]
    assert found.answer is ParityAnswer.DIFFERS
    assert len(gradients) == ALL
    assert {round(distance.ratio, 4) for distance in gradients} == {2.0}
    assert wrong(found, "gradient norm") == {""}
    assert wrong(found, "update") == set()


def is_all(names: set[str]) -> bool:
    return len(names) == ALL


def is_of_a_bucket(names: set[str]) -> bool:
    return "model.layers.0.self_attn.q_proj.weight" in names and len(names) < ALL / 2


def is_some(names: set[str]) -> bool:
    return 0 < len(names) < ALL


def is_of_norms(names: set[str]) -> bool:
    return len(names) == NORMS and all("norm" in name for name in names)


@pytest.mark.full
@pytest.mark.parametrize(
    ("defect", "stage", "quantity", "names"),
    [
        ("accumulation_divided_twice", 2, "gradient", is_all),
        ("only_the_last_micro_batch", 2, "gradient", is_all),
        ("dropped_bucket", 2, "gradient", is_of_a_bucket),
        ("bucket_tail", 2, "gradient", is_some),
        ("unsynchronised_clipping", 2, "momentum", is_some),
        ("missed_group", 2, "update", is_of_norms),
        ("stale_master_weights", 2, "update", is_of_norms),
        ("stale_weights", 1, "weights", is_all),
        ("clipping_at_stage_3", 3, "momentum", is_some),
    ],
)
def test_a_defect_is_caught_with_the_parameters_that_are_wrong(
    seeded: Seeded, defect: str, stage: int, quantity: str, names: Callable[[set[str]], bool]
) -> None:
    found = seeded.verdict(defect, trial(stage))
    assert found.answer is ParityAnswer.DIFFERS
    assert names(wrong(found, quantity)), wrong(found, quantity)


@pytest.mark.full
def test_a_module_that_loses_the_gradients_of_its_second_use_is_named(seeded: Seeded) -> None:
    found = seeded.verdict("second_use_of_a_module", trial(model=ALBERT))
    names = wrong(found, "gradient")
    assert names
    assert all("albert_layers" in name for name in names)


def test_a_checkpoint_without_the_states_of_the_optimizer_is_caught(seeded: Seeded) -> None:
    found = seeded.verdict("forgotten_momentum", replace(trial(), saves=True))
    assert {item.distance.quantity for item in found.differing} == {"resumed"}
    assert is_all(wrong(found, "resumed"))


@pytest.mark.full
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_engine_without_a_defect_trains_saves_and_resumes_the_same(seeded: Seeded, stage: int) -> None:
    found = seeded.verdict(None, replace(trial(stage), saves=True))
    assert (found.answer, found.differing) == (ParityAnswer.SAME, ())
    assert {"resumed", "resumed on 1 rank", "exported"} <= {*found.largest}


@pytest.mark.full
def test_stage_3_counts_steps_once_for_each_sub_group_after_a_universal_checkpoint(seeded: Seeded) -> None:
    """DeepSpeed gives all sub-groups one tensor with the step, and torch's Adam adds 1 to it for each."""
    found = seeded.verdict(None, replace(trial(3), saves=True))
    wrong_ones = {item.distance.quantity for item in found.differing}
    assert wrong_ones == {"resumed on 1 rank"}
    assert 0 < len(wrong(found, "resumed on 1 rank")) < ALL
