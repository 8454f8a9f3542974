"""How full the GPU is from the loss to the last gradient: activations go, gradients come.

The layers are walked from the last to the first; what becomes of gradients is in `gradients`.
All sizes in bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from zlaunch.estimate.memory import activations
from zlaunch.estimate.memory.activations import Batch
from zlaunch.estimate.memory.gradients import Gradients, Trained
from zlaunch.estimate.memory.optimizer_states import Parts, add_by_name
from zlaunch.job.transformer import Transformer


@dataclass(frozen=True, slots=True)
class SavedActivations:
    """What the forward pass leaves for the backward pass."""

    layers: tuple[int, ...]
    whole: tuple[int, ...]
    """What each layer keeps while it is worked on: more, if it is computed again."""
    end: int
    head: activations.Head
    beside: int = 0
    """What the backward pass of a layer takes beside what its activations do."""

    @property
    def activations(self) -> int:
        """Add up what is there when the backward pass begins, without the logits."""
        return sum(self.layers) + self.end


def trained(model: Transformer, adapters: int) -> Trained:
    """List what is trained: everything, or adapters of so many elements, spread over the layers."""
    if adapters:
        share = adapters // model.num_layers
        return Trained((), ((share,),) * model.num_layers, ())
    layers = (
        tuple(weight.numel for weight in stack.weights)
        for stack in model.stacks
        for _ in range(stack.num_layers)
    )
    embedding, head = ((weight.numel for weight in part) for part in (model.embedding, model.head))
    return Trained(tuple(embedding), tuple(layers), tuple(head))


Experts = Literal["viewed", "merged"] | None
"""Whether a layer keeps its experts until its backward pass: the storage that a view of them holds, or
their sum with what adapters learned."""


def saved_activations(
    model: Transformer, batch: Batch, *, checkpointing: bool, experts: Experts = None
) -> SavedActivations:
    """Say what the forward pass leaves."""
    whole = tuple(
        activations.saved_by_layer(model, stack, batch) + (batch.item * stack.expert_numel if experts else 0)
        for stack in model.stacks
        for _ in range(stack.num_layers)
    )
    inputs = activations.saved_by_checkpoint(model, batch)
    shared = activations.saved_beside_checkpoints(model, batch)
    layers = (inputs + shared, *(inputs,) * (len(whole) - 1)) if checkpointing else whole
    end = activations.saved_at_end(model, batch) * len(model.stacks)
    beside = 0
    if experts == "merged":  # a sum has a gradient, one of the two tensors at a time
        beside = batch.item * max(stack.expert_numel for stack in model.stacks) // 3
    return SavedActivations(layers, whole, end, activations.head(model, batch), beside)


def backward(
    model: Transformer, batch: Batch, left: SavedActivations, gradients: Gradients, weights: Trained
) -> Iterator[tuple[int, Parts]]:
    """Walk through the backward pass and yield the moments at which much is there.

    With each comes how many parameters are still to be used: those up to the layer it is in.
    """
    total = model.parameters
    yield total, {"activations": left.activations, "logits": left.head.saved + left.head.backward}
    output = batch.item * model.hidden * model.vocab if weights.embedding else 0
    yield total, {"activations": left.activations, "logits": left.head.gradient, "gradients": output}
    # The gradient of a tied matrix waits for its other half, the embedding's.
    waiting = output if model.tied else 0
    _arrive(gradients, weights.head)
    below, working = sum(left.layers), activations.working_memory(model, batch) + left.beside
    sizes = [stack.layer_numel for stack in model.stacks for _ in range(stack.num_layers)]
    ahead = total - sum(weight.numel for weight in model.head)
    for number in reversed(range(len(sizes))):
        here, whole = left.layers[number], left.whole[number]
        layer = {"activations": below if whole == here else below + whole}
        yield ahead, add_by_name(layer, {"activations": working}, _parts(gradients, waiting))
        moment = _arrive(gradients, weights.layers[number])
        yield ahead, add_by_name(layer, _parts(gradients, waiting + moment))
        below, ahead = below - here, ahead - sizes[number]
    # Their sum is a third: the first is a view, which autograd does not add to in place.
    yield ahead, _parts(gradients, 3 * waiting)
    yield ahead, _parts(gradients, _arrive(gradients, weights.embedding))
    last = gradients.reduce_all(weights.in_order()) if gradients.waits else gradients.flush()
    yield 0, _parts(gradients, last)


def _arrive(gradients: Gradients, numels: tuple[int, ...]) -> int:
    return max((gradients.arrive(numel) for numel in reversed(numels)), default=0)


def _parts(gradients: Gradients, moment: int) -> Parts:
    return {"gradients": gradients.held + moment, "buckets": gradients.buckets}
