"""A verdict in words: ten lines at most."""

import textwrap
from collections.abc import Iterator

from zlaunch.diagnosis.brevity import LINES
from zlaunch.diagnosis.verdict import Verdict

_COLUMN = 10


def verdict_lines(verdict: Verdict, head: str, width: int) -> list[str]:
    """Write the cause after `head`, then where it began, what shows it and what to change."""
    lines = textwrap.wrap(f"{head}: {verdict.cause}", width)[:3]
    for title, texts in (
        ("began", _beginning(verdict)),
        ("evidence", verdict.facts),
        ("change", verdict.advice),
    ):
        for number, text in enumerate(texts):
            label = title if number == 0 else ""
            wrapped = textwrap.wrap(text, width - _COLUMN - 2) or [""]
            lines.append(f"  {label:<{_COLUMN}}{wrapped[0]}")
            lines += [f"  {'':<{_COLUMN}}{line}" for line in wrapped[1:]]
    return lines[:LINES]


def _beginning(verdict: Verdict) -> Iterator[str]:
    """Say where it began, unless the cause leaves that open."""
    if verdict.rank is not None:
        host = f" on {verdict.host}" if verdict.host else ""
        phase = f", {verdict.phase}" if verdict.phase else ""
        yield f"rank {verdict.rank}{host}{phase}"
