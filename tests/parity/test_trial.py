"""What a trial takes of the job."""

from pathlib import Path

import pytest

from tests.running import ROOT
from zlaunch.errors import Unavailable
from zlaunch.estimate.query import EstimateQuery
from zlaunch.estimate.request import EstimateRequest, resolve_request
from zlaunch.job.spec import JobSpec, Stage
from zlaunch.parity.trial import Trial, TrialOptions, trial_of


def query(stage: Stage = 2, optimizer: str | None = None, section: object = None) -> EstimateQuery:
    overrides: tuple[tuple[str, object], ...] = ()
    if section is not None:
        overrides = (("optimizer", section),)
    job = JobSpec(Path(), stage=stage, precision="bf16", overrides=overrides)
    model = str(ROOT / "recipes" / "small_llama")
    return resolve_request(EstimateRequest(model, job, gpus=2, optimizer=optimizer))


def trial(micro_batch: int | None = None, seq_len: int | None = None) -> Trial:
    return trial_of(query(), TrialOptions(micro_batch=micro_batch, seq_len=seq_len))


def test_micro_batch_and_length_are_as_asked() -> None:
    workload = trial(micro_batch=4, seq_len=64).workload
    assert (workload.ds_config["train_micro_batch_size_per_gpu"], workload.seq_len) == (4, 64)


def test_what_a_cpu_would_not_finish_is_shortened_and_said() -> None:
    found = trial(micro_batch=512, seq_len=8192)
    assert found.workload.seq_len == 128
    assert {"a micro-batch of 512: 16 are taken", "sequences of 8192 tokens: 128 are taken"} <= {
        *found.unchecked
    }


@pytest.mark.parametrize("optimizer", ["lion", "muon", "adagrad", "adamw"])
def test_an_optimizer_of_deepspeed_has_a_reference(optimizer: str) -> None:
    assert trial_of(query(1, optimizer), TrialOptions()).workload.ds_config["optimizer"]


def test_an_argument_that_no_reference_has_is_named() -> None:
    section = {"type": "AdamW", "params": {"lr": 1e-3, "bias_correction": False}}
    with pytest.raises(Unavailable, match="`bias_correction: false` of adamw"):
        trial_of(query(section=section), TrialOptions())
