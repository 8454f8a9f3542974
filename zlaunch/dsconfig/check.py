"""Value → typed config and findings: unknown keys, wrong types, values out of range."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from zlaunch.dsconfig.config import DsConfig
from zlaunch.dsconfig.document import KeyPath, dotted
from zlaunch.dsconfig.mistakes import explain
from zlaunch.dsconfig.releases import NEWEST, Release, history
from zlaunch.errors import Act, Finding, Mending, Severity


@dataclass(frozen=True)
class Checked:
    """What a ds_config says, and what is wrong with it."""

    config: DsConfig | None
    """The config as it was meant: mended where that is safe, without what is wrong otherwise.

    None where too little is left to judge: the stage itself is in doubt.
    """
    findings: tuple[Finding, ...]


def check(value: dict[str, Any], older: Release | None = None) -> Checked:
    """Read a plain value as a ds_config of the newest DeepSpeed release, or of an older one.

    `$schema` at the top is for editors; DeepSpeed ignores it.
    """
    value = {key: child for key, child in value.items() if key != "$schema"}
    errors = _errors(value, strict=True)
    newer = () if older is None else tuple(_not_yet_known(value, older))
    if not errors:
        return Checked(DsConfig.model_validate(value), newer)
    faults = _faults(value, errors, older)
    below = _below_moved(value, faults, older)
    findings = [fault for fault in (*faults.values(), *below) if fault is not None]
    return Checked(_as_meant(value, faults), (*findings, *newer))


def _faults(
    value: dict[str, Any], errors: Mapping[KeyPath, ErrorDetails], older: Release | None
) -> dict[KeyPath, Finding | None]:
    """Explain errors; None for one that is none in the release that was asked about."""
    lax = _errors(value, strict=False)
    return {
        path: None
        if older is not None and _is_gone(path, error, older)
        else explain(value, path, error, path not in lax, older or NEWEST)
        for path, error in errors.items()
    }


def _below_moved(
    value: dict[str, Any], faults: Mapping[KeyPath, Finding | None], older: Release | None
) -> Iterable[Finding]:
    """Look into sections that stand under a wrong name or in a wrong place."""
    meant, origins = copy.deepcopy(value), {}
    for path, fault in faults.items():
        mending = fault.mending if fault else None
        if mending is not None and mending.act in (Act.RENAME, Act.MOVE):
            _mend(meant, path, fault)
            renamed = (*path[:-1], mending.to)
            origins[renamed if mending.act is Act.RENAME else (*filter(None, [mending.to]), path[-1])] = path
    errors = _errors(meant, strict=True) if origins else {}
    for new, old in origins.items():
        inside = {path: error for path, error in errors.items() if path[: len(new)] == new}
        for path, fault in _faults(meant, inside, older).items():
            if fault is not None:
                yield replace(fault, where=dotted((*old, *path[len(new) :])))


def _is_gone(path: KeyPath, error: ErrorDetails, older: Release) -> bool:
    """Whether an unknown key is one that an older release reads, and the newest does not."""
    return error["type"] == "extra_forbidden" and older.knows(path) and not NEWEST.knows(path)


def _errors(value: Any, strict: bool) -> dict[KeyPath, ErrorDetails]:
    """Find the first error of each key."""
    try:
        DsConfig.model_validate(value, strict=strict)
    except ValidationError as error:
        by_path: dict[KeyPath, ErrorDetails] = {}
        for details in error.errors(include_url=False):
            by_path.setdefault(_path(value, details), details)
        return by_path
    return {}


def _path(value: Any, error: ErrorDetails) -> KeyPath:
    """Leave out of pydantic's location what is no key: tags of unions and names of types."""
    path: KeyPath = ()
    for part in error["loc"]:
        children = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(children, dict) and part in children:
            path, value = (*path, part), children[part]
        elif error["type"] == "missing" and part == error["loc"][-1]:
            path = (*path, part)
    return path


def _not_yet_known(value: Mapping[str, Any], older: Release) -> Iterable[Finding]:
    """Find keys that came with a later release."""
    for path in _key_paths(value):
        since = history(path).since
        if since is None or older.knows(path) or not older.knows_section(path[:-1]):
            continue
        refused = older.refuses(path)
        does = "refuses" if refused else "ignores"
        yield Finding(
            "newer-key",
            f"`{path[-1]}` came with DeepSpeed {since}; {older.name} {does} it",
            "leave it out, or use a newer DeepSpeed",
            dotted(path),
            Severity.ERROR if refused else Severity.SILENT,
        )


def _key_paths(value: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    for key, child in value.items():
        yield (*path, key)
        if isinstance(child, Mapping):
            yield from _key_paths(child, (*path, key))


def _as_meant(value: dict[str, Any], faults: Mapping[KeyPath, Finding | None]) -> DsConfig | None:
    """Read the config without its mistakes: a value that is in doubt counts as "auto", or as left out."""
    meant = copy.deepcopy(value)
    for path, fault in sorted(faults.items(), key=lambda item: -len(item[0])):
        _mend(meant, path, fault, instead="auto")
    for path in sorted(_errors(meant, strict=True), key=len, reverse=True):
        _mend(meant, path, None)
    if _errors(meant, strict=True) or ("zero_optimization" in value and "zero_optimization" not in meant):
        return None
    return DsConfig.model_validate(meant)


def _mend(value: dict[str, Any], path: KeyPath, fault: Finding | None, instead: str | None = None) -> None:
    """Do to a plain value what a mending does to a text; what has none is replaced or left out."""
    whole = next((depth for depth, part in enumerate(path) if isinstance(part, int)), len(path))
    path, mending = path[:whole], fault.mending if fault and whole == len(path) else None
    node: Any = value
    for part in path[:-1]:
        node = node.get(part, {})
    if not path or not isinstance(node, dict):
        return
    key, old = str(path[-1]), node.pop(path[-1], None)
    if mending is None:
        node |= {} if instead is None else {key: instead}
    elif mending.act is Act.MOVE:
        (value.setdefault(mending.to, {}) if mending.to else value).setdefault(key, old)
    else:
        for name, new in _in_its_place(key, old, mending).items():
            node.setdefault(name, new)


def _in_its_place(key: str, old: Any, mending: Mending) -> dict[str, Any]:
    match mending.act:
        case Act.RENAME:
            return {mending.to: old}
        case Act.REPLACE:
            return dict([mending.to])
        case Act.WRITE:
            return {key: mending.to}
    return {}
