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
    if fix.kind.is_textual:
        if fix.kind is FixKind.PLAIN:
            return apply(document.text, document.plain_edits)
        return apply(document.text, document.comment_edits)
    span = document.spans[path]
    match fix.kind:
        case FixKind.RENAME:
            edits = [_key_edit(span, str(fix.to))]
        case FixKind.WRITE:
            edits = [Edit(span.start, span.end, json.dumps(fix.to))]
        case FixKind.REPLACE:
            key, value = fix.to
            edits = [_key_edit(span, key), Edit(span.start, span.end, json.dumps(value))]
        case FixKind.DELETE:
            edits = _deletion(document, path)
        case FixKind.MOVE:
            return _move(document, path, fix.to)
        case FixKind.UNWRAP:
            edits = _unwrapping(document, span)
    return apply(document.text, edits)


def _key_edit(span: Span, key: str) -> Edit:
    return Edit(span.key, span.key_end, json.dumps(key))


def _unwrapping(document: Document, span: Span) -> list[Edit]:
    """Delete the object around the value of its only key; comments stay."""
    text, around = document.text, document.spans[()]
    before = [text[around.start + 1 : span.key].strip(), text[span.key_end : span.start].strip(": \t\r\n")]
    after = text[span.end : around.end - 1].strip(", \t\r\n")
    lead = "".join(f"{comment}\n" for comment in before if comment)
    tail = "".join(f"\n{comment}" for comment in [after] if comment)
    return [Edit(around.start, span.start, lead), Edit(span.end, around.end, tail)]


def _deletion(document: Document, path: KeyPath) -> list[Edit]:
    """Delete a member with one comma, and with its line if it is alone on it; comments stay."""
    text, span = document.text, document.spans[path]
    after, before = _after(document, span.end), _before(document, span.key)
    if text[after : after + 1] == ",":
        if text[span.end : after].strip():
            return [_cut(text, span.key, span.end), Edit(after, after + 1, "")]
        return [_cut(text, span.key, after + 1)]
    comma = before
    if text[before - 1 : before] == ",":
        comma -= 1
    if not text[before : span.key].strip():
        return [Edit(comma, span.end, "")]
    return [Edit(comma, before, ""), _cut(text, span.key, span.end)]


def _cut(text: str, start: int, end: int) -> Edit:
    line = text[end:].split("\n", 1)[0]
    begin = text.rfind("\n", 0, start) + 1
    if not line.strip() and not text[begin:start].strip():
        return Edit(begin, min(len(text), end + len(line) + 1), "")
    return Edit(start, end + len(line) - len(line.lstrip(" ")), "")


def _after(document: Document, offset: int) -> int:
    """Skip whitespace and comments."""
    text = document.text
    while True:
        offset += len(text[offset:]) - len(text[offset:].lstrip())
        ends = [comment.end for comment in document.comment_edits if comment.start <= offset < comment.end]
        if not ends:
            return offset
        offset = ends[0]


def _before(document: Document, offset: int) -> int:
    """Skip whitespace and comments backwards."""
    while True:
        offset = len(document.text[:offset].rstrip())
        starts = [
            comment.start for comment in document.comment_edits if comment.start < offset <= comment.end
        ]
        if not starts:
            return offset
        offset = starts[0]


def _move(document: Document, path: KeyPath, section: str) -> str:
    """Move a member into a section, which is created if missing."""
    text, span = document.text, document.spans[path]
    member = text[span.key : span.end]
    rest = parse(apply(text, _deletion(document, path)), document.file)
    target = section_path(section)
    while target not in rest.spans:
        member = f"{json.dumps(target[-1])}: {{{member}}}"
        target = target[:-1]
    return _added(rest, target, member)


def section_path(section: str) -> KeyPath:
    """Split the dotted name of a section; the top level has an empty one."""
    return tuple(filter(None, section.split(".")))


def add_member(document: Document, target: KeyPath, key: str, value: Any) -> str:
    """Append a member to an object, and return the new text; comments and layout stay."""
    return _added(document, target, f"{json.dumps(key)}: {json.dumps(value)}")


def _added(document: Document, target: KeyPath, member: str) -> str:
    """Append a member to an object, indented like the others, after a comment about the last one."""
    text, span = document.text, document.spans[target]
    members = [s for path, s in document.spans.items() if path[:-1] == target and path]
    if not members and not text[span.start + 1 : span.end - 1].strip():
        return apply(text, [Edit(span.start, span.end, f"{{{member}}}")])
    if not members:
        return apply(text, [Edit(span.start, span.start + 1, f"{{{member}")])
    last = members[-1]
    line = text[text.rfind("\n", 0, last.key) + 1 : last.key]
    if line.strip():
        return apply(text, [Edit(last.end, last.end, f", {member}")])
    line_end = last.end + len(text[last.end :].split("\n", 1)[0].rstrip("\r"))
    comma = _after(document, last.end)
    has_comma = text[comma : comma + 1] == ","
    added = f"\n{line}{member}"
    if text[line_end : line_end + 1] == "\r":
        added = f"\r{added}"
    if last.end == line_end or _after(document, comma + has_comma) < line_end:
        return apply(text, [Edit(last.end, last.end, f",{added}")])
    edits = [Edit(line_end, line_end, added)]
    if not has_comma:
        edits.append(Edit(last.end, last.end, ","))
    return apply(text, edits)


def fix_value(value: dict[str, Any], path: KeyPath, fix: Fix | None, instead: str | None = None) -> None:
    """Apply a fix to a plain value; without a fix the key is replaced by `instead` or deleted."""
    whole = next((depth for depth, part in enumerate(path) if isinstance(part, int)), len(path))
    if whole < len(path):
        path, fix = path[:whole], None
    node = value_at(value, path[:-1])
    if not path or not isinstance(node, dict):
        return
    key, old = str(path[-1]), node.pop(path[-1], None)
    if fix is None:
        if instead is not None:
            node[key] = instead
    elif fix.kind is FixKind.MOVE:
        target: object = value
        for part in section_path(fix.to):
            if isinstance(target, dict):
                target = target.setdefault(str(part), {})
        if isinstance(target, dict):
            target.setdefault(key, old)
    elif fix.kind is FixKind.UNWRAP:
        value.clear()
        value |= old
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
