"""Apply every safe fix to a document."""

import copy
from dataclasses import dataclass
from typing import NamedTuple

from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.text.document import Document, KeyPath, dotted, value_at
from zlaunch.dsconfig.text.edit import fix_text, fix_value
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Fix, FixKind, Refused

MOST = 1000
"""Most fixes in one file; more means that two of them undo each other."""


class Deletion(NamedTuple):
    """A key that a fix deletes."""

    key: str
    state: str
    """`on`, `off` or `empty` for a section, otherwise the value."""


@dataclass(frozen=True)
class Fixed:
    """A document after all safe fixes."""

    document: Document
    count: int = 0
    deletions: tuple[Deletion, ...] = ()


def fix_document(document: Document, context: Context) -> Fixed:
    """Fix one finding after another until no fix changes anything."""
    fixed = Fixed(document)
    while fixed.count < MOST and (following := _fix_one(fixed, context)) is not None:
        fixed = following
    return fixed


def _fix_one(fixed: Fixed, context: Context) -> Fixed | None:
    document = fixed.document
    for finding in validate_document(document, context):
        if finding.fix is not None:
            path = document.path_to(finding) if finding.where else ()
            following = _attempt(document, path, finding.fix)
            if following is not None:
                gone = [_deleted(document, path)] if finding.fix.kind is FixKind.DELETE else []
                return Fixed(following, fixed.count + 1, (*fixed.deletions, *gone))
    return None


def _deleted(document: Document, path: KeyPath) -> Deletion:
    value, span = value_at(document.value, path), document.spans[path]
    if not isinstance(value, dict):
        state = " ".join(document.text[span.start : span.end].split())
    elif not value:
        state = "empty"
    else:
        state = "off" if value.get("enabled") is False else "on"
    return Deletion(dotted(path), state)


def _attempt(document: Document, path: KeyPath, fix: Fix) -> Document | None:
    """Fix the text; keep the result only if exactly the intended value changed."""
    if path not in document.spans:
        return None
    expected = copy.deepcopy(document.value)
    if not fix.kind.is_textual:
        fix_value(expected, path, fix)
    try:
        following = parse(fix_text(document, path, fix), document.file)
    except Refused:
        return None
    changed = following.text != document.text
    if changed and following.value == expected:
        return following
    return None
