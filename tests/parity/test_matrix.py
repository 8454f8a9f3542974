"""`zlaunch check --matrix`."""

import json
import signal
import subprocess
from itertools import combinations
from pathlib import Path

import pytest

from tests.running import ROOT, start, zlaunch
from zlaunch.errors import ExitStatus
from zlaunch.estimate.query import EstimateQuery
from zlaunch.estimate.request import EstimateRequest, resolve_request
from zlaunch.job.spec import JobSpec, Offload
from zlaunch.parity.matrix import CheckedCell, Pinned, cells, planned, status_of
from zlaunch.parity.trial import Trial, TrialOptions
from zlaunch.parity.verdict import ParityAnswer, ParityVerdict

SMALL = str(ROOT / "recipes" / "small_llama")
FEW = ("--matrix", "--stage", "2", "--offload", "none", "--optimizer", "adamw", "--precision", "bf16")


@pytest.fixture(scope="module")
def query() -> EstimateQuery:
    return resolve_request(EstimateRequest(SMALL, JobSpec(Path()), gpus=2))


def test_a_matrix_has_all_stages_offloads_and_optimizers(query: EstimateQuery) -> None:
    found = cells(query, Pinned())
    strategies = {(cell.strategy.stage, cell.strategy.label) for cell in found}
    assert {stage for stage, _ in strategies} == {0, 1, 2, 3}
    assert len(found) == len(strategies) * 6 * 4


def test_each_pair_of_precision_accumulation_and_clipping_occurs(query: EstimateQuery) -> None:
    values = {(cell.precision, cell.accumulation, cell.clipping) for cell in cells(query, Pinned())}
    for first, second in combinations(range(3), 2):
        assert len({(value[first], value[second]) for value in values}) == 4


def test_what_is_pinned_is_the_same_in_all_cells(query: EstimateQuery) -> None:
    found = cells(query, Pinned(stage=3, optimizer="Lion", precision="bf16"))
    assert {(cell.strategy.stage, cell.optimizer, cell.precision) for cell in found} == {(3, "Lion", "bf16")}


def test_the_optimizer_of_a_ds_config_keeps_its_parameters(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.8, 0.9]}}}))
    named = resolve_request(EstimateRequest(SMALL, JobSpec(Path(), ds_config=file), gpus=2))
    first = cells(named, Pinned(stage=1, offload=Offload("none", "none"), precision="bf16"))[:1]
    ((_, trial),) = planned(first, named, TrialOptions(), Pinned())
    assert isinstance(trial, Trial)
    assert trial.workload.ds_config["optimizer"]["params"]["betas"] == [0.8, 0.9]


def test_an_optimizer_that_a_ds_config_writes_otherwise_is_not_tried_twice(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"optimizer": {"type": "adamw", "params": {"lr": 1e-3}}}))
    named = resolve_request(EstimateRequest(SMALL, JobSpec(Path(), ds_config=file), gpus=2))
    found = {cell.optimizer for cell in cells(named, Pinned(stage=1))}
    assert found == {"adamw", "Adam", "Lion", "Adagrad", "Muon"}


def test_every_cell_can_be_tried(query: EstimateQuery) -> None:
    described = dict(planned(cells(query, Pinned()), query, TrialOptions(), Pinned()))
    assert [cell for cell, trial in described.items() if not isinstance(trial, Trial)] == []


def test_a_configuration_that_is_refused_does_not_differ(query: EstimateQuery) -> None:
    refused, *others = (CheckedCell(cell, refused="why") for cell in cells(query, Pinned())[:2])
    assert status_of([refused, *others]) is ExitStatus.UNAVAILABLE


def test_one_cell_that_differs_is_the_answer(query: EstimateQuery) -> None:
    first, second = cells(query, Pinned())[:2]
    answers = ((first, ParityAnswer.SAME), (second, ParityAnswer.DIFFERS))
    done = [CheckedCell(cell, ParityVerdict(answer)) for cell, answer in answers]
    assert status_of(done) is ExitStatus.REFUSED


@pytest.mark.job
@pytest.mark.full
def test_cells_are_trained_in_one_program(tmp_path: Path) -> None:
    done = zlaunch("check", SMALL, *FEW, "--json", cwd=tmp_path)
    found = json.loads(done.out)
    assert done.status == 0, done.err
    assert [one["verdict"]["answer"] for one in found] == ["the same"] * 4


@pytest.mark.job
@pytest.mark.full
def test_a_matrix_that_is_stopped_prints_what_was_done(tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    with (
        printed.open("wb") as out,
        start("check", SMALL, *FEW, "--steps", "100", cwd=tmp_path, stdout=out) as program,
    ):
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(timeout=8)
        program.send_signal(signal.SIGINT)
        assert program.wait(timeout=60) == 130
    assert "stopped after" in printed.read_text().splitlines()[0]
