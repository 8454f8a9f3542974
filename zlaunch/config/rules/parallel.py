"""Rules about splitting the model, `pipeline` and `compile`."""

import math
from collections.abc import Iterator

from zlaunch.config.rules.rule import Context, Subject, Violation, advice, error, fails_later, ignored, zero
from zlaunch.units import plural


@ignored({"sequence_parallel_size": 2}, {"data_parallel_size": 2}, Context(world_size=4))
def half_a_device_mesh(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed builds a device mesh only if both sizes are set; one alone only reduces the batch.

    A script that groups the ranks itself, as with Ulysses for models of transformers, sets one alone.
    """
    sizes = ("sequence_parallel_size", "data_parallel_size")
    if subject.context.has_own_groups:
        return
    given = [key for key in sizes if getattr(subject.config, key) is not None]
    if len(given) == 1 and getattr(subject.config, given[0]) > 1:
        other = sizes[given[0] == sizes[0]]
        yield Violation(given[0], f"`{given[0]}` has no effect without `{other}`", f"add `{other}`")


@error(
    {"sequence_parallel_size": 2, "data_parallel_size": 1}, {"data_parallel_size": 2}, Context(world_size=4)
)
def mesh_differs_from_ranks(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed builds a device mesh of both sizes, which must consist of all ranks."""
    config, world = subject.config, subject.context.world_size
    sizes = config.sequence_parallel_size, config.data_parallel_size
    if world is None or None in sizes or subject.context.has_own_groups or config.pipeline is not None:
        return
    if (mesh := math.prod(filter(None, sizes))) != world:
        right, rest = divmod(world, sizes[0] or 1)
        hint = f"write {right}"
        if rest:
            hint = f"start {mesh} ranks"
        yield Violation(
            "data_parallel_size",
            f"`sequence_parallel_size` x `data_parallel_size` is {mesh}, not {plural(world, 'rank')}",
            hint,
        )


@fails_later({"tensor_parallel": {"autotp_size": 4, "tp": {"tp_size": 2}}}, {"tensor_parallel.tp.tp_size": 4})
def two_tensor_parallel_sizes(subject: Subject) -> Iterator[Violation]:
    """The engine raises an error unless `tp.tp_size` is 1 or equal to `autotp_size`."""
    section = subject.config.tensor_parallel
    if section.autotp_size > 1 and section.tp.tp_size not in (1, section.autotp_size):
        yield Violation(
            "tensor_parallel.tp.tp_size",
            f"`tp_size` is {section.tp.tp_size}, but `autotp_size` is {section.autotp_size}",
            "delete `tp_size`",
        )


@fails_later(
    {"tensor_parallel": {"autotp_size": 2}}, {"tensor_parallel.autotp_size": 3}, Context(world_size=3)
)
def groups_do_not_divide_the_ranks(subject: Subject) -> Iterator[Violation]:
    """AutoTP and AutoEP divide all ranks into groups of their size, and fail if some ranks are left."""
    context, config = subject.context, subject.config
    if context.world_size is None or context.has_own_groups or config.pipeline is not None:
        return
    sizes = {"tensor_parallel.autotp_size": config.tensor_parallel.autotp_size}
    if (experts := config.expert_parallel) is not None and experts.enabled:
        sizes["expert_parallel.autoep_size"] = experts.autoep_size * experts.expert_tensor_parallel_size
    for key, size in sizes.items():
        if size > 1 and context.world_size % size:
            ranks = plural(context.world_size, "rank")
            hint = f"start a multiple of {size} ranks, or write a divisor of {context.world_size}"
            yield Violation(key, f"{ranks} cannot be divided into groups of {size}", hint)


@ignored({"tensor_parallel": {"tp": {"tp_size": 2}}}, {"tensor_parallel.autotp_size": 2})
def tensor_parallel_is_off(subject: Subject) -> Iterator[Violation]:
    """In training only `autotp_size` splits the model; `tp_size` alone is for inference."""
    section = subject.config.tensor_parallel
    if section.autotp_size <= 1 and section.tp.tp_size > 1:
        size = section.tp.tp_size
        yield Violation(
            "tensor_parallel.tp.tp_size",
            "`tp_size` alone does not split the model",
            f'add `"autotp_size": {size}`',
        )


@advice(
    {"zero_optimization": {"stage": 2}, "pipeline": {"activation_checkpoint_interval": 1}}, {zero("stage"): 1}
)
def pipeline_below_stage_2(subject: Subject) -> Iterator[Violation]:
    """Only a `PipelineModule` reads `pipeline`; its engine asserts a ZeRO stage below 2."""
    if subject.config.pipeline is not None and subject.stage in (2, 3):
        yield Violation(
            "pipeline",
            f"only a `PipelineModule` reads this section, and it does not train at stage {subject.stage}",
            "use stage 1 for a `PipelineModule`; otherwise delete it",
        )


@fails_later({"compile": {"deepcompile": True, "passes": ["autotp", "z3"]}}, {"compile.passes": ["autotp"]})
def autotp_pass_alone(subject: Subject) -> Iterator[Violation]:
    """DeepCompile cannot combine its tensor-parallel pass with other passes."""
    section = subject.config.compile
    if section.deepcompile and section.passes and "autotp" in section.passes and len(set(section.passes)) > 1:
        others = ", ".join(f'"{name}"' for name in section.passes if name != "autotp")
        yield Violation(
            "compile.passes", f'"autotp" does not work together with {others}', 'write `["autotp"]`'
        )


@fails_later(
    {
        "zero_optimization": {"stage": 3},
        "compile": {"deepcompile": True, "offload_activation": True, "offload_parameters": True},
    },
    {"compile.offload_parameters": False},
)
def two_compiled_offloads(subject: Subject) -> Iterator[Violation]:
    """At stage 3 DeepCompile offloads one kind of state, and optimizer states only if ZeRO does not."""
    section = subject.config.compile
    if not section.deepcompile or subject.stage != 3:
        return
    on = [
        key
        for key in ("offload_activation", "offload_parameters", "offload_opt_states")
        if getattr(section, key)
    ]
    if len(on) > 1:
        yield Violation(
            f"compile.{on[1]}", f"DeepCompile supports only one of {', '.join(on)}", "turn the others off"
        )
    elif on == ["offload_opt_states"] and "offload_optimizer" in subject.offloads:
        yield Violation(
            "compile.offload_opt_states",
            f"`{zero('offload_optimizer')}` already offloads the optimizer",
            "turn one of them off",
        )
