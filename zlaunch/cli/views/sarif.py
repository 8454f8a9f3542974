"""Findings as SARIF 2.1.0, which GitHub code scanning and editors read.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from zlaunch import __version__
from zlaunch.cli.views.dump import to_json
from zlaunch.config.codes import meaning
from zlaunch.config.report import Report
from zlaunch.errors import Finding, Place, Severity

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_LEVELS: Mapping[Severity, str] = {
    Severity.ERROR: "error",
    Severity.FAILS_LATER: "error",
    Severity.WARNING: "warning",
    Severity.IGNORED: "warning",
    Severity.ADVICE: "note",
}


def sarif(reports: Sequence[Report], cwd: Path) -> str:
    """Write the findings as one SARIF log; files below `cwd` are named relative to it."""
    findings = chain.from_iterable(report.all_findings for report in reports)
    codes = sorted({finding.code for finding in findings})
    results: list[dict[str, Any]] = []
    for report in reports:
        results += (
            _result(report.name, finding, codes.index(finding.code), cwd) for finding in report.all_findings
        )
    driver = {"name": "zlaunch", "version": __version__, "rules": [_rule(code) for code in codes]}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return to_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(code: str) -> dict[str, Any]:
    text = meaning(code)
    return {
        "id": code,
        "shortDescription": {"text": code.replace("-", " ")},
        "fullDescription": {"text": text},
        "help": {"text": text},
    }


def _result(name: str, finding: Finding, rule: int, cwd: Path) -> dict[str, Any]:
    place = finding.place or Place(name, 1, 1)
    region = {
        "startLine": place.line,
        "startColumn": place.column,
        "endLine": place.line,
        "endColumn": place.end_column,
    }
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": {"uri": _uri(place.file, cwd)}, "region": region}
    }
    if finding.where:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.where}]
    return {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _LEVELS[finding.label],
        "message": {"text": "\n".join(filter(None, [finding.message, finding.hint]))},
        "locations": [location],
    }


def _uri(file: str, cwd: Path) -> str:
    """Write a path as a URI: relative to the working directory if it is below it."""
    path = Path(os.path.normpath(cwd / file))  # resolving links would leave the directory
    if path.is_relative_to(cwd):
        return quote(path.relative_to(cwd).as_posix())
    return path.as_uri()
