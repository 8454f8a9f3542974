"""File → every finding about it: what its text, its keys and its values get wrong."""

from dataclasses import replace
from pathlib import Path

from zlaunch.dsconfig.check import check
from zlaunch.dsconfig.document import KeyPath
from zlaunch.dsconfig.source import read
from zlaunch.errors import Finding
from zlaunch.rules import judge
from zlaunch.rules.subject import Subject


def findings_in(file: Path) -> list[Finding]:
    """Check one ds_config file; raise InputMissing or Refused if it cannot be read at all."""
    document = read(file)
    config, findings = check(document)
    if config is not None:
        for finding in judge(Subject(config)):
            path: KeyPath = tuple(finding.where.split("."))
            findings.append(replace(finding, place=document.place(path)))
    return [*document.remarks, *findings]
