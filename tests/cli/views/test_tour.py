"""Tables and pictures of a tour that was recorded on two cores: `zlaunch tour --json`."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.estimate.rehearsing import rehearse
from tests.running import ROOT
from zlaunch.cli.views.tour import bridge, draw, lines_of
from zlaunch.estimate.memory.model_states import ModelStates
from zlaunch.launch.tour import TOUR, FinishedJob, PredictedMemory, Stop, Tour, overrides_of, tour_of
from zlaunch.rundir.run_files import RunFiles

RECORDED = TypeAdapter(Tour).validate_json(Path(__file__).with_name("tour.json").read_bytes())
PART_NAMES = ("parameters", "gradients", "optimizer states", "master weights", "buckets")
SIZES = st.integers(0, 1 << 40)


def test_the_page_about_the_tour_shows_what_the_recorded_tour_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = "\n".join(f"    {line}".rstrip() for line in lines_of(RECORDED))
    assert shown in (ROOT / "docs" / "tour.md").read_text("utf-8")


def test_the_recorded_prediction_is_still_what_a_rehearsal_says(tmp_path: Path) -> None:
    config: dict[str, Any] = {"zero_optimization": {"stage": 0}, "gradient_clipping": 1.0}
    for path, value in overrides_of(RECORDED.experiment, TOUR[0]):
        *sections, key = path.split(".")
        section = config
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value
    (tmp_path / "ds_config.json").write_text(json.dumps(config))
    (tmp_path / "job.json").write_text('{"accelerator": "cpu"}')
    first = RECORDED.stops[0]
    job = FinishedJob(TOUR[0], RunFiles(tmp_path), first.ranks)
    (again,) = tour_of(RECORDED.experiment, [job], rehearse).stops
    assert (again.predicted, again.on_gpus) == (first.predicted, first.on_gpus)


def test_a_tour_is_shown_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert [line for line in lines_of(RECORDED) if len(line) > 80] == []


def test_a_tour_without_a_rehearsal_shows_what_was_measured_and_why_nothing_was_predicted() -> None:
    stops = tuple(replace(stop, predicted=None, on_gpus=None) for stop in RECORDED.stops)
    text = "\n".join(lines_of(replace(RECORDED, stops=stops, why_not_predicted="torch is too old")))
    assert "torch is too old" in text
    assert "measured" in text
    assert "leaves out" not in text


def test_a_single_rank_sends_nothing_and_has_no_table_of_traffic() -> None:
    alone = replace(RECORDED, experiment=replace(RECORDED.experiment, world_size=1))
    assert not any("comms logger" in line for line in lines_of(alone))


def test_what_was_measured_is_what_was_predicted() -> None:
    assert max(max(map(abs, stop.differences())) for stop in RECORDED.stops) < 0.01


@given(st.tuples(SIZES, SIZES, SIZES), st.lists(SIZES, min_size=5, max_size=5), st.booleans())
def test_the_formula_and_what_it_leaves_out_add_up_to_the_peak(
    formula: tuple[int, int, int], sizes: list[int], is_half: bool
) -> None:
    parts = dict(zip(PART_NAMES, sizes, strict=True))
    memory = PredictedMemory((), sum(sizes), parts)
    states = ModelStates(*formula)
    assert states.total + sum(size for _, size in bridge(states, memory, is_half)) == pytest.approx(
        memory.peak, abs=1 << 20
    )


def test_in_half_precision_the_formula_has_the_master_weights() -> None:
    memory = PredictedMemory(
        (), 16, {"parameters": 2, "gradients": 2, "optimizer states": 8, "master weights": 4}
    )
    assert bridge(ModelStates(2, 2, 12), memory, is_half=True) == []


def test_a_tour_becomes_an_svg() -> None:
    assert b">optimizer states<" in draw(RECORDED)


def test_a_tour_without_a_rehearsal_becomes_an_svg() -> None:
    stops = tuple(replace(stop, predicted=None, on_gpus=None) for stop in RECORDED.stops)
    assert draw(replace(RECORDED, stops=stops)).startswith(b"<?xml")


@pytest.mark.parametrize("scale", [0.01, 1, 100])
def test_an_axis_of_the_picture_and_its_notes_have_one_unit(scale: float) -> None:
    stops = tuple(scaled(stop, scale) for stop in RECORDED.stops)
    text = draw(replace(RECORDED, stops=stops)).decode()
    panels = re.split(r">([MG]i?B)<", text)  # the name of an axis follows the notes of its bars
    assert len(panels) == 7
    for notes, unit in zip(panels[::2], panels[1::2], strict=False):
        assert re.findall(r">[\d.]+ ([MG]i?B)", notes) == [unit] * len(stops)
        assert set(re.findall(r"textbook [\d.]+ ([MG]i?B)", notes)) <= {unit}


def scaled(stop: Stop, scale: float) -> Stop:
    """Multiply the bars of a picture."""
    assert stop.predicted is not None
    formula = stop.formula
    states = (scale * part for part in (formula.parameters, formula.gradients, formula.optimizer))
    parts = {name: int(scale * size) for name, size in stop.predicted.parts.items()}
    return replace(
        stop,
        formula=ModelStates(*states),
        predicted=replace(stop.predicted, parts=parts),
        sent={kind: scale * size for kind, size in stop.sent.items()},
    )
