"""ds_config → every finding about it: what its text, its keys, its values and their rules get wrong."""

from typing import Any

from zlaunch.dsconfig.check import check
from zlaunch.dsconfig.document import Document
from zlaunch.dsconfig.precise import imprecise_numbers
from zlaunch.errors import Finding
from zlaunch.rules import judge
from zlaunch.rules.rule import Context, Subject

NOTHING_KNOWN = Context()


def findings_in(document: Document, context: Context = NOTHING_KNOWN) -> list[Finding]:
    """Find everything that is wrong with a document, in the order of its lines."""
    findings = [*document.remarks, *imprecise_numbers(document), *wrong_in(document.value, context)]
    return sorted(map(document.locate, findings), key=in_order)


def in_order(finding: Finding) -> tuple[int, int]:
    """Sort findings as a person reads a file."""
    return (finding.place.line, finding.place.column) if finding.place else (0, 0)


def wrong_in(value: dict[str, Any], context: Context = NOTHING_KNOWN) -> list[Finding]:
    """Find everything that is wrong with a plain value; the findings have no place."""
    checked = check(value, context.release)
    rules = [] if checked.config is None else judge(Subject(checked.config, context))
    told = {finding.where for finding in checked.findings}
    return [*checked.findings, *(finding for finding in rules if finding.where not in told)]
