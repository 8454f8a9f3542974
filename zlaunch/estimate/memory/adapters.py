"""LoRA adapters of PEFT 0.21.

A matrix gets two low-rank matrices. Experts stored as one tensor get two for each expert, and PEFT adds
their product to the whole tensor in each forward pass (`peft.tuners.lora.layer.ParamWrapper`). That sum is
as large as the experts and is kept until the backward pass of the layer.
"""

from collections.abc import Iterator

from zlaunch.estimate.workload import Lora
from zlaunch.job.model_families import LINEAR
from zlaunch.job.transformer import Stack, Transformer, Weight


def adapters(model: Transformer, lora: Lora) -> int:
    """Count the elements of all adapters."""
    return sum(
        stack.num_layers * lora.rank * _width(model, weight)
        for stack in model.stacks
        for weight in _adapted(model, stack, lora)
    )


def adapts_experts(model: Transformer, lora: Lora | None) -> bool:
    """Whether experts have adapters, so that their sum is kept until the backward pass."""
    return lora is not None and any(
        weight.name in ("experts_up", "experts_down")
        for stack in model.stacks
        for weight in _adapted(model, stack, lora)
    )


def _adapted(model: Transformer, stack: Stack, lora: Lora) -> Iterator[Weight]:
    """List the weights of a layer that get an adapter: those of the named modules, or all possible ones."""
    names = dict((*model.family.module_names, *model.family.expert_names))
    experts = {name for name, _ in model.family.expert_names}
    for weight in stack.weights:
        if weight.name in LINEAR | experts and (not lora.modules or names.get(weight.name) in lora.modules):
            yield weight


def _width(model: Transformer, weight: Weight) -> int:
    """Return the elements of an adapter per unit of rank; two fused matrices have twice as many."""
    if weight.name == "experts_up":
        return 2 * model.experts * (model.hidden + 2 * model.ffn)
    if weight.name == "experts_down":
        return model.experts * (model.ffn + model.hidden)
    return weight.rows + weight.columns
