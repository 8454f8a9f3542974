import importlib.util

import pytest

from zlaunch.cli.views.memory_plot import draw, refuse_without_matplotlib
from zlaunch.errors import Unavailable, WrongUsage

CURVE = [("load", 0, 2 << 20), ("forward", 1 << 30, 2 << 30), ("forward", 1 << 29, 2 << 30), ("step", 0, 0)]


def test_a_curve_becomes_a_png() -> None:
    assert draw(CURVE, "a model", 80 << 30).startswith(b"\x89PNG")


def test_a_curve_needs_no_limit() -> None:
    assert draw(CURVE[:1], "a model", None).startswith(b"\x89PNG")


def test_without_a_curve_there_is_nothing_to_draw() -> None:
    with pytest.raises(WrongUsage, match="closed form"):
        draw([], "a model", None)


def test_without_matplotlib_it_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="matplotlib"):
        refuse_without_matplotlib()
