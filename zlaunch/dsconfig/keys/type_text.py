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
    named = [f"{', '.join(any_case)} in any case"] if any_case else []
    return " or ".join([*named, *dict.fromkeys(exact)])


def _alternatives(node: Node) -> Iterator[str]:
    """Describe each alternative by the first of its keywords that is in `_WORDS`."""
    if "anyOf" in node:
        for arm in node["anyOf"]:
            yield from _alternatives(arm)
        return
    words = next((words for key, words in _WORDS.items() if key in node), None)
    yield words(node) if words else "anything"


def _quoted(word: Any) -> str:
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


def _several(words: str) -> str:
    if words.endswith("number"):
        return f"{words}s"
    return words


_WORDS: Mapping[str, Callable[[Node], str]] = {
    "pattern": lambda _: _ANY_CASE,
    "const": lambda node: _quoted(node["const"]),
    "enum": lambda node: ", ".join(map(_quoted, node["enum"])),
    "properties": lambda _: "a section",
    "items": lambda node: f"a list of {_several(in_words(node['items'])) if node['items'] else 'anything'}",
    "type": _of_type,
}
