"""Pictures of estimates in closed form."""

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.asking import GIB, answer, by_formula, forecast, question
from tests.running import RECIPE
from zlaunch.cli.views.axes import Axis
from zlaunch.cli.views.drawing import figure_of
from zlaunch.cli.views.memory_plot import phases_picture, strategies_picture
from zlaunch.cli.views.picture import (
    CACHE,
    CONTEXT,
    Bar,
    Panel,
    Picture,
    check_plot,
    drawing_of,
    render,
)
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.estimate.query import Estimate
from zlaunch.estimate.strategies import StrategyTable
from zlaunch.job.public_models import find_public

PNG, SVG = Path("memory.png"), Path("memory.svg")
CURVE = (("load", 0, 2 << 20), ("forward", 1 << 30, 2 << 30), ("forward", 1 << 29, 2 << 30), ("step", 0, 0))


@cache
def small() -> StrategyTable:
    return by_formula(json.loads(RECIPE.with_name("small_llama").joinpath("config.json").read_bytes()))


@cache
def large() -> StrategyTable:
    public = find_public("meta-llama/Llama-3.1-8B")
    assert public is not None
    return by_formula(public.config, micro=1, seq_len=2048)


def estimate(table: StrategyTable, label: str) -> Estimate:
    return next(one for strategy, one in table.estimates if str(strategy.options) == label)


def text_of(picture: Picture) -> str:
    return render(picture, SVG).decode()


def test_the_parts_of_each_phase_add_up_to_what_its_tensors_take() -> None:
    one = estimate(large(), "--stage 1")
    bars = phases_picture(one).panels[0].bars
    assert [bar.total for bar in bars[:-1]] == [phase.peak["gpu"] for phase in one.forecast.phases]


def test_the_parts_of_the_whole_process_add_up_to_what_it_takes() -> None:
    one = estimate(large(), "--stage 1")
    picture = phases_picture(one)
    assert picture.names[-1] == "whole process"
    assert picture.panels[0].bars[-1].total == one.need.process[1]
    assert {CACHE, CONTEXT} < picture.panels[0].bars[-1].parts.keys()


def test_a_limit_that_is_far_away_is_told_in_words_and_does_not_stretch_the_axis() -> None:
    one = estimate(small(), "--stage 2")
    picture = phases_picture(one)
    assert picture.panels[0].shown == one.need.allocated
    assert "The H100-80GB has 79.1 GiB: 23 times the whole process" in " ".join(picture.lines)
    assert "stroke-dasharray" not in text_of(picture)


def test_a_limit_that_is_near_is_a_line_on_the_axis() -> None:
    picture = phases_picture(estimate(large(), "--stage 1"))
    assert picture.panels[0].shown == 79.11 * GIB // 1
    assert "H100-80GB: 79.1 GiB" in text_of(picture)


def test_a_bar_that_is_much_longer_than_the_limit_is_cut() -> None:
    panel = Panel("", [Bar({"parameters": 900 * GIB}, "900 GiB")], 80 * GIB, "a GPU")
    assert panel.shown == 400 * GIB
    assert "\u2026 900 GiB" in text_of(Picture("", [], [""], [panel]))


def test_what_activations_hide_has_a_panel_of_its_own() -> None:
    _, enlarged = phases_picture(estimate(small(), "--stage 2")).panels
    assert enlarged.title == "Enlarged: without activations"
    assert enlarged.shown < 100 << 20
    assert len(phases_picture(estimate(large(), "--stage 1")).panels) == 1


def test_of_an_offloaded_job_the_host_is_shown_too() -> None:
    picture = phases_picture(estimate(large(), "--stage 3 --offload cpu"))
    assert picture.panels[-1].title == "Host tensors of one rank"
    assert "page-locked memory" in text_of(picture)


def test_each_strategy_says_without_colour_whether_it_fits() -> None:
    picture = strategies_picture(large())
    _, whole, _ = picture.panels
    assert whole.bars[0].note.endswith("does not fit")
    assert [bar.note.endswith(("fits", "fastest")) for bar in whole.bars[1:]] == [True] * 7
    assert [name for name in picture.names if name.startswith("> ")] == ["> stage 1"]
    assert "The fastest that fits (&gt;): --stage 1." in text_of(picture)


