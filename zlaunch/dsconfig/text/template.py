"""Recognize templates: files with placeholders where values belong, to be filled in by another program."""

import re
from collections.abc import Iterator

from zlaunch.dsconfig.text.document import place_at
from zlaunch.errors import Finding

CODE = "template"

_PLACEHOLDERS = (
    r"\{\{.*?\}\}",  # {{ stage }}
    r"\{%.*?%\}",
    r"\$\{[A-Za-z_]\w*(?::?-[^}]*)?\}",  # ${STAGE}, ${STAGE:-2}
    r"\$[A-Za-z_]\w*",
    r"%\([A-Za-z_]\w*\)[sdf]",
    r"<[A-Za-z][\w -]*>",
    r"@[A-Za-z_]\w*@",
    r"%[A-Za-z_]\w*%",
    r"\{[A-Za-z_]\w*\}",
    r"__[A-Za-z]\w*__",
    r"[A-Z][A-Z0-9]*_[A-Z0-9_]*",  # ZERO_STAGE
)
_PLACEHOLDER = "|".join(_PLACEHOLDERS)
_UNQUOTED = (
    r"(?s)\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|#[^\n]*|//[^\n]*|/\*.*?\*/"
    rf"|(?P<tag>\{{\{{.*?\}}\}}|\{{%.*?%\}})|[:,\[]\s*(?P<value>{_PLACEHOLDER})(?=\s*[,}}\]\n#/]|\s*\Z)"
)
"""A string or a comment, or else a placeholder: a tag anywhere, other ones only where a value belongs."""


def is_placeholder(value: object) -> bool:
    """Whether a text is nothing but a placeholder."""
    return isinstance(value, str) and re.fullmatch(_PLACEHOLDER, value.strip()) is not None


def find_template(text: str, file: str) -> Finding | None:
    """Find the first placeholder outside of strings and comments, and count the others."""
    places = [*_placeholders(text)]
    if not places:
        return None
    start, placeholder = places[0]
    return template_finding(placeholder, len(places) - 1, file, text, start)


def template_finding(placeholder: str, others: int, file: str, text: str, offset: int) -> Finding:
    """Say that a file is a template, of which nothing can be checked."""
    more = ""
    if others:
        more = f", and {others} more"
    return Finding(
        CODE,
        f"this is a template: `{placeholder}` is a placeholder{more}",
        "fill it in, and check the file that comes out",
        place=place_at(file, text, offset, len(placeholder)),
    )


def _placeholders(text: str) -> Iterator[tuple[int, str]]:
    for match in re.finditer(_UNQUOTED, text):
        group = match.lastgroup
        if group is not None:
            yield match.start(group), match.group(group)
