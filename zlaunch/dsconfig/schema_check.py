"""Check a plain value against the schema: unknown keys, wrong types, values out of range."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from zlaunch.dsconfig.keys.lookup import section_at
from zlaunch.dsconfig.releases import NEWEST, RELEASES, REMOVED, Release, history
from zlaunch.dsconfig.schema.optimizer import LAST_ONE_BIT, is_one_bit
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import ZERO, Switched
from zlaunch.dsconfig.text.document import KeyPath, dotted, value_at
from zlaunch.dsconfig.text.edit import fix_value, section_path
from zlaunch.errors import Finding, Fix, FixKind, Severity
from zlaunch.frozen import dataclass

MAX_LOSSES = 4
"""Rounds of dropping values that stay wrong, each one section further up."""


@dataclass(frozen=True)
class Checked:
    """A ds_config and what is wrong with it."""

    config: DsConfig | None
    """The config as it was meant: safe fixes applied, other mistakes dropped.

    None if even the stage is in doubt.
    """
    findings: tuple[Finding, ...]
    as_read: DsConfig | None
    """The config as DeepSpeed reads it: without keys under a wrong name."""


def check(value: dict[str, Any], older: Release | None = None) -> Checked:
    """Check a plain value for the newest DeepSpeed release, or for an older one.

    `$schema` at the top is for editors; DeepSpeed ignores it.
    """
    value, surplus = _without_surplus({key: child for key, child in value.items() if key != "$schema"}, older)
    newer: dict[KeyPath, Finding] = {} if older is None else dict(_not_yet_known(value, older))
    value = _without(value, newer)
    config, errors = _validated(value)
    if config is not None:  # which excludes a surplus: as many unknown keys are left
        return Checked(config, tuple(newer.values()), config)
    faults = _faults(value, errors, older)
    below = _below_moved(value, faults, older)
    findings = [*newer.values(), *(fault for fault in faults.values() if fault is not None)]
    unnamed = {path: _without_guess(fault) for path, fault in faults.items()}
    return Checked(_as_meant(value, faults), (*findings, *below, *surplus), _as_meant(value, unnamed))


MOST_UNKNOWN = 100
"""Unknown keys of one object that are explained; the others are only counted."""


def _without_surplus(value: dict[str, Any], older: Release | None) -> tuple[dict[str, Any], list[Finding]]:
    """Leave out what nobody would read: all but the first unknown keys of each object."""
    kept, surplus = dict(value), list[Finding]()
    objects: list[tuple[KeyPath, dict[str, Any]]] = [((), kept)]
    for path, node in objects:
        section = section_at(value, path)
        if section is None:
            continue
        known = section.model_fields
        unknown = [key for key in node if key not in known and dotted((*path, key)) not in REMOVED]
        if len(unknown) > MOST_UNKNOWN:
            surplus.append(_more_unknown((*path, unknown[MOST_UNKNOWN]), len(unknown), older or NEWEST))
            for key in unknown[MOST_UNKNOWN:]:
                del node[key]
        for key in node.keys() & known.keys():
            if isinstance(node[key], dict):
                node[key] = dict(node[key])
                objects.append(((*path, key), node[key]))
    return kept, surplus


def _more_unknown(path: KeyPath, number: int, release: Release) -> Finding:
    place, severity = "at the top level", Severity.IGNORED
    if path[:-1]:
        place = f"in `{dotted(path[:-1])}`"
    if release.is_closed(path[:-1]):
        severity = Severity.ERROR
    message = f"{number - MOST_UNKNOWN} more keys {place} are none of DeepSpeed's, from here on"
    return Finding("unknown-key", message, "delete them", dotted(path), severity, path=path)


def _without(value: dict[str, Any], paths: Iterable[KeyPath]) -> dict[str, Any]:
    kept = copy.deepcopy(value)
    for path in paths:
        fix_value(kept, path, None)
    return kept


def _without_guess(fault: Finding | None) -> Finding | None:
    if fault is not None and fault.fix is not None and fault.fix.kind.is_guess:
        return None
    return fault


def _faults(
    value: dict[str, Any], errors: Mapping[KeyPath, ErrorDetails], older: Release | None
) -> dict[KeyPath, Finding | None]:
    """Explain errors; None for what is not an error in the older release."""
    _, lax = _validated(value, strict=False)
    return {
        path: None
        if older is not None and _is_gone(path, error, older)
        else _explained(value, path, error, path not in lax, older or NEWEST)
        for path, error in errors.items()
    }


def _explained(
    value: dict[str, Any], path: KeyPath, error: ErrorDetails, lax: bool, release: Release
) -> Finding:
    from zlaunch.dsconfig.schema_errors import explain  # and the names of other tools: rarely needed

    fault = replace(explain(value, path, error, lax, release), path=path)
    if path[0] == "bfloat16" and value.get("bf16") is not None:
        return _at_most(Severity.IGNORED, fault)
    if fault.severity is Severity.FAILS_LATER and _is_off(value, path):
        return replace(fault, severity=Severity.IGNORED)
    return fault


def _is_off(value: dict[str, Any], path: KeyPath) -> bool:
    """Whether a section around a key is switched off, so that DeepSpeed does not use the key."""
    if path[:2] == ("tensor_parallel", "partition_config"):
        size = value_at(value, ("tensor_parallel", "autotp_size"))
        return size in (None, 0, 1)
    if path[-1] == "enabled":  # which may be read nevertheless
        return False
    around = [path[:depth] for depth in range(1, len(path))]
    sections = {above: section_at(value, above) for above in around}
    return any(
        section is not None and issubclass(section, Switched) and not value_at(value, (*above, "enabled"))
        for above, section in sections.items()
    )


def _at_most(severity: Severity, fault: Finding) -> Finding:
    """Judge a mistake in a section that DeepSpeed does not read: under a wrong name, or the second of two."""
    order = list(Severity)
    is_worse = order.index(fault.severity) < order.index(severity)
    if is_worse:
        return replace(fault, severity=severity, is_mistake=True)
    return fault


def _below_moved(
    value: dict[str, Any], faults: Mapping[KeyPath, Finding | None], older: Release | None
) -> Iterable[Finding]:
    """Check inside sections under a wrong name or in a wrong place."""
    meant, origins = copy.deepcopy(value), {}
    for path, fault in faults.items():
        fix = fault.fix if fault else None
        if fix is not None and fix.kind.is_guess:
            fix_value(meant, path, fix)
            origins[_new_path(path, fix)] = path
    errors = _validated(meant)[1] if origins else {}
    for new, old in origins.items():
        inside = {path: error for path, error in errors.items() if path[: len(new)] == new}
        for path, fault in _faults(meant, inside, older).items():
            if fault is not None:
                origin, above = (*old, *path[len(new) :]), faults[old]
                judged = fault if above is None else _at_most(above.severity, fault)
                yield replace(judged, where=dotted(origin), path=origin)


def _new_path(path: KeyPath, fix: Fix) -> KeyPath:
    """Say where a key is after a fix that renames, moves or unwraps it."""
    match fix.kind:
        case FixKind.RENAME:
            return (*path[:-1], fix.to)
        case FixKind.MOVE:
            return (*section_path(fix.to), path[-1])
    return ()


def _is_gone(path: KeyPath, error: ErrorDetails, older: Release) -> bool:
    """Whether an older release accepts a key or an optimizer that the newest does not."""
    if path == ("optimizer", "type"):
        return is_one_bit(error["input"]) and not older.is_newer_than(LAST_ONE_BIT)
    return error["type"] == "extra_forbidden" and older.knows(path) and not NEWEST.knows(path)


def _validated(value: object, strict: bool = True) -> tuple[DsConfig | None, dict[KeyPath, ErrorDetails]]:
    try:
        return DsConfig.model_validate(value, strict=strict, context=strict), {}
    except ValidationError as error:
        by_path: dict[KeyPath, ErrorDetails] = {}
        for details in error.errors(include_url=False):
            by_path.setdefault(_path_of_error(value, details), details)
        return None, by_path


def _path_of_error(value: object, error: ErrorDetails) -> KeyPath:
    """Drop from pydantic's location what is not a key: tags of unions and names of types."""
    path: KeyPath = ()
    for part in error["loc"]:
        children = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(children, dict) and part in children:
            path, value = (*path, part), children[part]
        elif error["type"] == "missing" and part == error["loc"][-1]:
            path = (*path, part)
    return path


