"""Tables and pictures of losses that were recorded on two cores: `zlaunch tour --parity --nvme DIR --json`."""

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from tests.running import ROOT
from zlaunch.cli.views.tour import draw, lines_of
from zlaunch.launch.tour import Parity

RECORDED = TypeAdapter(Parity).validate_json(Path(__file__).with_name("parity.json").read_bytes())


def with_last(factor: float) -> Parity:
    """The recorded losses, but the last one of the last job is another."""
    *others, last = RECORDED.curves
    losses = (*last.losses[:-1], last.losses[-1] * factor)
    return replace(RECORDED, curves=(*others, replace(last, losses=losses)))


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_page_about_the_tour_shows_what_the_recorded_losses_print() -> None:
    shown = "\n".join(f"    {line}".rstrip() for line in lines_of(RECORDED))
    assert shown in (ROOT / "docs" / "tour.md").read_text("utf-8")


def test_losses_are_shown_in_80_columns() -> None:
    assert [line for line in lines_of(RECORDED) if len(line) > 80] == []


def test_the_recorded_losses_agree() -> None:
    assert RECORDED.agrees


@pytest.mark.parametrize(
    ("factor", "said"), [(1 + 1e-6, "the losses agree"), (1 + 1e-4, "the losses do not agree")]
)
def test_losses_agree_if_rounding_explains_their_difference(factor: float, said: str) -> None:
    assert said in "\n".join(lines_of(with_last(factor)))


def test_a_difference_is_shown_with_its_first_step() -> None:
    line = next(line for line in lines_of(with_last(1.5)) if line.startswith(RECORDED.curves[-1].label))
    assert line.split()[-2:] == ["5.0e-01", str(RECORDED.experiment.steps)]


def test_losses_become_an_svg() -> None:
    assert b">ZeRO-3, CPU<" in draw(RECORDED)
