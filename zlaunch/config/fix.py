"""Apply every safe fix to a document."""

import copy
import shlex
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from zlaunch.config.rules.rule import UNKNOWN, Context
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.text.document import Document, KeyPath, dotted, value_at
from zlaunch.dsconfig.text.edit import fix_text, fix_value
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Finding, Fix, FixKind, Refused
from zlaunch.frozen import dataclass

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


_LEAVES_NO_KEY = (FixKind.RENAME, FixKind.DELETE, FixKind.MOVE, FixKind.REPLACE)

MOST_TEXT = 200_000
"""Characters of a file in which fixes are counted: each is tried on the whole text."""


def count_fixable(document: Document, findings: Iterable[Finding], context: Context = UNKNOWN) -> int:
    """Count the findings that `config validate --fix` fixes; none of a file that is not a ds_config alone."""
    if len(document.text) > MOST_TEXT or not _is_file(document):
        return 0
    fixed, gone = set[tuple[str, str]](), set[str]()
    for finding in validate_document(document, context):
        fix = finding.fix
        if fix is not None and _attempt(document, _path(document, finding), fix) is not None:
            fixed.add((finding.code, finding.where))
            if fix.kind in _LEAVES_NO_KEY:
                gone.add(finding.where)
    return sum((finding.code, finding.where) in fixed or finding.where in gone for finding in findings)


def fix_hint(document: Document, refused: Collection[Finding]) -> str | None:
    """Name the command that fixes what a ds_config is refused for; None if it fixes nothing of that."""
    count = count_fixable(document, refused)
    if count == 0:
        return None
    which = f"{count} of them"
    if count == len(refused):
        which = "all of them" if count > 1 else "it"
    return f"`zlaunch config validate {shlex.quote(document.file)} --fix` fixes {which}"


def _is_file(document: Document) -> bool:
    """Whether a file has nothing but the document: not a config of accelerate, nor a script."""
    try:
        return Path(document.file).is_file() and read(document.file).value == document.value
    except Refused:
        return False


def _fix_one(fixed: Fixed, context: Context) -> Fixed | None:
    document = fixed.document
    for finding in validate_document(document, context):
        if finding.fix is not None:
            path = _path(document, finding)
            following = _attempt(document, path, finding.fix)
            if following is not None:
                gone = [_deleted(document, path)] if finding.fix.kind is FixKind.DELETE else []
                return Fixed(following, fixed.count + 1, (*fixed.deletions, *gone))
    return None


def _path(document: Document, finding: Finding) -> KeyPath:
    return document.path_to(finding) if finding.where else ()


def _deleted(document: Document, path: KeyPath) -> Deletion:
    value, span = value_at(document.value, path), document.spans[path]
    if not isinstance(value, dict):
        state = " ".join(document.text[span.start : span.end].split())
    elif not value:
        state = "empty"
    else:
        state = "on" if value.get("enabled") else "off"
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