def _not_yet_known(value: Mapping[str, object], older: Release) -> Iterable[tuple[KeyPath, Finding]]:
    """Find keys that came with a later release."""
    if older == NEWEST:
        return  # the table of all releases takes longer to read than everything else here
    for path in _key_paths(value):
        since = history(path).since
        is_newer = since is not None and RELEASES.index(since) > RELEASES.index(older.name)
        if not is_newer or not older.knows_section(path[:-1]):
            continue
        severity = Severity.ERROR if older.refuses(path) else Severity.IGNORED
        does = "refuses" if severity is Severity.ERROR else "ignores"
        message = f"`{path[-1]}` was added in DeepSpeed {since}; {older.name} {does} it"
        hint = "delete it, or use a newer DeepSpeed"
        yield path, Finding("newer-key", message, hint, dotted(path), severity, path=path)


def _key_paths(value: Mapping[str, object], path: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    for key, child in value.items():
        yield (*path, key)
        if isinstance(child, Mapping):
            yield from _key_paths(child, (*path, key))


_CONVERTED = (("bad-type", Severity.IGNORED), ("bad-type", Severity.ADVICE))
"""A value of another type, which DeepSpeed converts as pydantic does."""


def _as_meant(value: dict[str, Any], faults: Mapping[KeyPath, Finding | None]) -> DsConfig | None:
    """Read the config without its mistakes: a doubtful value becomes "auto", is converted or dropped."""
    meant = copy.deepcopy(value)
    for path, fault in sorted(faults.items(), key=lambda item: -len(item[0])):
        if fault is None or fault.fix is not None or (fault.code, fault.severity) not in _CONVERTED:
            fix_value(meant, path, fault.fix if fault else None, instead="auto")
    for _ in range(MAX_LOSSES):
        config, wrong = _validated(meant, strict=False)
        if config is not None:
            if ZERO in value and ZERO not in meant:
                return None
            return config
        for path in sorted(wrong, key=len, reverse=True):
            parent = value_at(meant, path[:-1])
            is_there = isinstance(parent, dict) and path[-1] in parent
            fix_value(meant, path if is_there else path[:-1], None)
    return None
