"""Rules about the batch sizes (`deepspeed/runtime/config.py`, `_configure_train_batch_size`)."""

from collections.abc import Iterator

from zlaunch.errors import Finding, Severity
from zlaunch.rules.subject import Rule, Subject


def batch_equation(subject: Subject) -> Iterator[Finding]:
    """The global batch is the micro-batch times accumulation times ranks."""
    config, world = subject.config, subject.world_size
    total, micro = config.train_batch_size, config.train_micro_batch_size_per_gpu
    accumulation = config.gradient_accumulation_steps
    if world is None or not (
        isinstance(total, int) and isinstance(micro, int) and isinstance(accumulation, int)
    ):
        return
    if total != micro * accumulation * world:
        yield Finding(
            code="batch-equation",
            where="train_batch_size",
            message=f"train_batch_size is {total}, but {micro} per rank x {accumulation} accumulated "
            f"x {world} ranks is {micro * accumulation * world}",
            hint='write "auto" for one of the three',
            severity=Severity.LATE,
        )


RULES: tuple[Rule, ...] = (batch_equation,)
