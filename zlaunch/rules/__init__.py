"""Rules between keys of a ds_config: one function, one code, one case in the tests."""

from zlaunch.errors import Finding
from zlaunch.rules import batch, offload, precision
from zlaunch.rules.subject import Rule, Subject

RULES: tuple[Rule, ...] = (*batch.RULES, *offload.RULES, *precision.RULES)


def judge(subject: Subject) -> list[Finding]:
    """Apply every rule and collect all findings."""
    return [finding for rule in RULES for finding in rule(subject)]
