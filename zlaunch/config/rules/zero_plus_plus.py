"""Rules about ZeRO++: secondary partitions and quantized communication (stage 3)."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import Context, Subject, Violation, fails_later, zero
from zlaunch.units import plural


@fails_later(
    {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}},
    {zero("zero_hpz_partition_size"): 4},
    Context(world_size=12),
)
def hpz_does_not_divide(subject: Subject) -> Iterator[Violation]:
    """The engine asserts that groups of `zero_hpz_partition_size` ranks divide all ranks evenly."""
    world, size = subject.context.world_size, subject.zero.zero_hpz_partition_size
    if subject.stage == 3 and world and size and world % min(size, world):
        yield Violation(
            zero("zero_hpz_partition_size"),
            f"{plural(world, 'rank')} cannot be divided into groups of {size}",
            "write the number of GPUs per host",
        )


@fails_later(
    {"zero_optimization": {"stage": 3, "zero_quantized_gradients": True, "reduce_scatter": False}},
    {zero("reduce_scatter"): True},
)
def quantized_gradients_need_reduce_scatter(subject: Subject) -> Iterator[Violation]:
    """Stage 3 asserts `reduce_scatter` for quantized gradients."""
    if subject.stage == 3 and subject.zero.zero_quantized_gradients and not subject.zero.reduce_scatter:
        yield Violation(
            zero("reduce_scatter"), "quantized gradients need `reduce_scatter`", "delete `reduce_scatter`"
        )


@fails_later(
    {
        "zero_optimization": {"stage": 3, "zero_quantized_weights": True},
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
    },
    {zero("zero_quantized_weights"): None},
)
def quantized_weights_under_autocast(subject: Subject) -> Iterator[Violation]:
    """The engine asserts that quantized weights and `torch_autocast` are not both enabled."""
    if subject.value("torch_autocast.enabled") and subject.zero.zero_quantized_weights:
        yield Violation(
            zero("zero_quantized_weights"),
            "quantized weights do not work with `torch_autocast`",
            "delete one of them; `bf16` needs no `torch_autocast`",
        )