def test_what_zero_partitions_has_a_panel_of_its_own() -> None:
    states = strategies_picture(small()).panels[0]
    assert [bar.note for bar in states.bars[:4]] == ["50 MiB", "11 MiB", "11 MiB", "6 MiB"]


def test_the_legend_has_the_parts_in_the_order_of_the_stack() -> None:
    text = text_of(strategies_picture(large()))
    parts = [
        ">parameters<",
        ">optimizer states<",
        ">gradients<",
        ">activations<",
        ">logits<",
        ">CUDA and NCCL",
    ]
    assert sorted(parts, key=text.find) == parts
    assert all(part in text for part in parts)


def test_a_part_that_nobody_would_see_is_drawn_with_others() -> None:
    bars = [Bar({"parameters": 1000, "buckets": 2, "logits": 1}), Bar({"buckets": 3, "activations": 500})]
    merged = Panel("", bars).merged()
    assert [dict(bar.parts) for bar in merged.bars] == [
        {"parameters": 1000, "other": 3},
        {"activations": 500, "other": 3},
    ]


@pytest.mark.parametrize("size", [small, large])
def test_no_two_texts_overlap_and_none_leaves_the_picture(size: Callable[[], StrategyTable]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for picture in (strategies_picture(size()), phases_picture(estimate(size(), "--stage 3 --offload cpu"))):
        figure = figure_of(drawing_of(picture))
        FigureCanvasAgg(figure).draw()
        places = [text.get_window_extent() for text in figure.texts]
        assert [a for a, b in combinations(places, 2) if a.overlaps(b)] == []
        assert [place for place in places if place.x0 < 0 or place.x1 > figure.bbox.x1 or place.y0 < 0] == []


@given(st.floats(-1e12, 1e12), st.floats(1e-6, 1e12), st.booleans())
def test_an_axis_has_few_round_numbers_and_all_of_them_inside(low: float, span: float, is_log: bool) -> None:
    if is_log:
        low = abs(low) + 1e-9
    assume(span > 1e-6 * abs(low))
    axis = Axis(low, low + span, 0.0, 400.0, is_log=is_log)
    assert len(axis.ticks) <= 11
    assert all(-0.01 <= axis(value) <= 400.01 for value in axis.ticks)


def test_a_logarithmic_axis_within_a_decade_has_the_twos_and_the_fives() -> None:
    assert Axis(2.0, 8.0, 0.0, 400.0, is_log=True).ticks == [2.0, 5.0]
    assert Axis(0.03, 0.4, 0.0, 400.0, is_log=True).ticks == [0.05, 0.1, 0.2]


def test_the_same_estimate_gives_the_same_picture() -> None:
    picture = Picture(
        "", [], [""], [Panel("", [Bar({"buckets": GIB, "logits": GIB})], 3 * GIB, "a GPU")], CURVE
    )
    for file in (PNG, SVG):
        assert render(picture, file) == render(picture, file)


def test_memory_over_time_is_drawn_where_it_is_known() -> None:
    one = answer(question(stage=2), forecast(10.0, curve=CURVE))
    assert ">forward<" in text_of(phases_picture(one))
    assert "over time" not in text_of(phases_picture(replace(one, forecast=replace(one.forecast, curve=()))))


def test_a_picture_is_a_png_or_an_svg_as_its_file_says() -> None:
    picture = phases_picture(estimate(small(), "--stage 0"))
    assert render(picture, PNG).startswith(b"\x89PNG")
    assert render(picture, Path("A.SVG")).startswith(b"<?xml")


def test_a_name_of_a_model_is_no_formula() -> None:
    assert "a$b$_c" in text_of(Picture("a$b$_c", [], ["x"], [Panel("", [Bar({"parameters": 1})])]))


@pytest.mark.parametrize("name", ["memory.jpg", "memory", ".png"])
def test_another_format_is_refused(name: str) -> None:
    with pytest.raises(WrongUsage, match="neither PNG nor SVG"):
        check_plot(Path(name))


def test_without_matplotlib_a_png_is_refused_at_once_and_an_svg_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unavailable, match="matplotlib") as refused:
        check_plot(PNG)
    assert refused.value.hint == "write `--plot memory.svg`, or `pip install matplotlib`, the extra `plot`"
    check_plot(SVG)


def test_an_svg_is_drawn_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ET.fromstring(text_of(strategies_picture(small())))
