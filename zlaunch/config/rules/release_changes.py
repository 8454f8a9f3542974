"""Rules about defaults that changed between DeepSpeed releases."""

import functools
from collections.abc import Iterator

from zlaunch.config.rules.rule import Context, Keys, Subject, Violation, advice
from zlaunch.dsconfig.releases import NEWEST, Release, release

BENIGN = {("steps_per_print",)}
"""Changes that only affect the log."""


@functools.cache
def _changed_since(older: Release) -> dict[Keys, tuple[object, object]]:
    """Find the defaults that changed: key → then, now."""
    then, now = older.keys, NEWEST.keys
    both = [path for path in then if path in now and path not in BENIGN]
    return {
        tuple(str(part) for part in path): (then[path], now[path])
        for path in both
        if then[path] is not None and now[path] is not None and then[path] != now[path]
    }


def _in_use(subject: Subject, section: Keys) -> bool:
    """Whether a section was written, and its `enabled` or `device` does not turn it off."""
    if section and not subject.has(".".join(section)):
        return False
    off = {("enabled", False), ("device", "none")}
    return not any((key, subject.written.get((*section, key))) in off for key in ("enabled", "device"))


@advice(
    {"zero_optimization": {"stage": 2}},
    {"gradient_clipping": 1.0},
    Context(release=release("0.16"), is_upgrade=True),
)
def default_changed(subject: Subject) -> Iterator[Violation]:
    """The default of a missing key is different in the newest DeepSpeed release."""
    older = subject.context.release
    if older is None or older == NEWEST or not subject.context.is_upgrade:
        return
    for keys, (then, now) in _changed_since(older).items():
        *section, key = keys
        if not subject.has(".".join(keys)) and _in_use(subject, tuple(section)):
            name = ".".join(keys)
            yield Violation(
                ".".join(section),
                f"`{name}` is {_text(then)} by default in {older.name}, and {_text(now)} in {NEWEST.name}",
                f'write `"{key}": {_text(then)}` to keep the old value, or {_text(now)} for the new one',
            )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
