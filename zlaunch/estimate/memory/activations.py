"""Activations that a forward pass saves for the backward pass, and the operations of both passes.

Counts what autograd saves in the layers of transformers 5 (torch 2.13): a matrix product its input, a
normalization its input and its result in fp32, flash attention its inputs, its output and one fp32 number
per head. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), count
the same way, for other layers and without flash attention. All sizes in bytes.
"""

from dataclasses import dataclass
from typing import Final, Literal

from zlaunch.job.transformer import Stack, Transformer

_SAVED_BY_ACTIVATION: Final = {"relu": 1, "relu2": 2, "quick_gelu": 3, "gelu_new": 5, "gelu_fast": 5}
"""Tensors of the MLP's width saved by an activation function and the next matrix; 2 for other functions.
`gelu_new` is implemented in Python, in steps that each save a tensor."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch."""

    num_sequences: int
    seq_len: int
    item: int
    """Bytes per element: 2 or 4."""
    attention: str = "sdpa"
    frozen: bool = False
    """Whether the model's own weights are frozen, so that nothing is saved for their gradients."""

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.num_sequences * self.seq_len

    @property
    def is_half(self) -> bool:
        """Whether the dtype is bf16 or fp16."""
        return self.item == 2


@dataclass(frozen=True, slots=True)
class Head:
    """Memory of output layer and loss."""

    saved: int
    """Saved for the backward pass."""
    forward: int
    """Peak in the forward pass, in addition to `saved`."""
    backward: int
    """Peak in the backward pass, in addition to `saved`."""
    gradient: int
    """The gradient of the logits after `saved` was freed."""


@dataclass(frozen=True, slots=True)
class SavedActivations:
    """What the forward pass saves for the backward pass."""

    layers: tuple[int, ...]
    recomputed: tuple[int, ...]
    """What each layer saves without activation checkpointing, or after recomputation."""
    end: int
    """After the last layer, without the logits."""
    head: Head
    temporary: int = 0
    """What the backward pass of a layer allocates in addition to `working_memory`."""

    @property
    def activations(self) -> int:
        """Return the sum at the beginning of the backward pass, without the logits."""
        return sum(self.layers) + self.end


Experts = Literal["viewed", "merged"] | None
"""Whether autograd saves the experts of a layer: as the storage of a view, or as a sum with adapters."""


def saved_activations(
    model: Transformer, batch: Batch, *, checkpointing: bool, experts: Experts = None
) -> SavedActivations:
    """Compute what the forward pass saves."""
    recomputed = tuple(
        saved_by_layer(model, stack, batch) + (batch.item * stack.expert_numel if experts else 0)
        for stack in model.stacks
        for _ in range(stack.num_layers)
    )
    inputs = saved_by_checkpoint(model, batch)
    # T5's layers share position biases, which activation checkpointing does not free: each stack passes one
    # per head and pair of tokens, with its mask, from layer to layer (measured).
    shared = 3 * batch.item * model.heads * batch.seq_len**2 if model.family.norm == "t5" else 0
    layers = (inputs + shared, *(inputs,) * (len(recomputed) - 1)) if checkpointing else recomputed
    # The last normalization, and the dense layer of an encoder's head.
    dense = any(weight.name == "dense" for weight in model.head)
    width = _norm(model, batch) + batch.item + (2 * batch.item if dense else 0)
    end = batch.tokens * width * model.hidden * len(model.stacks)
    temporary = 0
    if experts == "merged":  # the gradient of the sum, for one of the two tensors at a time
        temporary = batch.item * max(stack.expert_numel for stack in model.stacks) // 3
    return SavedActivations(layers, recomputed, end, head(model, batch), temporary)


def saved_by_layer(model: Transformer, stack: Stack, batch: Batch) -> int:
    """Return what one layer saves without activation checkpointing."""
    per_token = _norms(model, stack, batch) + _mlp(model, batch.item)
    per_token += _attention(model, stack, batch)
    per_token += model.dropouts * model.hidden
    return batch.tokens * per_token


def saved_by_checkpoint(model: Transformer, batch: Batch) -> int:
    """Return what one layer saves with activation checkpointing: its input."""
    return batch.tokens * batch.item * model.hidden


def head(model: Transformer, batch: Batch) -> Head:
    """Return the memory for logits and loss: for most models, an fp32 copy and its log-softmax.

    In the backward pass, the gradients of both exist at the same time, after the logits were freed.
    """
    logits = batch.tokens * model.vocab * batch.item
    loss = 4 * batch.tokens * model.vocab if model.family.upcasts_logits else logits
    capped = logits if model.caps_logits else 0
    copies = loss if model.family.upcasts_logits and batch.is_half else 0
    return Head(saved=loss + capped, forward=logits + copies, backward=2 * loss, gradient=logits + capped)


def working_memory(model: Transformer, batch: Batch) -> int:
    """Return the peak of the backward pass of a layer, in addition to its saved activations.

    In a gated MLP, the gradients of both factors exist while the factors do. Otherwise a gradient replaces
    the activation that it is computed from, and there is one more.
    """
    wide = model.ffn * max(1, model.top_k) + model.shared
    return batch.tokens * batch.item * ((2 if model.gated else 1) * wide + 2 * model.hidden)


