"""Edit the text of a ds_config without changing its layout."""

import json
from collections.abc import Iterable
from typing import Any

from zlaunch.dsconfig.text.document import Document, Edit, KeyPath, Span, value_at
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Fix, FixKind


def apply(text: str, edits: Iterable[Edit]) -> str:
    """Apply edits that do not overlap."""
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def fix_text(document: Document, path: KeyPath, fix: Fix) -> str:
    """Apply a fix to one key and return the new text; raise KeyError if the text lacks the key."""
    if fix.kind is FixKind.PLAIN:
        return apply(document.text, document.strict_edits)
    span = document.spans[path]
    match fix.kind:
        case FixKind.RENAME:
            edits = [_renamed(span, str(fix.to))]
        case FixKind.WRITE:
            edits = [Edit(span.start, span.end, json.dumps(fix.to))]
        case FixKind.REPLACE:
            key, value = fix.to
            edits = [_renamed(span, key), Edit(span.start, span.end, json.dumps(value))]
        case FixKind.DELETE:
            edits = [_without(document, path)]
        case FixKind.MOVE:
            return _moved(document, path, fix.to)
    return apply(document.text, edits)


def _renamed(span: Span, key: str) -> Edit:
    return Edit(span.key, span.key_end, json.dumps(key))


def _without(document: Document, path: KeyPath) -> Edit:
    """Delete a member with its comma, and with its line if it is alone on it."""
    text, span = document.text, document.spans[path]
    start, end = span.key, span.end
    after = end + len(text[end:]) - len(text[end:].lstrip())
    before = len(text[:start].rstrip())
    if text[after : after + 1] == ",":
        end = after + 1
        line_rest = text[end:].split("\n", 1)[0]
        if not line_rest.strip() and text[:start].rpartition("\n")[2].strip() == "":
            return Edit(text.rfind("\n", 0, start) + 1, min(len(text), end + len(line_rest) + 1), "")
        return Edit(start, end + len(line_rest) - len(line_rest.lstrip(" ")), "")
    if text[before - 1 : before] == ",":
        return Edit(before - 1, end, "")
    return Edit(before, end, "")


def _moved(document: Document, path: KeyPath, section: str) -> str:
    """Move a member into a section, which is created if missing."""
    text, span = document.text, document.spans[path]
    member = text[span.key : span.end]
    rest = parse(apply(text, [_without(document, path)]), document.file)
    target: KeyPath = (section,) if section else ()
    if target in rest.spans:
        return _added(rest, target, member)
    return _added(rest, (), f"{json.dumps(section)}: {{{member}}}")


def _added(document: Document, target: KeyPath, member: str) -> str:
    """Append a member to an object, indented like the others."""
    text, span = document.text, document.spans[target]
    members = [s for path, s in document.spans.items() if path[:-1] == target and path]
    if not members:
        return apply(text, [Edit(span.start, span.end, f"{{{member}}}")])
    last = members[-1]
    line = text[text.rfind("\n", 0, last.key) + 1 : last.key]
    between = f"\n{line}" if not line.strip() else " "
    return apply(text, [Edit(last.end, last.end, f",{between}{member}")])


def fix_value(value: dict[str, Any], path: KeyPath, fix: Fix | None, instead: str | None = None) -> None:
    """Apply a fix to a plain value; without a fix the key is replaced by `instead` or deleted."""
    whole = next((depth for depth, part in enumerate(path) if isinstance(part, int)), len(path))
    path, fix = path[:whole], fix if whole == len(path) else None
    node = value_at(value, path[:-1])
    if not path or not isinstance(node, dict):
        return
    key, old = str(path[-1]), node.pop(path[-1], None)
    if fix is None:
        node |= {} if instead is None else {key: instead}
    elif fix.kind is FixKind.MOVE:
        target = value.setdefault(fix.to, {}) if fix.to else value
        if isinstance(target, dict):
            target.setdefault(key, old)
    else:
        for name, new in _in_its_place(key, old, fix).items():
            node.setdefault(name, new)


def _in_its_place(key: str, old: Any, fix: Fix) -> dict[str, Any]:
    match fix.kind:
        case FixKind.RENAME:
            return {fix.to: old}
        case FixKind.REPLACE:
            return dict([fix.to])
        case FixKind.WRITE:
            return {key: fix.to}
    return {}
