"""Rules about the batch sizes (`deepspeed/runtime/config.py`, `_configure_train_batch_size`)."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import Context, Subject, Violation, error
from zlaunch.units import plural, whole


@error(
    {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
    {"train_batch_size": 16},
    Context(world_size=2),
)
def batch_equation(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed asserts that the global batch is micro-batch x accumulation steps x data-parallel ranks."""
    config, world = subject.config, subject.data_ranks
    total, micro = whole(config.train_batch_size), whole(config.train_micro_batch_size_per_gpu)
    accumulation = whole(config.gradient_accumulation_steps)
    if world and total and micro and accumulation and total != micro * accumulation * world:
        yield Violation(
            "train_batch_size",
            f"train_batch_size is {total}, but {micro} per rank x {accumulation} accumulated "
            f"x {plural(world, 'rank')} is {micro * accumulation * world}",
            'write "auto" for one of the three',
        )


@error({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4}, {"train_batch_size": 32})
def batch_not_divisible(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed divides the global batch by the other sizes and asserts that there is no remainder."""
    config, known = subject.config, subject.data_ranks
    world = known or 1
    total, micro = whole(config.train_batch_size), whole(config.train_micro_batch_size_per_gpu)
    accumulation = whole(config.gradient_accumulation_steps)
    if not total or (micro and accumulation and known):
        return
    parts = [f"{size} {name}" for size, name in ((micro, "per rank"), (accumulation, "accumulated")) if size]
    parts += [plural(world, "rank")] if known else []
    divisor = (micro or 1) * (accumulation or 1) * world
    if total % divisor:
        yield Violation(
            "train_batch_size",
            f"train_batch_size {total} is not divisible by {' x '.join(parts)}",
            f"write {-(-total // divisor) * divisor}, or delete train_batch_size",
        )


@error({"gradient_accumulation_steps": 2}, {"train_micro_batch_size_per_gpu": 4})
def no_batch_size(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed refuses a config with neither a global batch nor a micro-batch."""
    config = subject.config
    if config.train_batch_size is None and config.train_micro_batch_size_per_gpu is None:
        yield Violation(
            subject.nearest("gradient_accumulation_steps"),
            "`train_batch_size` and `train_micro_batch_size_per_gpu` are both missing",
            'add `"train_micro_batch_size_per_gpu": "auto"`; without the Trainer, write a number',
        )
