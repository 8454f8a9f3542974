"""The parameters of a model, and which of them are trained: all, or the LoRA adapters of PEFT 0.21.

With LoRA, a matrix gets two low-rank matrices. Experts stored as one tensor get two for each expert, and PEFT
adds their product to the whole tensor in each forward pass (`peft.tuners.lora.layer.ParamWrapper`). That sum
is as large as the experts and is kept until the backward pass of the layer.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import Final

from zlaunch.estimate.workload import DEFAULT_MODULES, Lora
from zlaunch.frozen import dataclass
from zlaunch.job.model_families import LINEAR
from zlaunch.job.transformer import Stack, Transformer, Weight


@dataclass(frozen=True)
class Weights:
    """Elements of each trained parameter in the model's order, and of each frozen one."""

    parameters: int
    """Elements of all of them, adapters included."""
    embedding: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    head: tuple[int, ...]
    frozen: tuple[int, ...] = ()

    @cached_property
    def trained(self) -> tuple[int, ...]:
        """The elements of each trained parameter."""
        return (*self.embedding, *chain.from_iterable(self.layers), *self.head)

    @cached_property
    def total(self) -> int:
        """The elements of all trained parameters."""
        return sum(self.trained)

    @cached_property
    def all(self) -> tuple[int, ...]:
        """The elements of each parameter, trained or frozen."""
        return (*self.frozen, *self.trained)

    @property
    def largest(self) -> int:
        """The elements of the largest trained parameter."""
        return max(self.trained, default=0)

    def with_trained(self, numel: int) -> "Weights":
        """Return weights of which `numel` elements in one parameter are trained, and the rest are frozen."""
        return Weights(self.parameters, (), ((numel,),), (), frozen=(self.parameters - numel,))

    def owned(self, share: int, rank: int) -> int:
        """Return the elements of all parameters that overlap a rank's partition of the flat parameters."""
        start, stop, position, owned = share * rank, share * (rank + 1), 0, 0
        for numel in self.trained:
            if position < stop and position + numel > start:
                owned += numel
            position += numel
        return owned


def weights_of(model: Transformer, lora: Lora | None) -> Weights:
    """List the parameters; those of adapters are spread over the layers."""
    layers: list[tuple[int, ...]] = []
    for stack in model.stacks:
        layers += [_numels(stack.weights)] * stack.num_layers
    weights = Weights(model.parameters, _numels(model.embedding), tuple(layers), _numels(model.head))
    if lora is not None and (added := adapters(model, lora)):
        share = added // model.num_layers
        total = model.parameters + share * model.num_layers
        return Weights(total, (), ((share,),) * model.num_layers, (), frozen=weights.trained)
    return weights


def _numels(weights: Iterable[Weight]) -> tuple[int, ...]:
    return tuple(weight.numel for weight in weights)


def adapters(model: Transformer, lora: Lora) -> int:
    """Count the elements of all adapters."""
    total = 0
    for stack in model.stacks:
        widths = (_width(model, weight) for weight in _adapted(model, stack, lora))
        total += stack.num_layers * lora.rank * sum(widths)
    return total


def adapted_names(model: Transformer, lora: Lora) -> frozenset[str]:
    """Name the weights of a layer that have adapters."""
    return frozenset(weight.name for stack in model.stacks for weight in _adapted(model, stack, lora))


def adapts_experts(model: Transformer, lora: Lora | None) -> bool:
    """Whether experts have adapters, so that their sum is kept until the backward pass."""
    return lora is not None and not adapted_names(model, lora).isdisjoint(("experts_up", "experts_down"))


_CHOSEN_BY_PEFT: Final = (
    *("q_proj", "v_proj", "q", "v", "query", "value", "q_lin", "v_lin"),
    *("query_key_value", "c_attn", "qkv_proj", "Wqkv", "in_proj"),
)
"""Modules that get an adapter in nearly all types of models, from the table of peft 0.17 to 0.19."""


def _adapted(model: Transformer, stack: Stack, lora: Lora) -> Iterator[Weight]:
    """List the weights of a layer that get an adapter: those of the named modules, or all possible ones."""
    names, modules = dict((*model.family.module_names, *model.family.expert_names)), lora.modules
    if modules == DEFAULT_MODULES:
        modules = _CHOSEN_BY_PEFT
    experts = {name for name, _ in model.family.expert_names}
    for weight in stack.weights:
        if weight.name in LINEAR | experts and (not modules or names.get(weight.name) in modules):
            yield weight


def _width(model: Transformer, weight: Weight) -> int:
    """Return the elements of an adapter per unit of rank; two fused matrices have twice as many."""
    if weight.name == "experts_up":
        return 2 * model.experts * (model.hidden + 2 * model.ffn)
    if weight.name == "experts_down":
        return model.experts * (model.ffn + model.hidden)
    return weight.rows + weight.columns
