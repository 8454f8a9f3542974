"""Rules about number formats."""

from collections.abc import Iterator

from zlaunch.errors import Severity
from zlaunch.rules.rule import Case, Fault, Subject, rule

_ON = {"enabled": True}


@rule("both-formats", Severity.ERROR, Case({"fp16": _ON, "bf16": _ON}, {"fp16.enabled": False}))
def both_formats(subject: Subject) -> Iterator[Fault]:
    """Training is in fp16 or in bf16. DeepSpeed asserts it."""
    bf16 = subject.config.bf16 or subject.config.bfloat16
    if subject.config.fp16.enabled is True and bf16 is not None and bf16.enabled is True:
        yield Fault(
            "fp16.enabled",
            "fp16 and bf16 are both enabled",
            "keep bf16, unless the GPUs are older than Ampere",
        )
