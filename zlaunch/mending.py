"""Document → the same document with everything mended that has one safe mending."""

from zlaunch.dsconfig.document import Document
from zlaunch.dsconfig.edit import mend
from zlaunch.dsconfig.parser import parse
from zlaunch.errors import Refused
from zlaunch.rules.rule import Context
from zlaunch.validation import findings_in

MOST = 1000
"""Mendings in one file; more means that two of them undo each other."""


def mended(document: Document, context: Context) -> Document:
    """Mend one finding after another, until none is left whose mending changes anything."""
    for _ in range(MOST):
        following = _step(document, context)
        if following is None:
            break
        document = following
    return document


def _step(document: Document, context: Context) -> Document | None:
    for finding in findings_in(document, context):
        path = document.path_of(finding.where) if finding.where else ()
        if finding.mending is None or path not in document.spans:
            continue
        text = mend(document, path, finding.mending)
        if text == document.text:
            continue
        try:
            return parse(text, document.file)
        except Refused:
            continue
    return None
