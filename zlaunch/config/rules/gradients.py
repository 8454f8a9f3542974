"""Rules about reducing, averaging, clipping and accumulating gradients."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import CPU, Subject, Violation, error, fails_later, ignored, zero
from zlaunch.errors import Fix, FixKind

_NO_NORM = {"stage": 2, "compute_grad_norm": False}


def _clipping(subject: Subject) -> float | None:
    """The norm at which gradients are clipped; None while it is unknown."""
    clipping = subject.config.gradient_clipping
    if clipping == "auto":
        clipping = subject.argument("max_grad_norm")
    if clipping is None:
        return None
    return float(clipping)


@fails_later(
    {"zero_optimization": {"stage": 2, "allgather_bucket_size": 1001}}, {zero("allgather_bucket_size"): 1002}
)
def odd_allgather_bucket(subject: Subject) -> Iterator[Violation]:
    """Stages 1 and 2 assert that `allgather_bucket_size` is even."""
    size = subject.zero.allgather_bucket_size
    if subject.stage in (1, 2) and size % 2:
        yield Violation(
            zero("allgather_bucket_size"),
            f"`allgather_bucket_size` must be even, not {size}",
            f"write {size + 1}",
            Fix(FixKind.WRITE, size + 1),
        )


@fails_later({"zero_optimization": {"stage": 2}, "prescale_gradients": True}, {"prescale_gradients": None})
def reduce_scatter_averages_plainly(subject: Subject) -> Iterator[Violation]:
    """With `reduce_scatter`, stages 2 and 3 assert that gradients are neither prescaled nor predivided."""
    config = subject.config
    sums = config.gradient_allreduce_op == "sum" and subject.stage == 2
    if subject.stage not in (2, 3) or not subject.zero.reduce_scatter or sums:
        return
    wrong = {"prescale_gradients": config.prescale_gradients}
    wrong["gradient_predivide_factor"] = config.gradient_predivide_factor != 1.0
    for key, is_wrong in wrong.items():
        if is_wrong:
            yield Violation(
                key,
                f"`{key}` does not work with `reduce_scatter` at stage {subject.stage}; it is on by default",
                f"delete it, or turn `{zero('reduce_scatter')}` off",
            )


@error(
    {"zero_optimization": {"stage": 3, "compute_grad_norm": False}, "gradient_clipping": 0},
    {zero("stage"): 2},
)
def grad_norm_needs_stage_1_or_2(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed refuses `compute_grad_norm` false at other stages than 1 and 2."""
    if subject.stage in (0, 3) and not subject.zero.compute_grad_norm:
        yield Violation(
            zero("compute_grad_norm"), f"stage {subject.stage} always computes the gradient norm", "delete it"
        )


@fails_later({"zero_optimization": _NO_NORM}, {"gradient_clipping": 0})
def clipping_needs_the_norm(subject: Subject) -> Iterator[Violation]:
    """Clipping needs the gradient norm, and is on at 1.0 unless `gradient_clipping` is 0."""
    clipping = _clipping(subject)
    if (
        subject.stage in (1, 2)
        and not subject.zero.compute_grad_norm
        and clipping is not None
        and clipping > 0
    ):
        written = f"{clipping:g}"
        if not subject.has("gradient_clipping"):
            written += ", its default"
        yield Violation(
            zero("compute_grad_norm"),
            f"`gradient_clipping` is {written}, and clipping needs the gradient norm",
            'write `"gradient_clipping": 0`, or delete `compute_grad_norm`',
        )


@fails_later(
    {"zero_optimization": {**_NO_NORM, "offload_optimizer": CPU}, "gradient_clipping": 0},
    {zero("compute_grad_norm"): True},
)
def no_norm_on_the_host(subject: Subject) -> Iterator[Violation]:
    """Offloaded optimizers, including ZenFlow, always compute the gradient norm."""
    on_host = "offload_optimizer" in subject.offloads or subject.zero.zenflow is not None
    if subject.stage in (1, 2) and not subject.zero.compute_grad_norm and on_host:
        yield Violation(
            zero("compute_grad_norm"),
            "an offloaded optimizer needs the gradient norm",
            "delete it",
        )


@error({"zero_optimization": {"stage": 3}, "gradient_allreduce_op": "sum"}, {zero("stage"): 2})
def sum_of_gradients(subject: Subject) -> Iterator[Violation]:
    """Stage 3, ZenFlow and DeepCompile can only average gradients; DeepSpeed refuses "sum"."""
    averaging = {
        "stage 3": subject.stage == 3,
        "ZenFlow": subject.zero.zenflow is not None,
        "DeepCompile": subject.config.compile.deepcompile,
    }
    feature = next((name for name, is_on in averaging.items() if is_on), None)
    if feature and subject.config.gradient_allreduce_op == "sum":
        yield Violation(
            "gradient_allreduce_op", f"{feature} averages gradients and cannot sum them", 'write "mean"'
        )


@fails_later(
    {"managed_gradient_accumulation": False, "zero_optimization": {"stage": 1, "overlap_comm": True}},
    {zero("overlap_comm"): False},
)
def own_accumulation(subject: Subject) -> Iterator[Violation]:
    """Without managed accumulation the engine refuses overlap below stage 2, DeepCompile and pipelines."""
    if subject.config.managed_gradient_accumulation:
        return
    obstacles = {
        zero("overlap_comm"): subject.stage in (0, 1) and subject.zero.overlap_comm,
        "compile.deepcompile": subject.config.compile.deepcompile,
        "pipeline": subject.config.pipeline is not None,
    }
    for key, is_there in obstacles.items():
        if is_there:
            yield Violation(
                key,
                f"`managed_gradient_accumulation` false does not work with `{key}`",
                f"turn `{key}` off or delete it",
            )


@ignored(
    {"zero_optimization": {"stage": 2, "offload_optimizer": CPU, "contiguous_gradients": False}},
    {zero("contiguous_gradients"): None},
)
def host_wants_contiguous_gradients(subject: Subject) -> Iterator[Violation]:
    """With optimizer offload, stages 1 and 2 turn `contiguous_gradients` on regardless of its value."""
    offloads = subject.stage in (1, 2) and "offload_optimizer" in subject.offloads
    if offloads and not subject.zero.contiguous_gradients:
        yield Violation(
            zero("contiguous_gradients"),
            "ignored: gradients are always contiguous with optimizer offload",
            "delete it",
        )


@ignored({"gradient_clipping": -1.0}, {"gradient_clipping": 1.0})
def negative_clipping(subject: Subject) -> Iterator[Violation]:
    """A negative value turns clipping off, like 0."""
    clipping = subject.config.gradient_clipping
    if clipping != "auto" and clipping < 0:
        yield Violation(
            "gradient_clipping",
            f"{clipping:g} turns clipping off",
            "write 0 to turn clipping off, or a positive norm",
        )
