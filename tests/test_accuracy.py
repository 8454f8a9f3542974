"""docs/accuracy.md, and what it says of the estimates."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools import write_accuracy
from tools.write_accuracy import EXPLAINED, FILE, GOALS, PAGE, errors_of, figures, mean_error, page, written
from zlaunch.estimate.fit import ALLOCATED_ERROR, RESERVED_ERROR, Fit


@pytest.fixture(scope="module", name="published")
def _published() -> dict[str, Any]:
    return json.loads(FILE.read_text("utf-8"))  # type: ignore[no-any-return]


def test_the_page_shows_the_recorded_predictions(published: dict[str, Any]) -> None:
    assert PAGE.read_text("utf-8") == page(published)


def test_the_file_is_as_its_program_writes_it(published: dict[str, Any]) -> None:
    assert FILE.read_text("utf-8") == written(published)


def test_at_least_60_figures_have_a_source_and_a_prediction(published: dict[str, Any]) -> None:
    predicted = [one for one in figures(published) if one.predicted() is not None]
    assert len(predicted) >= 60
    assert all(one.run["source"] and one.run["quote"] and one.run["versions"] for one in predicted)


@pytest.mark.parametrize("kind", ["allocated", "reserved"])
def test_tensors_and_cache_of_runs_with_packages_of_today_are_as_near_as_promised(
    published: dict[str, Any], kind: str
) -> None:
    assert mean_error(errors_of(figures(published), "same", kind)) <= GOALS[kind]


def test_every_large_error_has_a_reason(published: dict[str, Any]) -> None:
    unexplained = [
        one.run["id"]
        for one in figures(published)
        if not one.is_verdict and abs(one.best_error or 0) > EXPLAINED and not one.reason
    ]
    assert unexplained == []


def test_no_run_that_ran_out_of_memory_is_said_to_fit(published: dict[str, Any]) -> None:
    died = [one for one in figures(published) if one.quantity == "oom"]
    assert len(died) >= 5
    assert [one.run["id"] for one in died if one.run["predicted"]["fit"] == Fit.YES] == []


def test_the_margins_of_a_verdict_are_larger_than_published_errors(published: dict[str, Any]) -> None:
    known = [one for one in figures(published) if "excluded" not in one.run]
    assert max(errors_of(known, "same", "allocated")) <= 100 * ALLOCATED_ERROR
    for kind in ("reserved", "process"):
        assert mean_error(errors_of(known, "same", kind)) <= 100 * RESERVED_ERROR


def test_no_run_that_was_published_as_running_is_refused(published: dict[str, Any]) -> None:
    ran = [one.run for one in figures(published) if one.quantity != "oom" and one.predicted() is not None]
    assert [run["id"] for run in ran if run["predicted"]["fit"] == Fit.NO] == []


def test_a_run_that_is_predicted_later_leaves_the_packages_of_the_others(
    published: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (dict(run) for run in published["runs"][:2])
    predicted = new.pop("predicted")
    for name in ("FILE", "PAGE"):
        monkeypatch.setattr(write_accuracy, name, tmp_path / name)
    monkeypatch.setattr(write_accuracy, "predict", lambda *_: predicted)
    monkeypatch.setattr(write_accuracy, "version", lambda _: "99")
    write_accuracy.FILE.write_text(json.dumps({**published, "runs": [old, new]}))
    write_accuracy.main(again=False, releases=None)
    before = ", ".join(f"{name} {release}" for name, release in old["predicted_with"].items())
    shown = (tmp_path / "PAGE").read_text()
    assert f"- The runs were predicted with the installed packages: {before}; but {new['id']} with " in shown
    assert "Every run was predicted" not in shown
