"""Apply every safe fix to a document."""

import copy

from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.text.document import Document, KeyPath
from zlaunch.dsconfig.text.edit import fix_text, fix_value
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Fix, FixKind, Refused

MOST = 1000
"""Most fixes in one file; more means that two of them undo each other."""


def fix_document(document: Document, context: Context) -> tuple[Document, int]:
    """Fix one finding after another until no fix changes anything; count them."""
    for count in range(MOST):
        following = _step(document, context)
        if following is None:
            return document, count
        document = following
    return document, MOST


def _step(document: Document, context: Context) -> Document | None:
    for finding in validate_document(document, context):
        if finding.fix is not None:
            path = document.path_to(finding) if finding.where else ()
            following = _attempt(document, path, finding.fix)
            if following is not None:
                return following
    return None


def _attempt(document: Document, path: KeyPath, fix: Fix) -> Document | None:
    """Fix the text; keep the result only if exactly the intended value changed."""
    if path not in document.spans:
        return None
    expected = copy.deepcopy(document.value)
    if fix.kind is not FixKind.PLAIN:
        fix_value(expected, path, fix)
    try:
        following = parse(fix_text(document, path, fix), document.file)
    except Refused:
        return None
    changed = following.text != document.text
    return following if changed and following.value == expected else None
