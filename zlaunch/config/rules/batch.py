"""Rules about the batch sizes (`deepspeed/runtime/config.py`, `_configure_train_batch_size`)."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import Context, Subject, Violation, error
from zlaunch.dsconfig.batch import BatchSizes
from zlaunch.units import plural, whole


@error(
    {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
    {"train_batch_size": 16},
    Context(world_size=2),
)
def batch_equation(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed asserts that the global batch is micro-batch x accumulation steps x data-parallel ranks."""
    ranks, sizes = subject.data_ranks, _batch_sizes(subject)
    if ranks and None not in sizes and not sizes.holds(ranks):
        total, micro, accumulation = sizes
        yield Violation(
            "train_batch_size",
            f"train_batch_size is {total}, but {micro} per rank x {accumulation} accumulated "
            f"x {plural(ranks, 'rank')} is {BatchSizes(None, micro, accumulation).completed(ranks).total}",
            'write "auto" for one of the three',
        )


@error({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4}, {"train_batch_size": 32})
def batch_not_divisible(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed divides the global batch by the other sizes and asserts that there is no remainder."""
    ranks, sizes = subject.data_ranks, _batch_sizes(subject)
    total, micro, accumulation = sizes
    is_fraction = ranks is None and (subject.config.sequence_parallel_size or 1) > 1  # the ranks may be
    if total is None or is_fraction or (ranks and None not in sizes):
        return
    divisor, parts = 1, []
    if micro:
        divisor *= micro
        parts.append(f"{micro} per rank")
    if accumulation:
        divisor *= accumulation
        parts.append(f"{accumulation} accumulated")
    is_whole = total % divisor == 0
    if ranks:
        divisor *= ranks.numerator
        parts.append(plural(ranks, "rank"))
        is_whole = sizes.holds(ranks)
    if not is_whole:
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


def _batch_sizes(subject: Subject) -> BatchSizes:
    config = subject.config
    sizes = config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps
    return BatchSizes(*map(whole, sizes))
