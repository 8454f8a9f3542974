"""What a forward pass keeps for the backward pass, and how much work both are.

Counted from what autograd saves in transformers 5's layers (torch 2.13): each matrix product its
input, a normalization its input and what it made of it in fp32, flash attention its inputs, its output
and one fp32 number per head. Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models" (2022), count the same way, for other layers and without flash attention.
All sizes in bytes.
"""

from dataclasses import dataclass
from typing import Final

from zlaunch.job.transformer import Stack, Transformer

_SAVED_BY_ACTIVATION: Final = {
    "relu": 1,
    "relu2": 2,
    "quick_gelu": 3,
    "gelu_new": 5,
    "gelu_fast": 5,
}
"""How many tensors of the MLP's width an activation function and the next matrix keep; others two.
`gelu_new` is written out in Python, in steps that each keep their result."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes through the model at once."""

    num_sequences: int
    seq_len: int
    item: int
    """Bytes of a number: 2 or 4."""
    attention: str = "sdpa"
    frozen: bool = False
    """Whether the model's own weights are not trained, so that nothing is kept for their gradients."""

    @property
    def tokens(self) -> int:
        """Count the tokens."""
        return self.num_sequences * self.seq_len

    @property
    def is_half(self) -> bool:
        """Say whether it is computed in bf16 or fp16."""
        return self.item == 2


@dataclass(frozen=True, slots=True)
class Head:
    """What the output layer and the loss take, beside what the layers keep."""

    saved: int
    """Until the backward pass."""
    forward: int
    """At the most in the forward pass, on top of `saved`."""
    backward: int
    """At the most in the backward pass, on top of `saved`."""
    gradient: int
    """The gradient of the logits as the output matrix gets it, when `saved` is gone."""


def saved_by_layer(model: Transformer, stack: Stack, batch: Batch) -> int:
    """Say what one layer keeps without activation checkpointing."""
    per_token = _norms(model, stack, batch) + _mlp(model, batch.item)
    per_token += _attention(model, stack, batch)
    per_token += model.dropouts * model.hidden
    return batch.tokens * per_token


def saved_by_checkpoint(model: Transformer, batch: Batch) -> int:
    """Say what one layer keeps with activation checkpointing: its input."""
    return batch.tokens * batch.item * model.hidden


def saved_beside_checkpoints(model: Transformer, batch: Batch) -> int:
    """Say what all layers share and activation checkpointing does not free: T5's biases of positions.

    Each stack hands one for each head and pair of tokens, with its mask, from layer to layer; measured.
    """
    if model.family.norm != "t5":
        return 0
    return 3 * batch.item * model.heads * batch.seq_len**2


def saved_at_end(model: Transformer, batch: Batch) -> int:
    """Say what the last normalization keeps, and what an encoder's head puts before it."""
    dense = any(weight.name == "dense" for weight in model.head)
    width = _norm(model, batch) + batch.item + (2 * batch.item if dense else 0)
    return batch.tokens * width * model.hidden


def head(model: Transformer, batch: Batch) -> Head:
    """Say what the logits take: a copy in fp32 and its logarithmic softmax, for most models.

    The gradients of both exist at once in the backward pass; the logits themselves are gone then.
    """
    logits = batch.tokens * model.vocab * batch.item
    loss = 4 * batch.tokens * model.vocab if model.family.upcasts_logits else logits
    capped = logits if model.squashes_logits else 0
    copies = loss if model.family.upcasts_logits and batch.is_half else 0
    return Head(saved=loss + capped, forward=logits + copies, backward=2 * loss, gradient=logits + capped)


def working_memory(model: Transformer, batch: Batch) -> int:
    """Say what the backward pass of a layer takes, at the most, beside what the layer kept.

    In a gated MLP the gradients of both factors exist while the factors do; elsewhere a gradient
    takes the place of what it is computed from, and the next one beside it.
    """
    wide = model.ffn * max(1, model.top_k) + model.shared
    return batch.tokens * batch.item * ((2 if model.gated else 1) * wide + 2 * model.hidden)


def step_flops(model: Transformer, batch: Batch, *, recomputed: bool, trainable: int | None = None) -> float:
    """Count the floating-point operations of one micro-step, in matrix products.

    Two for each weight and token forward, four backward (two of them for the gradients of weights
    that are trained), and the forward pass again where activations are `recomputed`; attention adds
    4·s·q per token and layer forward, of which a causal model's flash attention leaves out half, and
    twice as much backward, where flash attention computes half of it again.
    """
    share = 1.0 if trainable is None else trainable / max(1, model.parameters)
    causal = 0.5 if _halves(model, batch) else 1.0
    attentions = sum(stack.num_layers * stack.num_attentions for stack in model.stacks)
    attention = 4.0 * causal * batch.seq_len * model.query * attentions
    output = 2.0 * model.hidden * model.vocab
    weights = 2.0 * _active_weights(model)
    backward = 2.0 if _has_scores(model, batch) else 2.5
    passes = 2 * (weights + output) + (weights + output) * share + (1 + backward) * attention
    return batch.tokens * (passes + (weights + attention - _not_again(model) if recomputed else 0.0))


