"""Reports about ds_configs as text, JSON, GitHub annotations or SARIF."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zlaunch import console
from zlaunch.cli.views.sarif import sarif
from zlaunch.config.report import Fixes, Report
from zlaunch.errors import ExitStatus, Finding, Severity
from zlaunch.units import plural

_GITHUB = {
    Severity.ERROR: "error",
    Severity.FAILS_LATER: "error",
    Severity.IGNORED: "warning",
    Severity.ADVICE: "notice",
}


def as_text(reports: Sequence[Report], strict: bool) -> None:
    """Print the findings of each file, then a summary line.

    A diff that is only shown stands alone on stdout, for `patch`; what it does not mend goes to stderr.
    """
    for report in reports:
        if report.trouble is not None:
            console.show_error(report.trouble)
            continue
        fixes = report.fixes
        if fixes is not None and fixes.diff:
            console.data(fixes.diff.removesuffix("\n"))
        if fixes is not None and not fixes.writes:
            console.say_findings(fixes.left)
        else:
            for finding in report.findings:
                console.show_finding(finding)
        if fixes is not None:
            does, was = ("deleted", "was") if fixes.writes else ("`--fix` would delete", "is")
            deletions = [f"`{one.key}`, which {was} {one.state}" for one in fixes.deletions]
            console.say(*(f"{report.name}: {does} {deletion}" for deletion in deletions))
        console.say(f"{report.name}: {'; '.join(filter(None, [_done(fixes), _summary(report)]))}")
    if len(reports) > 1:
        verdicts = Counter(_verdict(report, strict) for report in reports)
        counts = [f"{verdicts[one]} {one}" for one in ("valid", "refused", "unreadable") if verdicts[one]]
        console.say(f"{len(reports)} checked: {', '.join(counts)}")


def _done(fixes: Fixes | None) -> str:
    """Count the fixes, and say whether they were written."""
    if fixes is None:
        return ""
    if fixes.count == 0:
        return "no safe fixes"
    counted = f"{fixes.count} fix{'' if fixes.count == 1 else 'es'}"
    if not fixes.writes:
        return f"`--fix` would write {counted}"
    return f"{counted} written" + (f", old file kept as {fixes.backup}" if fixes.backup else "")


def _summary(report: Report) -> str:
    if not report.findings:
        return "valid"
    counts = dict.fromkeys(Severity, 0)
    for finding in report.findings:
        counts[finding.severity] += 1
    said = ", ".join(_counted(count, severity) for severity, count in counts.items() if count)
    if report.status(strict=True) is ExitStatus.OK:
        return f"valid, {said}"
    return said


def _counted(count: int, severity: Severity) -> str:
    if severity is Severity.ERROR:
        return plural(count, "error")
    is_plural = severity is Severity.FAILS_LATER and count > 1
    return f"{count} {'fail later' if is_plural else severity.value}"


def as_json(reports: Sequence[Report], strict: bool) -> None:
    """Print one JSON object: a verdict for each file, all findings, and the diffs of fixes."""
    findings = [_members(report.name, finding) for report in reports for finding in report.all_findings]
    diffs = {report.name: report.fixes.diff for report in reports if report.fixes and report.fixes.diff}
    files = [_file(report, strict) for report in reports]
    members = {"files": files, "findings": findings, **({"diffs": diffs} if diffs else {})}
    console.data(json.dumps(members, indent=2))


def _file(report: Report, strict: bool) -> dict[str, Any]:
    status = report.status(strict)
    counts = dict.fromkeys((severity.value for severity in Severity), 0)
    for finding in report.all_findings:
        counts[finding.severity.value] += 1
    members = {
        "file": report.name,
        "verdict": _verdict(report, strict),
        "exit_status": int(status),
        "counts": counts,
    }
    if report.fixes is None:
        return members
    return {**members, "fixes": _fixes(report.fixes)}


def _verdict(report: Report, strict: bool) -> str:
    if report.status(strict) is ExitStatus.OK:
        return "valid"
    if report.trouble:
        return "unreadable"
    return "refused"


def _fixes(fixes: Fixes) -> dict[str, Any]:
    return {
        "count": fixes.count,
        "written": fixes.writes and fixes.count > 0,
        "deleted": [asdict(deletion) for deletion in fixes.deletions],
        "backup": None if fixes.backup is None else str(fixes.backup),
    }


def _members(name: str, finding: Finding) -> dict[str, Any]:
    place = finding.place
    return {
        "file": place.file if place else name,
        "line": place.line if place else 1,
        "column": place.column if place else 1,
        "end_line": place.line if place else 1,
        "end_column": place.end_column if place else 1,
        "path": finding.where,
        "code": finding.code,
        "severity": finding.severity.value,
        "message": finding.message,
        "hint": finding.hint,
    }


def as_github(reports: Sequence[Report], strict: bool) -> None:
    """Print each finding as a workflow command, which GitHub shows beside the line."""
    for report in reports:
        for finding in report.all_findings:
            members = _members(report.name, finding)
            text = f"{finding.message}\n{finding.hint or ''}".strip()
            place = ",".join(f"{to}={_escaped(str(members[key]))}" for key, to in _PROPERTIES.items())
            data = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
            console.data(f"::{_GITHUB[finding.severity]} {place}::{data}")


_PROPERTIES = {"file": "file", "line": "line", "column": "col", "end_column": "endColumn", "code": "title"}


def _escaped(text: str) -> str:
    for character in "%\r\n:,":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def as_sarif(reports: Sequence[Report], strict: bool) -> None:
    """Print a SARIF log."""
    console.data(sarif(reports, Path.cwd()))


REPORTS: Mapping[str, Callable[[Sequence[Report], bool], None]] = {
    "text": as_text,
    "json": as_json,
    "github": as_github,
    "sarif": as_sarif,
}
