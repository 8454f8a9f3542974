"""Explain a key of a ds_config."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from zlaunch.config.rules import RULES
from zlaunch.config.rules.rule import Subject
from zlaunch.dsconfig.json_schema import catalog
from zlaunch.dsconfig.keys.auto_keys import FILLED, Fate, is_own_word
from zlaunch.dsconfig.keys.effects import effects
from zlaunch.dsconfig.keys.read_at import stages_reading, switches_over
from zlaunch.dsconfig.keys.search import older_keys
from zlaunch.dsconfig.keys.type_text import Node, in_words
from zlaunch.dsconfig.releases import NEWEST, RELEASES, REMOVED, Release, history
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.schema_check import check
from zlaunch.dsconfig.text.document import dotted
from zlaunch.errors import Severity
from zlaunch.frozen import dataclass

_STAGES = frozenset({0, 1, 2, 3})


@dataclass(frozen=True)
class RelatedRule:
    """A rule or key with a short description."""

    name: str
    words: str
    is_section: bool = False


@dataclass(frozen=True)
class Explanation:
    """The description of a key; unknown fields and those that do not apply are empty."""

    key: str
    meaning: str
    type: str = ""
    default: str = ""
    releases: str = ""
    read: str = ""
    auto: str = ""
    memory: str = ""
    speed: str = ""
    related: tuple[str, ...] = ()
    rules: tuple[RelatedRule, ...] = ()
    keys: tuple[RelatedRule, ...] = ()
    example: Mapping[str, object] | None = None


def explain(key: str, release: Release = NEWEST) -> Explanation:
    """Explain a key that `catalog.find` found."""
    path = tuple(key.split("."))
    if key in older_keys():
        since = _known(path)
        remedy = REMOVED.get(key, "delete it")
        return Explanation(
            key, f"Only older releases read it; {remedy}.", releases=since, rules=_rules_about(key)
        )
    nodes = catalog().keys[key]
    effect = effects().get(key)
    return Explanation(
        key,
        " ".join(dict.fromkeys(node["description"] for node in nodes)),
        type=in_words({"anyOf": nodes}),
        default=_default_text(path, nodes, release) or (effect.default if effect else ""),
        releases=_known(path),
        read=_when_read(path),
        auto=_auto(path),
        memory=effect.memory if effect else "",
        speed=effect.speed if effect else "",
        related=effect.related if effect else (),
        rules=_rules_about(key),
        keys=tuple(keys_below(key)),
        example=_example(key, nodes),
    )


def explain_auto() -> Explanation:
    """Explain the value "auto", which many ds_configs have."""
    meaning = (
        "A value, not a key: the Trainer or accelerate replaces it with what its own arguments say. "
        "DeepSpeed alone does not. `zlaunch config resolve` shows what each becomes."
    )
    return Explanation('"auto"', meaning, related=tuple(map(dotted, FILLED)))


def keys_below(key: str) -> Iterator[RelatedRule]:
    """List the keys directly below a section; without one, the top-level keys."""
    start, names = f"{key}." if key else "", catalog().keys
    for name, nodes in names.items():
        if name.startswith(start) and "." not in name[len(start) :]:
            words = nodes[0]["description"].partition("\n")[0]
            is_section = any(other.startswith(f"{name}.") for other in names)
            yield RelatedRule(name[len(start) :], words, is_section)


def _default_text(path: tuple[str, ...], nodes: Sequence[Node], release: Release) -> str:
    """Give the default in a release and its changes between releases."""
    past = history(path)
    if release.default(path) is not None or len(past.changes) > 1:
        now = _as_json(release.default(path))
        changes = [f"{_as_json(value)} since {name}" for name, value in past.changes[1:]]
        began = [f"{_as_json(past.changes[0][1])} at first", *changes] if changes else []
        return now + (f" in {release.name} ({', '.join(began)})" if began else "")
    written = [_as_json(node["default"]) for node in nodes if node.get("default") is not None]
    return " or ".join(dict.fromkeys(written))


def _as_json(value: object) -> str:
    if isinstance(value, float) and value.is_integer() and value >= 1e6:  # DeepSpeed writes counts like 5e8
        value = int(value)
    if value is None:
        return "none"
    return json.dumps(value)


def _known(path: tuple[str, ...]) -> str:
    past = history(path)
    if not past.known or (path[0] in ("optimizer", "scheduler") and len(path) > 2):
        return ""
    span = (
        f"{past.known[0]} to {past.known[-1]}" if past.since or past.until else f"all, from {RELEASES[0]} on"
    )
    if past.since and not past.until:
        span = f"since {past.since}"
    elif past.until and not past.since:
        span = f"until {past.until}"
    if past.refused:
        return f"{span}; refused since {past.refused}"
    return span


def _when_read(path: tuple[str, ...]) -> str:
    """Say at which stages, or under which switches, DeepSpeed reads a key."""
    if path[0] == ZERO and len(path) > 1:
        stages = stages_reading(".".join(path[1:]))
        if stages == _STAGES:
            return "at every stage"
        if not stages:
            return "at no stage: DeepSpeed ignores it"
        listed = " and ".join(filter(None, [", ".join(map(str, sorted(stages)[:-1])), str(max(stages))]))
        return f"at stage{'s' if len(stages) > 1 else ''} {listed}; ignored at other stages"
    switches = [f"`{dotted(switch)}`" for switch in switches_over(path)]
    if not switches:
        return ""
    return f"while {' and '.join(switches)} {'is' if len(switches) == 1 else 'are'} true"


_ALONE: Mapping[Fate, str] = {
    "refused": "DeepSpeed alone refuses it",
    "crash": "DeepSpeed alone fails on it after the model is loaded",
    "default": "DeepSpeed alone uses its default",
    "bucket": "DeepSpeed alone uses its default",
}


def _auto(path: tuple[str, ...]) -> str:
    if is_own_word(path):
        return "accepted by DeepSpeed; accelerate, and therefore the Trainer, refuses it"
    fate = FILLED.get(path)
    if fate is None:
        return ""
    return f"the Trainer or accelerate fills it in; {_ALONE[fate]}"


def _rules_about(key: str) -> tuple[RelatedRule, ...]:
    """List the rules that report a key or are satisfied by changing it, the severest first."""
    return tuple(RelatedRule(code, words) for code, keys, words in _rules() if key in keys)


@cache
def _rules() -> tuple[tuple[str, frozenset[str], str], ...]:
    """Apply each rule to its example."""
    rules, severities = [], [*Severity]
    for rule in sorted(RULES, key=lambda rule: severities.index(rule.severity)):
        config = check(dict(rule.broken)).config
        findings = [] if config is None else rule(Subject(config, rule.context))
        keys = frozenset({*rule.repair, *(finding.where for finding in findings)})
        rules.append((rule.code, keys, f"{rule.severity.value}: {rule.why.splitlines()[0]}"))
    return tuple(rules)


def _example(key: str, nodes: Sequence[Node]) -> Mapping[str, object] | None:
    if "*" in key or any(node.get("deprecated") for node in nodes):
        return None
    effect = effects().get(key)
    value = effect.example if effect and effect.example is not None else _sample(nodes)
    if value is None:
        return None
    *sections, last = key.split(".")
    example: dict[str, object] = {last: value}
    for section in reversed(sections):
        example = {section: example}
    return example


def _sample(nodes: Sequence[Node]) -> object:
    """Choose a value other than the default."""
    for node in nodes:
        default, words = node.get("default"), [*_enumerated(node)]
        if isinstance(default, bool):
            return not default
        if other := [word for word in words if word not in (default, "auto", None)]:
            return other[0]
        if isinstance(default, int | float):
            return default
        if isinstance(default, str) and default:
            return default
    return None


def _enumerated(node: Node) -> Iterator[object]:
    yield from node.get("enum", ())
    for arm in node.get("anyOf", ()):
        yield from _enumerated(arm)
