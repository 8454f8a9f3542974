"""Describe a piece of JSON Schema in words."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Node = Mapping[str, Any]

_PLAIN = {
    "boolean": "true or false",
    "string": "text",
    "null": "null",
    "object": "an object",
    "array": "a list",
}
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}


_ANY_CASE = "in any case"
"""Stands for a pattern that accepts the values before it in any case."""


def in_words(node: Node) -> str:
    """Describe the allowed values."""
    any_case: list[str] = []
    exact: list[str] = []
    for words in _alternatives(node):
        if words == _ANY_CASE:
            any_case += exact
            exact = []
        else:
            exact.append(words)
    values = list(dict.fromkeys(exact))
    if any_case:
        values.insert(0, f"{', '.join(any_case)} in any case")
    return " or ".join(values)


def _alternatives(node: Node) -> Iterator[str]:
    """Describe each alternative by the first of its keywords that is in `_WORDS`."""
    if "anyOf" in node:
        for arm in node["anyOf"]:
            yield from _alternatives(arm)
        return
    yield next((words(node) for key, words in _WORDS.items() if key in node), "anything")


def _quoted_word(word: Any) -> str:
    if isinstance(word, str):
        return f'"{word}"'
    return str(word)


def _of_type(node: Node) -> str:
    if node["type"] not in ("integer", "number"):
        return _PLAIN.get(str(node["type"]), "anything")
    bounds = " and ".join(f"{words} {node[bound]}" for bound, words in _BOUNDS.items() if bound in node)
    kind = "number"
    if node["type"] == "integer":
        kind = "whole number"
    return f"{kind} {bounds}".strip()


def _of_items(node: Node) -> str:
    if not node["items"]:
        return "a list of anything"
    words = in_words(node["items"])
    if words.endswith("number"):
        words += "s"
    return f"a list of {words}"


_WORDS: Mapping[str, Callable[[Node], str]] = {
    "pattern": lambda _: _ANY_CASE,
    "const": lambda node: _quoted_word(node["const"]),
    "enum": lambda node: ", ".join(map(_quoted_word, node["enum"])),
    "properties": lambda _: "a section",
    "items": _of_items,
    "type": _of_type,
}
