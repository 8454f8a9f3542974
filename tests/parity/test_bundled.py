"""All bundled models train the same as plain torch, up to what is known to differ."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from zlaunch.estimate.request import EstimateRequest, resolve_request
from zlaunch.job.public_models import public_models
from zlaunch.job.spec import JobSpec
from zlaunch.parity.check import TrialProgram
from zlaunch.parity.small_model import narrow
from zlaunch.parity.trial import TrialOptions, trial_of
from zlaunch.parity.verdict import ParityAnswer

pytestmark = [pytest.mark.job, pytest.mark.full]

SMALL_ONES = {json.dumps(narrow(model.config), sort_keys=True): model.names[0] for model in public_models()}
"""Models that are the same once they are small are checked once."""


@pytest.fixture(scope="module")
def program() -> Iterator[TrialProgram]:
    with TrialProgram(os.environ) as running:
        yield running


@pytest.mark.parametrize("name", SMALL_ONES.values())
def test_a_bundled_model_trains_the_same_at_stage_3_in_bf16(program: TrialProgram, name: str) -> None:
    job = JobSpec(Path(), stage=3, precision="bf16")
    query = resolve_request(EstimateRequest(name, job, gpus=2))
    checked = program.check(trial_of(query, TrialOptions(steps=2)))
    assert (checked.verdict.answer, checked.verdict.differing) == (ParityAnswer.SAME, ())
