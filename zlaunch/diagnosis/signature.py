"""A signature: the code, description and recognizer of one way for a run to end.

The ds_config rules are imported only when used: the import takes longer than a diagnosis.
"""

from collections.abc import Callable
from functools import wraps
from typing import Literal

from zlaunch.diagnosis.case import Case, Reading
from zlaunch.diagnosis.evidence import JobEvidence
from zlaunch.diagnosis.log_text import matching_line
from zlaunch.frozen import dataclass

Read = Callable[[Case], Reading | None]


@dataclass(frozen=True, slots=True)
class Signature:
    """One way for a run to end, and how to recognize it."""

    code: str
    tell: str
    """The evidence, for the page about endings."""
    read: Read
    rule: str | None = None
    """The rule of a ds_config that was broken; its text is used."""

    @property
    def what(self) -> str:
        """What happened, in one line."""
        if self.rule is not None:
            return rule_text(self.rule)
        return " ".join((self.read.__doc__ or "").split()).rstrip(".")


def signature(code: str, tell: str, rule: str | None = None) -> Callable[[Read], Signature]:
    """Make a signature from a function; the description is the rule's, or else the function's docstring."""
    return lambda read: Signature(code, tell, read, rule)


def quotes(
    pattern: str, within: Literal["words", "story"] = "words"
) -> Callable[[Callable[[Case, str], Reading | None]], Read]:
    """Read a case only if a line of it matches a pattern; the line is the second argument."""

    def reading(read: Callable[[Case, str], Reading | None]) -> Read:
        @wraps(read)
        def read_matching(case: Case) -> Reading | None:
            line = matching_line(pattern, getattr(case, within))
            if line is None:
                return None
            return read(case, line)

        return read_matching

    return reading


def signature_of(rule: str, tell: str) -> Callable[[Read], Signature]:
    """Make a signature with the code and the text of a rule of a ds_config."""
    return signature(rule, tell, rule)


def rule_text(code: str) -> str:
    """Return the first paragraph of a rule's explanation."""
    from zlaunch.config.rules import RULES

    (rule,) = (rule for rule in RULES if rule.code == code)
    return " ".join(rule.why.partition("\n\n")[0].split()).rstrip(".")


def broken_rule(code: str, job: JobEvidence, otherwise: str | None = None) -> str:
    """Return what a rule finds in the job's ds_config; if it finds nothing, another or its general text."""
    from zlaunch.config.rules.rule import Context
    from zlaunch.config.validate import validate_mapping

    context = Context(world_size=job.world_size, interface=job.interface)
    findings = validate_mapping(dict(job.config), context)
    return next(
        (finding.message for finding in findings if finding.code == code), otherwise or rule_text(code)
    )
