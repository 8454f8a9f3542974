"""The page about a run: one file that loads nothing, runs nothing but its own script and shows no secret."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded_run import HOSTILE, SECRET, write_run
from zlaunch.cli.views.run_page import MARK, page, page_data
from zlaunch.diagnosis.speed import PART_NAMES
from zlaunch.rundir import phases
from zlaunch.runs.history import RunHistory
from zlaunch.runs.store import load_run


class Elements(HTMLParser):
    """The names of the elements, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] == "script" and data.strip():
            self.scripts.append(data)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = write_run(tmp_path_factory.mktemp("runs") / "20260101-120000-train", 30, HOSTILE)
    past = RunHistory(root)
    past.update()
    return page_data(load_run(root), past)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(HOSTILE),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just(HOSTILE), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_whatever_a_run_is_called_and_says_is_text(data: dict[str, Any]) -> None:
    plain, hostile = Elements(page("run", {})), Elements(page(f"{HOSTILE}: failed", data))
    assert [tag for tag, _ in hostile.found] == [tag for tag, _ in plain.found]
    assert json.loads(hostile.scripts[0])["verdict"]["cause"].endswith(HOSTILE)
    assert hostile.scripts[1:] == plain.scripts[1:]


@given(json_values)
def test_values_are_read_back_as_they_were_and_are_never_elements(value: Any) -> None:
    plain, found = Elements(page("run", {})), Elements(page("run", {"id": value}))
    assert [tag for tag, _ in found.found] == [tag for tag, _ in plain.found]
    assert set(json.loads(found.scripts[0])) == {"id"}


def test_a_page_loads_nothing_and_its_policy_allows_its_own_script_alone(data: dict[str, Any]) -> None:
    text = page("run", data)
    found = Elements(text)
    assert [
        name for _, has in found.found for name in ("src", "href") if has.get(name, "data:,") != "data:,"
    ] == []
    policy = next(attributes["content"] or "" for _, attributes in found.found if "http-equiv" in attributes)
    digest = base64.b64encode(hashlib.sha256(found.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "connect-src 'none'" in policy
    assert re.findall(r"https?://[^\s\"']+", text.replace(json.dumps(data), "")) == [
        "http://www.w3.org/2000/svg"
    ]


def test_no_secret_of_the_run_is_on_its_page(data: dict[str, Any]) -> None:
    assert SECRET not in page("run", data)


def test_a_page_is_known_by_its_beginning() -> None:
    assert MARK in page("run", {})[:200]


def test_a_live_page_has_no_data_and_may_ask_for_them() -> None:
    text = page("run", None)
    assert Elements(text).scripts[0] == "null"
    assert "connect-src 'self'" in text
    assert '<html lang="en" data-live>' in text


def test_the_script_makes_no_elements_from_text() -> None:
    script = (Path(__file__).parents[3] / "zlaunch/cli/views/run_page.js").read_text()
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)
        == []
    )


def test_every_phase_of_a_step_has_a_colour_of_its_own(data: dict[str, Any]) -> None:
    colours = data["phase_colours"]
    assert set(phases.OF_A_STEP) <= set(colours)
    assert len({colours[phase] for phase in phases.OF_A_STEP}) == len(phases.OF_A_STEP)


def test_the_script_of_the_page_names_no_phase() -> None:
    script = (Path(__file__).parents[3] / "zlaunch/cli/views/run_page.js").read_text()
    names = {*phases.ALL, *phases.PARTS, *PART_NAMES.values()}
    assert [name for name in names if f'"{name}"' in script] == []