def counted_too_much(model: Transformer, batch: Batch, *, recomputed: bool) -> float:
    """Say what torch counts of a micro-step (`torch.utils.flop_counter`) and causal kernels leave out.

    It counts the whole square of each attention, once forward and two and a half times backward.
    """
    if not _halves(model, batch):
        return 0.0
    attentions = sum(stack.num_layers * stack.num_attentions for stack in model.stacks)
    square = 4.0 * batch.tokens * batch.seq_len * model.query * attentions
    return square / 2 * (4.5 if recomputed else 3.5)


def _halves(model: Transformer, batch: Batch) -> bool:
    """Say whether attention leaves out what comes later; not where scores or masks are tensors."""
    as_tensors = _has_scores(model, batch) or 0 < model.window < batch.seq_len
    return model.family.upcasts_logits and not as_tensors


def _has_scores(model: Transformer, batch: Batch) -> bool:
    """Say whether the scores of attention are tensors, as no kernel computes it."""
    return batch.attention == "eager" or model.squashes_scores or model.family.eager


def _not_again(model: Transformer) -> float:
    """Say what is not computed again: a layer's last matrix, if nothing after it keeps anything."""
    if model.dropouts:
        return 0.0
    return 2.0 * _active_weights(model, ("down", "experts_down", "shared_down"), most_norms=2)


def _norm(model: Transformer, batch: Batch) -> int:
    """Bytes per element that a normalization keeps of its input, and for the gradient of its weight."""
    item = batch.item
    kept, for_weight = {
        "rms": (4, item),
        "gemma": (4, 4),
        "t5": (4 + item, item),
        "layer": (item, 0),
        "upcast": (4, 4),
    }[model.family.norm]
    return kept + (0 if batch.frozen else for_weight)


def _norms(model: Transformer, stack: Stack, batch: Batch) -> int:
    """What normalizations keep, and the inputs of the matrices that follow them."""
    inputs = 1 if model.family.parallel else stack.num_norms
    # Where a layer has four, two follow the matrices, and nothing keeps what they make.
    outputs = stack.num_norms if stack.num_norms < 4 else 2
    width = inputs * _norm(model, batch) + outputs * batch.item
    on_heads = any(weight.name in ("head_norm", "query_norm") for weight in stack.weights)
    return width * model.hidden + (_norm(model, batch) * (model.query + model.key) if on_heads else 0)


def _attention(model: Transformer, stack: Stack, batch: Batch) -> int:
    """What all attentions of a layer keep: queries, keys, values, what comes out, and scores."""
    item, query, key = batch.item, model.query, model.key
    kept = item * (query + 2 * key) + item * query
    if model.family.rotary != "none" and "qkv" in model.family.layer:
        kept += item * (query + key)  # the fused product stays for the sake of its values
    masked = 0 < model.window < batch.seq_len
    square = model.heads * batch.seq_len
    if _has_scores(model, batch):
        # The softmax in fp32 and its copy; keys and values are repeated for each query.
        scores = square * (4 + item + (item if model.squashes_scores else 0)) + item * 2 * (query - key)
        scores += (4 - item) * (query + key) if model.family.eager else 0
    elif masked:
        # A mask rules flash attention out: it is kept in every layer, and keys and values are repeated.
        scores = 4 * model.heads + item * (batch.seq_len + 2 * (query - key))
    elif not batch.is_half and key < query:
        scores = item * (square + 2 * (query - key))  # no kernel takes fewer keys than queries in fp32
    else:
        # What was cut and put together for positions comes out of the kernel in another order.
        scores = 4 * model.heads + (item * query if model.family.rotary == "part" else 0)
    relative = item * square // batch.num_sequences if model.family.norm == "t5" else 0
    return stack.num_attentions * (kept + scores) + relative


def _mlp(model: Transformer, item: int) -> int:
    functions = _SAVED_BY_ACTIVATION.get(model.activation, 2) + (2 if model.gated else 0)
    if model.top_k:
        experts = model.top_k * (functions * model.ffn + 2 * model.hidden)
        return item * (experts + functions * model.shared)
    dropped = (item + 1) * model.ffn if model.family.norm == "t5" and model.dropouts else 0
    return item * functions * model.ffn + dropped


def _active_weights(model: Transformer, names: tuple[str, ...] = (), most_norms: int = 9) -> float:
    """Count the elements of all layers' matrices, or of those named, that a token is multiplied with."""
    return sum(
        stack.num_layers * weight.numel * (model.top_k / model.experts if "experts" in weight.name else 1.0)
        for stack in model.stacks
        if stack.num_norms <= most_norms
        for weight in stack.weights
        if weight.rows > 1 and (not names or weight.name in names)
    )
