"""One real tour of a narrower model; the recorded one in tests/cli/views has the usual width."""

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from tests.running import Result, zlaunch
from zlaunch.launch.tour import MEASURED, TOUR, Tour

pytestmark = [pytest.mark.job, pytest.mark.full]

WIDTH = 512


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tour")


@pytest.fixture(scope="module")
def taken(place: Path) -> Result:
    result = zlaunch("tour", "--width", WIDTH, "--json", cwd=place)
    assert result.status == 0, result.err
    return result


@pytest.fixture(scope="module")
def tour(taken: Result) -> Tour:
    found: Tour = TypeAdapter(Tour).validate_json(taken.out)
    return found


def test_every_phase_of_every_job_takes_what_was_predicted(tour: Tour) -> None:
    """Besides the batch, which is 1 %, threads of gloo may hold two buckets, a layer each, a moment too long.

    A copy of a rank's share of the parameters would be six layers.
    """
    assert tour.why_not_predicted is None
    layer = 4 * tour.experiment.layer
    for stop in tour.stops:
        assert stop.predicted is not None
        pairs = [(mine.end, its.end) for mine, its in zip(stop.measured, stop.predicted.phases, strict=False)]
        for measured, predicted in (*pairs, (stop.peak, stop.predicted.peak)):
            assert abs(measured - predicted) < 0.02 * predicted + 2 * layer, stop.label


def test_the_losses_of_all_jobs_agree(tour: Tour) -> None:
    """Two ranks add the same two gradients in any order; only blocks of the norm and of Adam differ."""
    baseline = tour.stops[0]
    for stop in tour.stops:
        for mine, first in zip(stop.ranks, baseline.ranks, strict=True):
            assert mine.losses == pytest.approx(first.losses, rel=1e-5), stop.label


def test_all_ranks_send_the_same_and_the_baseline_what_the_textbook_says(tour: Tour) -> None:
    for stop in tour.stops:
        assert len({rank.calls for rank in stop.ranks}) == 1, stop.label
    baseline = tour.stops[0]
    assert sum(baseline.sent.values()) == pytest.approx(baseline.textbook, rel=1e-3)


def test_a_tour_says_one_line_for_each_job_in_a_pipe(taken: Result) -> None:
    lines = taken.err.splitlines()
    assert [line for line in lines if " of 5: " in line] == [
        f"{number} of 5: {mode.label}" for number, mode in enumerate(TOUR, start=1)
    ]
    assert len(lines) == len(TOUR) + 3, taken.err


def test_a_tour_leaves_its_numbers_a_picture_and_ordinary_runs(taken: Result, place: Path) -> None:
    assert json.loads((place / "tour" / "tour.json").read_text()) == json.loads(taken.out)
    assert (place / "tour" / "memory.svg").read_bytes().startswith(b"<?xml")
    listed = json.loads(zlaunch("runs", "list", "--runs-dir", "tour/runs", "--json", cwd=place).out)
    assert {one["state"] for one in listed} == {"finished"}
    assert len(listed) == len(TOUR)
    assert all((run / MEASURED / "rank-0.json").exists() for run in (place / "tour" / "runs").iterdir())
    assert not (place / "runs").exists()
