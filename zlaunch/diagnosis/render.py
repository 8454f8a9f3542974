"""Render a verdict in at most ten lines of a terminal."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from zlaunch.diagnosis.log_text import clip
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.secrets import hide_in_text

if TYPE_CHECKING:
    from zlaunch.diagnosis.speed import SpeedLoss

LINES = 10
ROW = 66
"""Columns of 80 that are left for text after any label."""
MOST_FACTS = 3
MOST_CHANGES = 2
"""Of what costs time; the first one saves most."""


def num_rows(text: str) -> int:
    """Count the lines of a text."""
    return max(1, len(textwrap.wrap(text, ROW, break_on_hyphens=False)))


def height(verdict: Verdict) -> int:
    """Count the lines of a verdict, with the one for rank, host and phase."""
    return 1 + sum(map(num_rows, (verdict.cause, *verdict.facts, *verdict.advice)))


def shorten(verdict: Verdict) -> Verdict:
    """Shorten quotations, then downsides in advice, then leave out what matters least."""
    facts = tuple(clip(fact, 2 * ROW - 8) for fact in verdict.facts[:MOST_FACTS])
    verdict = replace(verdict, cause=clip(verdict.cause, 3 * ROW - 12), facts=facts)
    while height(verdict) > LINES:
        verdict = _shorter(verdict)
    return verdict


def _shorter(verdict: Verdict) -> Verdict:
    facts = verdict.facts
    if any(num_rows(fact) > 1 for fact in facts):
        last = max(number for number, fact in enumerate(facts) if num_rows(fact) > 1)
        return replace(verdict, facts=(*facts[:last], clip(facts[last], ROW), *facts[last + 1 :]))
    if (shorter := tuple(map(_without_downside, verdict.advice))) != verdict.advice:
        return replace(verdict, advice=shorter)
    if len(verdict.advice) > 1 or (verdict.advice and not facts):
        return replace(verdict, advice=verdict.advice[:-1])
    return replace(verdict, facts=facts[:-1])


def _without_downside(advice: str) -> str:
    typed, is_described, effect = advice.partition("`: ")
    return typed + is_described + effect.partition("; ")[0]


_COLUMN = 10


def verdict_lines(verdict: Verdict, head: str, width: int) -> list[str]:
    """Write the cause after `head`, then the rank that failed first, the evidence and the advice."""
    lines = _wrapped(f"{head}: {verdict.cause}", width)[:3]
    if (beginning := verdict.beginning) is not None:
        lines += _labelled("began", (beginning,), width)
    lines += _labelled("evidence", verdict.facts, width)
    lines += _labelled("change", verdict.advice, width)
    return lines[:LINES]


def loss_lines(loss: "SpeedLoss", width: int) -> list[str]:
    """Write what costs time, the evidence and what to change."""
    verdict = loss.verdict
    lines = _labelled("slow", (verdict.cause,), width)
    return [
        *lines,
        *_labelled("evidence", verdict.facts, width),
        *_labelled("change", verdict.advice[:MOST_CHANGES], width),
    ]


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a text; a secret in it is hidden before it is broken, and no longer recognized."""
    return textwrap.wrap(hide_in_text(text), width)


def _labelled(label: str, texts: Sequence[str], width: int) -> Iterator[str]:
    for text in texts:
        for line in _wrapped(text, width - _COLUMN - 2) or [""]:
            yield f"  {label:<{_COLUMN}}{line}"
            label = ""
