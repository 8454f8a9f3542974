"""`make test` runs everything and sums up by part, whatever failed before."""

import json
from pathlib import Path

import pytest

from tests import distribution
from tools.report import ROOT
from tools.run_tests import TOUCHED, called_for, run

CONFTEST = """
def pytest_collection_modifyitems(items):
    for item in items:
        item.user_properties.append(("part", item.path.stem.removeprefix("test_")))
"""


def test_what_fails_or_cannot_be_collected_stops_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_one.py").write_text("def test_a():\n    assert False\n\ndef test_b():\n    pass\n")
    (tmp_path / "test_two.py").write_text("def test_c():\n    pass\n")
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    here = ("-n", "0", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "--continue-on-collection-errors")
    assert run((*here, str(tmp_path)), tmp_path / "minutes.json") == 1
    *_, no_part, one, two, last = capsys.readouterr().out.splitlines()
    rows = [line.rsplit(maxsplit=5)[:4] for line in (no_part, one, two)]
    assert rows == [["no part", "0", "1", "0"], ["one", "1", "1", "0"], ["two", "1", "0", "0"]]
    assert last.startswith("2 passed, 2 failed, 0 skipped in ")
    assert list(json.loads((tmp_path / "minutes.json").read_text())) == ["no part", "one", "two"]


def test_what_changed_calls_for_tests_of_it() -> None:
    found = called_for(["zlaunch/hosts/agent/ssh.py", "tests/cli/test_json.py", "README.md"])
    of_hosts = ["tests/cluster/", "tests/jobs/test_members.py", "tests/jobs/test_op_builds.py"]
    assert found == ["tests/cli/test_json.py", *of_hosts]


def test_tests_that_share_a_fixture_are_called_for_as_if_each_took_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distribution, "SECONDS", {"tests/a.py::a[1]": 200.0})
    monkeypatch.setattr(distribution, "MOST_CALLED_FOR", 60)
    full = [f"tests/a.py::{name}[{number}]" for name in "ab" for number in "12345"]
    left = distribution.left_out(full, ("tests/",))
    assert [node for node in full if node not in left] == [
        *("tests/a.py::a[2]", "tests/a.py::b[1]", "tests/a.py::b[2]")
    ]


def test_what_may_change_and_what_it_calls_for_exist() -> None:
    named = {*TOUCHED, *(path for paths in TOUCHED.values() for path in paths)}
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_a_pytest_that_cannot_start_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(("-n", "0", str(tmp_path / "test_nothing.py")), tmp_path / "minutes.json") == 4
    assert capsys.readouterr().out.endswith("pytest ended with 4\n")
