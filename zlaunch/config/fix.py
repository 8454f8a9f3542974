"""Document → the same document with everything mended that has one safe mending."""

import copy

from zlaunch.config.rules.rule import Context
from zlaunch.config.rules.validate import validate_document
from zlaunch.dsconfig.text.document import Document, KeyPath
from zlaunch.dsconfig.text.edit import mend, mend_value
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Fix, FixKind, Refused

MOST = 1000
"""Mendings in one file; more means that two of them undo each other."""


def fix_document(document: Document, context: Context) -> tuple[Document, int]:
    """Mend one finding after another, until none is left whose mending changes anything; count them."""
    for count in range(MOST):
        following = _step(document, context)
        if following is None:
            return document, count
        document = following
    return document, MOST


def _step(document: Document, context: Context) -> Document | None:
    for finding in validate_document(document, context):
        if finding.mending is not None:
            path = document.path_to(finding) if finding.where else ()
            following = _attempt(document, path, finding.mending)
            if following is not None:
                return following
    return None


def _attempt(document: Document, path: KeyPath, mending: Fix) -> Document | None:
    """Mend the text, and take the result only if its value changed as it should, and nothing else."""
    if path not in document.spans:
        return None
    expected = copy.deepcopy(document.value)
    if mending.act is not FixKind.PLAIN:
        mend_value(expected, path, mending)
    try:
        following = parse(mend(document, path, mending), document.file)
    except Refused:
        return None
    changed = following.text != document.text
    return following if changed and following.value == expected else None
