"""A verdict takes ten lines of a terminal at most: one for where, the rest for why and what to change."""

import textwrap
from dataclasses import replace

from zlaunch.diagnosis.texts import clip
from zlaunch.diagnosis.verdict import Verdict

LINES = 10
ROW = 66
"""Columns of 80 that are left for text, whatever stands before it."""
MOST_FACTS = 3


def rows(text: str) -> int:
    """Count the lines that a text takes."""
    return max(1, len(textwrap.wrap(text, ROW, break_on_hyphens=False)))


def height(verdict: Verdict) -> int:
    """Count the lines that a verdict takes, with the one that says rank, host and phase."""
    return 1 + sum(map(rows, (verdict.cause, *verdict.facts, *verdict.advice)))


def fitted(verdict: Verdict) -> Verdict:
    """Shorten quotations, then leave out what matters least; what is to be typed is never cut."""
    facts = tuple(clip(fact, 2 * ROW - 8) for fact in verdict.facts[:MOST_FACTS])
    verdict = replace(verdict, cause=clip(verdict.cause, 3 * ROW - 12), facts=facts)
    while height(verdict) > LINES:
        verdict = _shorter(verdict)
    return verdict


def _shorter(verdict: Verdict) -> Verdict:
    facts = verdict.facts
    if any(rows(fact) > 1 for fact in facts):
        last = max(number for number, fact in enumerate(facts) if rows(fact) > 1)
        return replace(verdict, facts=(*facts[:last], clip(facts[last], ROW), *facts[last + 1 :]))
    if len(verdict.advice) > 1 or (verdict.advice and not facts):
        return replace(verdict, advice=verdict.advice[:-1])
    return replace(verdict, facts=facts[:-1])
