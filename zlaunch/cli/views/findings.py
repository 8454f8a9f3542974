"""Reports about ds_configs as text, JSON, GitHub annotations or SARIF."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zlaunch import console
from zlaunch.cli.views.dump import to_json
from zlaunch.config.report import Fixes, Report
from zlaunch.errors import ExitStatus, Finding, Place, Severity
from zlaunch.secrets import hide_in_text
from zlaunch.units import plural

_GITHUB = {
    Severity.ERROR: "error",
    Severity.FAILS_LATER: "error",
    Severity.WARNING: "warning",
    Severity.IGNORED: "warning",
    Severity.ADVICE: "notice",
}

MOST_NAMED = 10
"""Files that are each named, with or without findings."""


def as_text(reports: Sequence[Report], strict: bool, verbose: bool = False) -> None:
    """Print the findings of each file, then a summary line.

    Of many files, those without findings are only counted, unless `verbose`.

    A diff that is only shown stands alone on stdout, for `patch`; what it does not mend goes to stderr.
    """
    names_few = len(reports) > MOST_NAMED and not verbose
    for report in reports:
        if report.trouble is not None:
            console.show_error(report.trouble)
            continue
        fixes = report.fixes
        if names_few and fixes is None and not report.findings:
            continue
        if fixes is not None and fixes.diff:
            console.data(fixes.diff.removesuffix("\n"))
        if fixes is not None and not fixes.writes:
            console.say_findings(fixes.left)
        else:
            for finding in report.findings:
                console.show_finding(finding)
        if fixes is not None:
            does, was = ("deleted", "was") if fixes.writes else ("`--fix` would delete", "is")
            for deletion in fixes.deletions:
                console.say(f"{report.name}: {does} `{deletion.key}`, which {was} {deletion.state}")
        console.say(
            f"{report.name}: {'; '.join(filter(None, [_done(fixes), _summary_line(report, strict)]))}"
        )
    if len(reports) > 1:
        verdicts = Counter(_verdict_on_file(report, strict) for report in reports)
        counts = [
            f"{verdicts[verdict]} {verdict}"
            for verdict in ("valid", "refused", "unreadable")
            if verdicts[verdict]
        ]
        console.say(f"{len(reports)} checked: {', '.join(counts)}")


def _done(fixes: Fixes | None) -> str:
    if fixes is None:
        return ""
    if fixes.count == 0:
        return "no safe fixes"
    fixed = "1 fix" if fixes.count == 1 else f"{fixes.count} fixes"
    if not fixes.writes:
        return f"`--fix` would write {fixed}"
    if fixes.backup:
        return f"{fixed} written, old file kept as {fixes.backup}"
    return f"{fixed} written"


def _summary_line(report: Report, strict: bool) -> str:
    verdict, fixes = _verdict_on_file(report, strict), report.fixes
    if not report.findings:
        return verdict
    figures = [verdict, *_counts(report.findings)]
    if fixes is not None and fixes.count and not fixes.writes:
        figures[-1] += " now"
        after = _counts(fixes.left) or ["none"]
        figures += [*after[:-1], f"{after[-1]} after the fixes"]
    if report.num_fixable:
        figures.append(f"{report.num_fixable} fixable with `--fix`")
    return ", ".join(figures)


def _counts(findings: Sequence[Finding]) -> list[str]:
    counts = Counter(finding.label for finding in findings)
    return [_count_text(counts[severity], severity) for severity in Severity if counts[severity]]


def _count_text(count: int, severity: Severity) -> str:
    if severity in (Severity.ERROR, Severity.WARNING):
        return plural(count, severity.value)
    if severity is Severity.FAILS_LATER and count > 1:
        return f"{count} fail later"
    return f"{count} {severity.value}"


def as_json(reports: Sequence[Report], strict: bool) -> None:
    """Print one JSON object: a verdict for each file, all findings, and the diffs of fixes."""
    findings: list[dict[str, Any]] = []
    for report in reports:
        findings += [_finding_members(report.name, finding) for finding in report.all_findings]
    members: dict[str, Any] = {
        "files": [_file_members(report, strict) for report in reports],
        "findings": findings,
    }
    if diffs := {report.name: report.fixes.diff for report in reports if report.fixes and report.fixes.diff}:
        members["diffs"] = diffs
    console.data(to_json(members))


def _file_members(report: Report, strict: bool) -> dict[str, Any]:
    status = report.status(strict)
    counts = dict.fromkeys((severity.value for severity in Severity), 0)
    for finding in report.all_findings:
        counts[finding.label.value] += 1
    members: dict[str, Any] = {
        "file": report.name,
        "verdict": _verdict_on_file(report, strict),
        "exit_status": status,
        "counts": counts,
    }
    if (fixes := report.fixes) is not None:
        members["fixes"] = {
            "count": fixes.count,
            "written": fixes.writes and fixes.count > 0,
            "deleted": fixes.deletions,
            "backup": fixes.backup,
        }
    return members


def _verdict_on_file(report: Report, strict: bool) -> str:
    if report.status(strict) is ExitStatus.OK:
        return "valid"
    if report.trouble:
        return "unreadable"
    return "refused"


def _finding_members(name: str, finding: Finding) -> dict[str, Any]:
    place = finding.place or Place(name, 1, 1, length=0)
    return {
        "file": place.file,
        "line": place.line,
        "column": place.column,
        "end_line": place.line,
        "end_column": place.end_column,
        "path": finding.where,
        "code": finding.code,
        "severity": finding.label.value,
        "message": finding.message,
        "hint": finding.hint,
    }


def as_github(reports: Sequence[Report], strict: bool) -> None:
    """Print each finding as a workflow command, which GitHub shows beside the line."""
    for report in reports:
        for finding in report.all_findings:
            members = _finding_members(report.name, finding)
            text = hide_in_text(f"{finding.message}\n{finding.hint or ''}".strip())  # before it is escaped
            place = ",".join(f"{to}={_escaped(str(members[key]))}" for key, to in _PROPERTIES.items())
            data = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
            console.data(f"::{_GITHUB[finding.label]} {place}::{data}")


_PROPERTIES = {"file": "file", "line": "line", "column": "col", "end_column": "endColumn", "code": "title"}


def _escaped(text: str) -> str:
    for character in "%\r\n:,":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def as_sarif(reports: Sequence[Report], strict: bool) -> None:
    """Print a SARIF log."""
    from zlaunch.cli.views.sarif import sarif  # which reads the meaning of every code

    console.data(sarif(reports, Path.cwd()))


REPORTS: Mapping[str, Callable[[Sequence[Report], bool], None]] = {
    "json": as_json,
    "github": as_github,
    "sarif": as_sarif,
}
