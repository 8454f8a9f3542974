"""Write docs/errors.md from the rules: `python tools/write_errors.py`."""

import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zlaunch.errors import Severity
from zlaunch.rules import RULES
from zlaunch.rules.rule import Rule

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"

HEAD = """# What `zlaunch config validate` finds

This page is written by `make docs` from the rules themselves.

| severity | what happens if it is left |
|---|---|
"""

SEVERITIES: Mapping[Severity, str] = {
    Severity.ERROR: "DeepSpeed refuses the config when it reads it, in every rank",
    Severity.LATE: "the job fails after the model is loaded, or at its first step",
    Severity.SILENT: "the job runs, and does something else than the config says",
    Severity.ADVICE: "it works, and there is a better way",
}

GENERAL: Mapping[str, str] = {
    "unknown-key": "DeepSpeed does not know a key. In some sections it refuses the config, in others it says "
    "nothing. The nearest name is offered, or the place where the key belongs.",
    "removed-key": "The key was removed, and its mere presence is refused, even when it is switched off.",
    "newer-key": "The key came with a later release than the one that was asked about with `--deepspeed`.",
    "missing-key": "A section cannot do without this key.",
    "bad-type": "A value has the wrong type: text for a number, a number for a switch, null where DeepSpeed "
    "crashes on it.",
    "bad-value": "A value is out of range, or a word that DeepSpeed does not know there.",
    "auto-not-here": 'Nobody fills in "auto" for this key. The Trainer stops at it, DeepSpeed takes its '
    "default.",
    "float-for-whole": "A whole number is written as `1e3` in a place where the Trainer's reader makes a "
    "fraction of it and DeepSpeed insists on an integer.",
    "duplicate-key": "A key stands twice in one object. DeepSpeed refuses both, the Trainer takes the last.",
    "misread-value": "DeepSpeed's reader takes something for text that was meant otherwise, such as `True`, "
    "`.5`, or a word without quotes before a comma.",
    "comment": "Comments are read by DeepSpeed, but not by transformers or accelerate. So are "
    "`trailing-comma`, `single-quotes`, `bare-key`, `no-quotes`, `missing-comma` and `no-braces`.",
    "not-json": "The text breaks off here, even for the most patient reader.",
    "not-text": "The file is not UTF-8 text.",
    "no-deepspeed": "The accelerate config that was named does not use DeepSpeed at all.",
    "deepspeed-refuses": "Only with `--deep`: DeepSpeed itself refuses the config for a reason that zlaunch "
    "does not know.",
}
"""Codes of what is no rule between keys."""


def page() -> str:
    """Write the whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield HEAD + "\n".join(f"| {severity.value} | {does} |" for severity, does in SEVERITIES.items())
    yield "\n## Text, keys and values\n\n| code | meaning |\n|---|---|"
    yield from (f"| `{code}` | {meaning} |" for code, meaning in GENERAL.items())
    for room, rules in itertools.groupby(RULES, key=lambda rule: rule.check.__module__):
        yield f"\n## {(sys.modules[room].__doc__ or '').strip().splitlines()[0].rstrip('.')}"
        for rule in rules:
            yield from _rule(rule)


def _rule(rule: Rule) -> Iterator[str]:
    why = " ".join(rule.why.split())
    yield f"\n### {rule.code}\n\n*{rule.severity.value}.* {why}"
    yield f"\n    {json.dumps(rule.case.broken)}\n"
    repairs = [_repair(where, value) for where, value in rule.case.repair.items()]
    yield f"Mended by {' and '.join(repairs)}." if repairs else "It depends on the rest of the job."


def _repair(where: str, value: Any) -> str:
    return f"leaving out `{where}`" if value is None else f"`{where}`: `{json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
