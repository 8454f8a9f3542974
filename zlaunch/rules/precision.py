"""Rules about number formats."""

from collections.abc import Iterator

from zlaunch.errors import Finding, Severity
from zlaunch.rules.subject import Rule, Subject


def one_format(subject: Subject) -> Iterator[Finding]:
    """Training is in fp16 or in bf16."""
    bf16 = subject.config.bf16 or subject.config.bfloat16
    if subject.config.fp16.enabled is True and bf16 is not None and bf16.enabled is True:
        yield Finding(
            code="both-formats",
            where="fp16.enabled",
            message="fp16 and bf16 are both enabled",
            hint="keep bf16, unless the GPUs are older than Ampere",
            severity=Severity.LATE,
        )


RULES: tuple[Rule, ...] = (one_format,)
