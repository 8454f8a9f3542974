"""Document → typed config and findings: unknown keys, wrong types, values out of range."""

import contextlib
import difflib
import math
import re
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from zlaunch.dsconfig.config import DsConfig
from zlaunch.dsconfig.document import Document, KeyPath, dotted
from zlaunch.dsconfig.keys import known_keys
from zlaunch.dsconfig.releases import REMOVED_IN_0_19
from zlaunch.dsconfig.scheduler import DEEPSPEED_SCHEDULERS
from zlaunch.errors import Finding

OWN_NAMES: dict[KeyPath, tuple[str, ...]] = {
    ("optimizer", "type"): ("Adam", "AdamW", "Adagrad", "Lamb", "Lion", "Muon"),
    ("scheduler", "type"): DEEPSPEED_SCHEDULERS,
}
"""Names that DeepSpeed builds itself; beside them it takes the classes of torch."""

_KIND_NAMES = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "an object",
    "none_required": "null",
    "null": "a value, and DeepSpeed crashes on null",
    "string_type": "a string",
}


def check(document: Document) -> tuple[DsConfig | None, list[Finding]]:
    """Read a document as a ds_config; the config is None if there is any finding about it."""
    config, found = _validate(document.value)
    placed = [(document.place(path), finding) for path, finding in found]
    placed.sort(key=lambda pair: (pair[0].line, pair[0].column))
    return config, [replace(finding, place=place) for place, finding in placed]


def check_value(value: dict[str, Any]) -> tuple[DsConfig | None, list[Finding]]:
    """Read a plain value as a ds_config; its findings have no place."""
    config, found = _validate(value)
    return config, [finding for _, finding in found]


def _validate(value: dict[str, Any]) -> tuple[DsConfig | None, list[tuple[KeyPath, Finding]]]:
    try:
        return DsConfig.model_validate(value), []
    except ValidationError as error:
        by_path: dict[KeyPath, Finding] = {}
        for details in error.errors(include_url=False):
            path = _path(value, details)
            by_path.setdefault(path, _finding(value, path, details))
        return None, list(by_path.items())


def _path(value: Any, error: ErrorDetails) -> KeyPath:
    """Leave out of pydantic's location what is no key: tags of unions and names of types."""
    path: KeyPath = ()
    for part in error["loc"]:
        children = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(children, dict) and part in children:
            value = children[part]
            path = (*path, part)
    return (*path, error["loc"][-1]) if error["type"] == "missing" else path


def _finding(whole: dict[str, Any], path: KeyPath, error: ErrorDetails) -> Finding:
    code, message, hint = _explain(whole, path, error)
    return Finding(code, message, hint, where=dotted(path))


def _explain(whole: dict[str, Any], path: KeyPath, error: ErrorDetails) -> tuple[str, str, str | None]:
    kind, given, key = error["type"], error["input"], path[-1]
    if kind == "extra_forbidden":
        return _unknown_key(whole, path)
    if kind == "missing":
        return "missing-key", f"`{key}` is missing", f'add `"{key}": …`'
    if given == "auto":
        return "auto-not-here", f'nobody fills in "auto" for `{key}`', "write a value, or leave the key out"
    if kind == "literal_error":
        explain = _no_such_name if path in OWN_NAMES else _not_one_of
        return "bad-value", *explain(path, given, str(error["ctx"]["expected"]))
    if expected := _KIND_NAMES.get(kind):
        return "bad-type", f"`{key}` is {_shown(given)}, not {expected}", _retyped(given, expected)
    return "bad-value", f"`{key}` is {_shown(given)}: {error['msg'][0].lower()}{error['msg'][1:]}", None


def _unknown_key(whole: dict[str, Any], path: KeyPath) -> tuple[str, str, str | None]:
    parent, key = path[:-1], str(path[-1])
    if advice := REMOVED_IN_0_19.get(dotted(path)):
        return "removed-key", f"`{key}` was removed in DeepSpeed 0.19", advice
    message = f"DeepSpeed knows no key `{key}` {f'in `{dotted(parent)}`' if parent else 'at the top level'}"
    if not parent and "." in key:
        return "unknown-key", message, "nest the keys: a dot means nothing in JSON"
    siblings = known_keys(whole, parent)
    if close := difflib.get_close_matches(key, siblings, n=1, cutoff=0.75):
        return "unknown-key", message, f"did you mean `{close[0]}`?"
    if parent and key in DsConfig.model_fields:
        return "unknown-key", message, f"move `{key}` to the top level"
    if not parent and key in known_keys(whole, ("zero_optimization",)):
        return "unknown-key", message, f"move `{key}` into `zero_optimization`"
    return "unknown-key", message, "delete it"


def _no_such_name(path: KeyPath, given: Any, expected: str) -> tuple[str, str | None]:
    """DeepSpeed's own names come before the classes of torch, of which there are too many to list."""
    own = OWN_NAMES[path]
    names = [*own, *re.findall(r"'(\w+)'", expected)]
    spelled = {name.lower(): name for name in names}
    close = difflib.get_close_matches(str(given).lower(), spelled, n=1, cutoff=0.6)
    message = f"there is no {path[0]} `{given}`; DeepSpeed has {', '.join(own)}, and torch its own"
    return message, f'did you mean `"{spelled[close[0]]}"`?' if close else None


def _not_one_of(path: KeyPath, given: Any, expected: str) -> tuple[str, str | None]:
    choices = [choice.strip(" '") for choice in expected.replace(" or ", ", ").split(",")]
    listed = " or ".join([*([", ".join(choices[:-1])] if choices[:-1] else []), choices[-1]])
    message = f"`{path[-1]}` is {_shown(given)}; it can be {listed}"
    spelled = {choice.lower(): choice for choice in choices}
    if str(given) in choices:
        return message, f"write {given}, without quotes"
    close = difflib.get_close_matches(str(given).lower(), spelled, n=1, cutoff=0.6)
    return message, f'did you mean `"{spelled[close[0]]}"`?' if close else None


def _shown(value: Any) -> str:
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case bool() | None:
            return {True: "true", False: "false", None: "null"}[value]
        case str():
            return f'the string "{value}"'
    return str(value)


def _retyped(given: Any, expected: str) -> str | None:
    """Say how to write a value that only has the wrong type."""
    if given is None:
        return "delete the key"
    if not isinstance(given, str):
        return None
    plain = given.strip().lower()
    if expected == "true or false" and plain in ("true", "false"):
        return f"write {plain}, without quotes"
    if expected in ("a number", "a whole number"):
        with contextlib.suppress(ValueError):
            number = float(plain)
            if number.is_integer():
                return f"write {int(number)}, without quotes"
            if expected == "a number" and math.isfinite(number):
                return f"write {number}, without quotes"
    return None
