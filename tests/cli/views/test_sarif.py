"""The parts of SARIF 2.1.0 that its schema and GitHub code scanning require, checked without our own types."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.making import json_objects
from zlaunch.cli.views.sarif import sarif
from zlaunch.config.codes import ELSEWHERE, GENERAL, LENIENT, meaning
from zlaunch.config.report import Report, ReportOptions, inspect_config
from zlaunch.config.rules import RULES
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Finding, InputMissing, Severity

CWD = Path("/work")
BROKEN = """{
  "train_batch_size": "8",
  "zero_optimisation": {
    "stage": 2
  },
  "ä": 1, // mine
  "elasticity": {"enabled": true}
}
"""


def log(*reports: Report) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(sarif(reports, CWD))
    return value


def report(text: str, name: str = "ds.json") -> Report:
    return Report(name, tuple(validate_document(parse(text, name))))


def results(*reports: Report) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = log(*reports)["runs"][0]["results"]
    return found


def check_log(value: dict[str, Any]) -> None:
    """Assert what the schema calls required, its enumerations and minima."""
    assert (value["version"], urlsplit(value["$schema"]).scheme) == ("2.1.0", "https")
    assert value.keys() <= {"version", "$schema", "runs"}
    (run,) = value["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "zlaunch"
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules)
    for rule in driver["rules"]:
        texts = [rule[name]["text"] for name in ("shortDescription", "fullDescription", "help")]
        assert all(isinstance(text, str) and text for text in texts)
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        uri = place["artifactLocation"]["uri"]
        assert uri
        assert not set(uri) & set(" \\\"'<>^`{|}")
        region = place["region"]
        assert all(type(part) is int and part >= 1 for part in region.values())
        start, end = ((region[f"{edge}Line"], region[f"{edge}Column"]) for edge in ("start", "end"))
        assert start < end


def test_what_is_refused_is_an_error_also_if_deepspeed_ignores_it() -> None:
    found = results(report('{"train_batch_size": 8, "gradient_cliping": 1.0, "steps": 1}'))
    assert [one["level"] for one in found] == ["error", "warning"]


def test_a_log_has_what_is_required() -> None:
    check_log(log(report(BROKEN), report('{"train_batch_size": 8}', "b c.json")))


def test_a_log_without_findings_is_one() -> None:
    assert log(Report("good.json"))["runs"][0]["results"] == []
    check_log(log(Report("good.json")))


@given(json_objects)
def test_whatever_is_wrong_the_log_is_one(config: dict[str, Any]) -> None:
    check_log(log(report(json.dumps(config, indent=2))))


def test_severities_become_levels() -> None:
    findings = [Finding("bad-value", "m", severity=severity) for severity in Severity]
    assert [one["level"] for one in results(Report("a", tuple(findings)))] == [
        "error",
        "error",
        "warning",
        "warning",
        "note",
    ]


def test_a_region_covers_the_key_and_its_value() -> None:
    regions = {one["locations"][0]["logicalLocations"][0]["fullyQualifiedName"]: one["locations"][0]
               ["physicalLocation"]["region"] for one in results(report(BROKEN)) if one["ruleId"] != "comment"}  # fmt: skip
    cut = {name: BROKEN.splitlines()[at["startLine"] - 1][at["startColumn"] - 1 : at["endColumn"] - 1]
           for name, at in regions.items()}  # fmt: skip
    assert cut == {
        "train_batch_size": '"train_batch_size": "8"',
        "zero_optimisation": '"zero_optimisation"',
        "ä": '"ä": 1',
        "elasticity": '"elasticity": {"enabled": true}',
    }


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("ds.json", "ds.json"),
        ("./configs/ds.json", "configs/ds.json"),
        ("/work/configs/ds.json", "configs/ds.json"),
        ("../other/ds.json", "file:///other/ds.json"),
        ("/tmp/a b.json", "file:///tmp/a%20b.json"),
        ("it's 100% $x #1.json", "it%27s%20100%25%20%24x%20%231.json"),
        ("größe.json", "gr%C3%B6%C3%9Fe.json"),
    ],
)
def test_a_file_is_named_relative_to_the_working_directory(file: str, uri: str) -> None:
    (result,) = results(Report(file, (Finding("bad-value", "m"),)))
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1))
def test_a_uri_leads_back_to_the_file(name: str) -> None:
    (result,) = results(Report(f"d/{name}", (Finding("bad-value", "m"),)))
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert unquote(uri) == f"d/{name}" or name in (".", "..")


def test_the_hint_is_part_of_the_message() -> None:
    (result,) = results(Report("a", (Finding("bad-value", "wrong", "write 1"),)))
    assert result["message"]["text"] == "wrong\nwrite 1"


def test_a_file_that_cannot_be_read_is_a_result(tmp_path: Path) -> None:
    found = inspect_config(str(tmp_path / "absent.json"), ReportOptions())
    assert isinstance(found.trouble, InputMissing)
    check_log(log(found))
    assert [one["ruleId"] for one in results(found)] == ["cannot-read"]


@pytest.mark.parametrize("code", [*LENIENT, *GENERAL, *ELSEWHERE, RULES[0].code])
def test_every_code_is_explained(code: str) -> None:
    assert meaning(code).endswith(".")
