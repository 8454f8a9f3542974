"""GPU memory during the backward pass: activations are freed, gradients are added.

`gradients` models the buckets. All sizes in bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from zlaunch.estimate.memory import activations
from zlaunch.estimate.memory.activations import Batch
from zlaunch.estimate.memory.gradients import Gradients, Trained
from zlaunch.estimate.memory.optimizer_states import Breakdown, add
from zlaunch.job.transformer import Transformer


@dataclass(frozen=True, slots=True)
class SavedActivations:
    """What the forward pass saves for the backward pass."""

    layers: tuple[int, ...]
    recomputed: tuple[int, ...]
    """What each layer saves without activation checkpointing, or after recomputation."""
    end: int
    """After the last layer, without the logits."""
    head: activations.Head
    temporary: int = 0
    """What the backward pass of a layer allocates in addition to `activations.working_memory`."""

    @property
    def activations(self) -> int:
        """Return the sum at the beginning of the backward pass, without the logits."""
        return sum(self.layers) + self.end


def trained(model: Transformer, adapters: int) -> Trained:
    """List the trained parameters: all, or so many elements of adapters, spread over the layers."""
    if adapters:
        share = adapters // model.num_layers
        return Trained((), ((share,),) * model.num_layers, ())
    layers = (
        tuple(weight.numel for weight in stack.weights)
        for stack in model.stacks
        for _ in range(stack.num_layers)
    )
    embedding, head = ((weight.numel for weight in weights) for weights in (model.embedding, model.head))
    return Trained(tuple(embedding), tuple(layers), tuple(head))


Experts = Literal["viewed", "merged"] | None
"""Whether autograd saves the experts of a layer: as the storage of a view, or as a sum with adapters."""


def saved_activations(
    model: Transformer, batch: Batch, *, checkpointing: bool, experts: Experts = None
) -> SavedActivations:
    """Compute what the forward pass saves."""
    recomputed = tuple(
        activations.saved_by_layer(model, stack, batch) + (batch.item * stack.expert_numel if experts else 0)
        for stack in model.stacks
        for _ in range(stack.num_layers)
    )
    inputs = activations.saved_by_checkpoint(model, batch)
    shared = activations.saved_beside_checkpoints(model, batch)
    layers = (inputs + shared, *(inputs,) * (len(recomputed) - 1)) if checkpointing else recomputed
    end = activations.saved_at_end(model, batch) * len(model.stacks)
    temporary = 0
    if experts == "merged":  # the gradient of the sum, for one of the two tensors at a time
        temporary = batch.item * max(stack.expert_numel for stack in model.stacks) // 3
    return SavedActivations(layers, recomputed, end, activations.head(model, batch), temporary)


def backward(
    model: Transformer, batch: Batch, saved: SavedActivations, gradients: Gradients, weights: Trained
) -> Iterator[tuple[int, Breakdown]]:
    """Yield the memory at the peaks of the backward pass, with the elements that are still to be used.

    Those are the parameters up to and including the current layer.
    """
    total = model.parameters
    yield total, {"activations": saved.activations, "logits": saved.head.saved + saved.head.backward}
    output = batch.item * model.hidden * model.vocab if weights.embedding else 0
    yield total, {"activations": saved.activations, "logits": saved.head.gradient, "gradients": output}
    # The output's gradient of a tied matrix is kept until the embedding's is computed.
    waiting = output if model.tied else 0
    _arrive(gradients, weights.head)
    below, working = sum(saved.layers), activations.working_memory(model, batch) + saved.temporary
    sizes = [stack.layer_numel for stack in model.stacks for _ in range(stack.num_layers)]
    ahead = total - sum(weight.numel for weight in model.head)
    for number in reversed(range(len(sizes))):
        here, recomputed = saved.layers[number], saved.recomputed[number]
        layer = {"activations": below if recomputed == here else below + recomputed}
        yield ahead, add(layer, {"activations": working}, _breakdown(gradients, waiting))
        temporary = _arrive(gradients, weights.layers[number])
        yield ahead, add(layer, _breakdown(gradients, waiting + temporary))
        below, ahead = below - here, ahead - sizes[number]
    # Their sum is a third tensor: the first is a view, to which autograd does not add in place.
    yield ahead, _breakdown(gradients, 3 * waiting)
    yield ahead, _breakdown(gradients, _arrive(gradients, weights.embedding))
    last = gradients.reduce_all(weights.in_order()) if gradients.waits else gradients.flush()
    yield 0, _breakdown(gradients, last)


def _arrive(gradients: Gradients, numels: tuple[int, ...]) -> int:
    return max((gradients.arrive(numel) for numel in reversed(numels)), default=0)


def _breakdown(gradients: Gradients, temporary: int) -> Breakdown:
    return {"gradients": gradients.held + temporary, "buckets": gradients.buckets}
