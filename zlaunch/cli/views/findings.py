"""Reports about ds_configs as text, JSON or GitHub annotations."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zlaunch import console
from zlaunch.config.report import Report
from zlaunch.errors import ExitStatus, Finding, Severity
from zlaunch.units import plural

_GITHUB = {
    Severity.ERROR: "error",
    Severity.FAILS_LATER: "error",
    Severity.IGNORED: "warning",
    Severity.ADVICE: "notice",
}


def as_text(reports: Sequence[Report]) -> None:
    """Print the findings of each file, then a summary line."""
    for report in reports:
        if report.trouble is not None:
            console.show_error(report.trouble)
            continue
        if report.diff:
            console.data(report.diff.rstrip("\n"))
        for finding in report.findings:
            console.show_finding(finding)
        console.say(f"{report.name}: {'; '.join(filter(None, [report.fix_note, _verdict(report)]))}")


def _verdict(report: Report) -> str:
    if not report.findings:
        return "valid"
    counts = dict.fromkeys(Severity, 0)
    for finding in report.findings:
        counts[finding.severity] += 1
    said = ", ".join(_counted(count, severity) for severity, count in counts.items() if count)
    return f"valid, {said}" if report.status(strict=True) is ExitStatus.OK else said


def _counted(count: int, severity: Severity) -> str:
    if severity is Severity.ERROR:
        return plural(count, "error")
    is_plural = severity is Severity.FAILS_LATER and count > 1
    return f"{count} {'fail later' if is_plural else severity.value}"


def as_json(reports: Sequence[Report]) -> None:
    """Print all findings as one JSON object."""
    findings = [_members(report.name, finding) for report in reports for finding in _all(report)]
    diffs = {report.name: report.diff for report in reports if report.diff}
    console.data(json.dumps({"findings": findings, **({"diffs": diffs} if diffs else {})}, indent=2))


def _members(name: str, finding: Finding) -> dict[str, Any]:
    place = finding.place
    return {
        "file": place.file if place else name,
        "line": place.line if place else 1,
        "column": place.column if place else 1,
        "path": finding.where,
        "code": finding.code,
        "severity": finding.severity.value,
        "message": finding.message,
        "hint": finding.hint,
    }


def as_github(reports: Sequence[Report]) -> None:
    """Print each finding as a workflow command, which GitHub shows beside the line."""
    for report in reports:
        for finding in _all(report):
            members = _members(report.name, finding)
            text = f"{finding.message}\n{finding.hint or ''}".strip()
            place = ",".join(f"{to}={_escaped(str(members[key]))}" for key, to in _PROPERTIES.items())
            data = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
            console.data(f"::{_GITHUB[finding.severity]} {place}::{data}")


_PROPERTIES = {"file": "file", "line": "line", "column": "col", "code": "title"}


def _escaped(text: str) -> str:
    for character in "%\r\n:,":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _all(report: Report) -> Sequence[Finding]:
    """List the findings of a report; a file that cannot be read is one."""
    if report.trouble is None:
        return report.findings
    return [Finding("cannot-read", report.trouble.message, report.trouble.hint)]


REPORTS: Mapping[str, Callable[[Sequence[Report]], None]] = {
    "text": as_text,
    "json": as_json,
    "github": as_github,
}