def step_flops(model: Transformer, batch: Batch, *, recomputed: bool, trainable: int | None = None) -> float:
    """Return the floating-point operations of the matrix products in one micro-step.

    Two per weight and token in the forward pass, four in the backward pass (two of them for the gradients
    of trained weights), and the forward pass again if activations are `recomputed`. Attention adds 4·s·q
    per token and layer in the forward pass, half of that with causal flash attention, and twice as much
    in the backward pass, where flash attention recomputes half of it.
    """
    share = 1.0 if trainable is None else trainable / max(1, model.parameters)
    causal = 0.5 if _skips_masked(model, batch) else 1.0
    attentions = sum(stack.num_layers * stack.num_attentions for stack in model.stacks)
    attention = 4.0 * causal * batch.seq_len * model.query * attentions
    output = 2.0 * model.hidden * model.vocab
    weights = 2.0 * _active_weights(model)
    backward = 2.0 if _has_scores(model, batch) else 2.5
    passes = 2 * (weights + output) + (weights + output) * share + (1 + backward) * attention
    return batch.tokens * (passes + (weights + attention - _not_recomputed(model) if recomputed else 0.0))


def counted_too_much(model: Transformer, batch: Batch, *, recomputed: bool) -> float:
    """Return the operations that `torch.utils.flop_counter` counts and causal kernels skip.

    It counts the whole square of attention scores, once forward and 2.5 times backward.
    """
    if not _skips_masked(model, batch):
        return 0.0
    attentions = sum(stack.num_layers * stack.num_attentions for stack in model.stacks)
    square = 4.0 * batch.tokens * batch.seq_len * model.query * attentions
    return square / 2 * (4.5 if recomputed else 3.5)


def _skips_masked(model: Transformer, batch: Batch) -> bool:
    """Whether the attention kernel skips masked scores; not if scores or masks are tensors."""
    as_tensors = _has_scores(model, batch) or 0 < model.window < batch.seq_len
    return model.family.upcasts_logits and not as_tensors


def _has_scores(model: Transformer, batch: Batch) -> bool:
    """Whether attention computes its scores as tensors, without a fused kernel."""
    return batch.attention == "eager" or model.caps_scores or model.family.eager


def _not_recomputed(model: Transformer) -> float:
    """Return the operations of a layer's last matrix, which is not recomputed if nothing needs its output."""
    if model.dropouts:
        return 0.0
    return 2.0 * _active_weights(model, ("down", "experts_down", "shared_down"), most_norms=2)


def _norm(model: Transformer, batch: Batch) -> int:
    """Return the bytes per element that a normalization saves, also for the gradient of its weight."""
    item = batch.item
    saved, for_weight = {
        "rms": (4, item),
        "gemma": (4, 4),
        "t5": (4 + item, item),
        "layer": (item, 0),
        "upcast": (4, 4),
    }[model.family.norm]
    return saved + (0 if batch.frozen else for_weight)


def _norms(model: Transformer, stack: Stack, batch: Batch) -> int:
    """Return what normalizations save, and the inputs of the matrices that follow them."""
    inputs = 1 if model.family.parallel else stack.num_norms
    # With four in a layer, two follow the matrices, and their outputs are not saved.
    outputs = stack.num_norms if stack.num_norms < 4 else 2
    width = inputs * _norm(model, batch) + outputs * batch.item
    on_heads = any(weight.name in ("head_norm", "query_norm") for weight in stack.weights)
    return width * model.hidden + (_norm(model, batch) * (model.query + model.key) if on_heads else 0)


def _attention(model: Transformer, stack: Stack, batch: Batch) -> int:
    """Return what all attentions of a layer save: queries, keys, values, output, and scores."""
    item, query, key = batch.item, model.query, model.key
    saved = item * (query + 2 * key) + item * query
    if model.family.rotary != "none" and "qkv" in model.family.layer:
        saved += item * (query + key)  # the values are a view, which keeps the fused product alive
    masked = 0 < model.window < batch.seq_len
    square = model.heads * batch.seq_len
    if _has_scores(model, batch):
        # The softmax in fp32 and its copy; keys and values are repeated for all query heads.
        scores = square * (4 + item + (item if model.caps_scores else 0)) + item * 2 * (query - key)
        scores += (4 - item) * (query + key) if model.family.eager else 0
    elif masked:
        # No flash attention with a mask: each layer saves it, and keys and values are repeated.
        scores = 4 * model.heads + item * (batch.seq_len + 2 * (query - key))
    elif not batch.is_half and key < query:
        scores = item * (square + 2 * (query - key))  # no fp32 kernel supports fewer key heads
    else:
        # With partial rotary embeddings, the kernel's output has another layout and is copied.
        scores = 4 * model.heads + (item * query if model.family.rotary == "part" else 0)
    relative = item * square // batch.num_sequences if model.family.norm == "t5" else 0
    return stack.num_attentions * (saved + scores) + relative


def _mlp(model: Transformer, item: int) -> int:
    functions = _SAVED_BY_ACTIVATION.get(model.activation, 2) + (2 if model.gated else 0)
    if model.top_k:
        experts = model.top_k * (functions * model.ffn + 2 * model.hidden)
        return item * (experts + functions * model.shared)
    dropped = (item + 1) * model.ffn if model.family.norm == "t5" and model.dropouts else 0
    return item * functions * model.ffn + dropped


def _active_weights(model: Transformer, names: tuple[str, ...] = (), most_norms: int = 9) -> float:
    """Return the elements of all layers' matrices, or the named ones, that are applied to a token."""
    return sum(
        stack.num_layers * weight.numel * (model.top_k / model.experts if "experts" in weight.name else 1.0)
        for stack in model.stacks
        if stack.num_norms <= most_norms
        for weight in stack.weights
        if weight.rows > 1 and (not names or weight.name in names)
    )
