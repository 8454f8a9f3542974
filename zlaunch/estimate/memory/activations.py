"""Activations that a forward pass saves for the backward pass, and the operations of both passes.

Counts what autograd saves in the layers of transformers 5 (torch 2.13): a matrix product its input, a
normalization its input and its result in fp32, flash attention its inputs, its output and one fp32 number
per head. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), count
the same way, for other layers and without flash attention. All sizes in bytes.
"""

from typing import Final, Literal

from zlaunch.frozen import dataclass
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
    fed: frozenset[str] | None = None
    """Names of the matrices whose inputs are saved; None if those of all are."""

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
    recomputed: list[int] = []
    for stack in model.stacks:
        saved = saved_by_layer(model, stack, batch)
        if experts:
            saved += batch.item * stack.expert_numel
        recomputed += [saved] * stack.num_layers
    layers = recomputed
    if checkpointing:
        layers = [saved_by_checkpoint(model, batch)] * len(recomputed)
        if model.family.norm == "t5":
            # T5's layers share position biases, which activation checkpointing does not free: each stack
            # passes one per head and pair of tokens, with its mask, from layer to layer (measured).
            layers[0] += 3 * batch.item * model.heads * batch.seq_len**2
    width = _norm(model, batch) + batch.item  # of the last normalization
    if any(weight.name == "dense" for weight in model.head):  # the dense layer of an encoder's head
        width += 2 * batch.item
    end = batch.tokens * width * model.hidden * len(model.stacks)
    temporary = 0
    if experts == "merged":  # the gradient of the sum, for one of the two tensors at a time
        temporary = batch.item * max(stack.expert_numel for stack in model.stacks) // 3
    return SavedActivations(tuple(layers), tuple(recomputed), end, head(model, batch), temporary)


def saved_by_layer(model: Transformer, stack: Stack, batch: Batch) -> int:
    """Return what one layer saves without activation checkpointing."""
    per_token = _norms(model, stack, batch) + _mlp(model, batch.item)
    per_token += _attention(model, stack, batch)
    per_token += model.dropouts * model.hidden - batch.item * _unsaved_inputs(model, batch)
    return batch.tokens * per_token


def _unsaved_inputs(model: Transformer, batch: Batch) -> int:
    """Return the elements per token that only matrices would save whose gradients nothing needs."""
    if batch.fed is None or model.top_k:
        return 0
    after_norms = [{"q", "k", "v", "qkv"}, {"gate", "up", "gate_up"}]
    if model.family.parallel:
        after_norms = [{"q", "k", "v", "qkv", "gate", "up", "gate_up"}]
    elements = sum(model.hidden for names in after_norms if batch.fed.isdisjoint(names))
    if "down" not in batch.fed and _SAVED_BY_ACTIVATION.get(model.activation, 2) > 1:
        elements += model.ffn
    if "o" not in batch.fed and model.family.rotary == "part" and not _has_scores(model, batch):
        elements += model.query  # the copy of the kernel's output
    return elements


def saved_by_checkpoint(model: Transformer, batch: Batch) -> int:
    """Return what one layer saves with activation checkpointing: its input."""
    return batch.tokens * batch.item * model.hidden


def head(model: Transformer, batch: Batch) -> Head:
    """Return the memory for logits and loss: for most models, an fp32 copy and its log-softmax.

    In the backward pass, the gradients of both exist at the same time, after the logits were freed.
    """
    logits = batch.tokens * model.vocab * batch.item
    loss, forward, capped = logits, logits, 0
    if model.family.upcasts_logits:
        loss = 4 * batch.tokens * model.vocab
        if batch.is_half:
            forward += loss
    if model.caps_logits:
        capped = logits
    return Head(saved=loss + capped, forward=forward, backward=2 * loss, gradient=logits + capped)


def working_memory(model: Transformer, batch: Batch) -> int:
    """Return the peak of the backward pass of a layer, in addition to its saved activations.

    In a gated MLP, the gradients of both factors exist while the factors do. Otherwise a gradient replaces
    the activation that it is computed from, and there is one more.
    """
    wide = model.ffn * max(1, model.top_k) + model.shared
    if model.gated:
        wide *= 2
    return batch.tokens * batch.item * (wide + 2 * model.hidden)


def step_flops(model: Transformer, batch: Batch, *, recomputed: bool, trainable: int | None = None) -> float:
    """Return the floating-point operations of the matrix products in one micro-step.

    Two per weight and token in the forward pass, four in the backward pass (two of them for the gradients
    of trained weights), and the forward pass again if activations are `recomputed`. Attention adds 4·s·q
    per token and layer in the forward pass, half of that with causal flash attention, and twice as much
    in the backward pass, where flash attention recomputes half of it.
    """
    trained_share = 1.0
    if trainable is not None:
        trained_share = trainable / max(1, model.parameters)
    attentions = sum(stack.num_layers * stack.num_attentions for stack in model.stacks)
    attention = 4.0 * batch.seq_len * model.query * attentions
    if _skips_masked(model, batch):
        attention /= 2
    output = 2.0 * model.hidden * model.vocab
    weights = 2.0 * _active_weights(model)
    backward = 2.5
    if _has_scores(model, batch):
        backward = 2.0
    passes = 2 * (weights + output) + (weights + output) * trained_share + (1 + backward) * attention
    if recomputed:
        passes += weights + attention - _not_recomputed(model)
    return batch.tokens * passes


def counted_too_much(model: Transformer, batch: Batch, *, recomputed: bool) -> float:
    """Return the operations that `torch.utils.flop_counter` counts and causal kernels skip.

    It counts the whole square of attention scores, once forward and 2.5 times backward.
    """
    if not _skips_masked(model, batch):
        return 0.0
    attentions = sum(stack.num_layers * stack.num_attentions for stack in model.stacks)
    square = 4.0 * batch.tokens * batch.seq_len * model.query * attentions
    passes = 3.5
    if recomputed:
        passes += 1
    return square / 2 * passes


def _skips_masked(model: Transformer, batch: Batch) -> bool:
    """Whether the attention kernel skips masked scores; not if scores or masks are tensors."""
    as_tensors = _has_scores(model, batch) or 0 < model.window < batch.seq_len
    return model.family.upcasts_logits and not as_tensors


def _has_scores(model: Transformer, batch: Batch) -> bool:
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
    if not batch.frozen:
        saved += for_weight
    return saved


def _norms(model: Transformer, stack: Stack, batch: Batch) -> int:
    """Return what normalizations save, and the inputs of the matrices that follow them."""
    norm = _norm(model, batch)
    inputs = outputs = stack.num_norms
    if model.family.parallel:
        inputs = 1
    if stack.num_norms >= 4:  # two of them follow the matrices, and their outputs are not saved
        outputs = 2
    saved = (inputs * norm + outputs * batch.item) * model.hidden
    if any(weight.name in ("head_norm", "query_norm") for weight in stack.weights):
        saved += norm * (model.query + model.key)
    return saved


def _attention(model: Transformer, stack: Stack, batch: Batch) -> int:
    """Return what all attentions of a layer save: queries, keys, values, output, and scores."""
    item, query, key = batch.item, model.query, model.key
    saved = item * (query + 2 * key) + item * query + _scores(model, batch)
    if model.family.rotary != "none" and "qkv" in model.family.layer:
        saved += item * (query + key)  # the values are a view, which keeps the fused product alive
    saved *= stack.num_attentions
    if model.family.norm == "t5":  # its relative positions
        saved += item * model.heads * batch.seq_len // batch.num_sequences
    return saved


def _scores(model: Transformer, batch: Batch) -> int:
    """Return what an attention saves in addition to queries, keys, values and output."""
    item, query, key = batch.item, model.query, model.key
    square = model.heads * batch.seq_len
    if _has_scores(model, batch):
        # The softmax in fp32 and its copy; keys and values are repeated for all query heads.
        scores = square * (4 + item) + item * 2 * (query - key)
        if model.caps_scores:
            scores += square * item
        if model.family.eager:
            scores += (4 - item) * (query + key)
        return scores
    if 0 < model.window < batch.seq_len:
        # No flash attention with a mask: each layer saves it, and keys and values are repeated.
        return 4 * model.heads + item * (batch.seq_len + 2 * (query - key))
    if not batch.is_half and key < query:
        return item * (square + 2 * (query - key))  # no fp32 kernel supports fewer key heads
    scores = 4 * model.heads
    if model.family.rotary == "part":  # the kernel's output has another layout and is copied
        scores += item * query
    return scores


def _mlp(model: Transformer, item: int) -> int:
    functions = _SAVED_BY_ACTIVATION.get(model.activation, 2)
    if model.gated:
        functions += 2
    if model.top_k:
        experts = model.top_k * (functions * model.ffn + 2 * model.hidden)
        return item * (experts + functions * model.shared)
    saved = item * functions * model.ffn
    if model.family.norm == "t5" and model.dropouts:
        saved += (item + 1) * model.ffn
    return saved


def _active_weights(model: Transformer, names: tuple[str, ...] = (), most_norms: int = 9) -> float:
    """Return the elements of all layers' matrices, or the named ones, that are applied to a token."""
    active = 0.0
    for stack in model.stacks:
        if stack.num_norms > most_norms:
            continue
        for weight in stack.weights:
            if weight.rows <= 1 or (names and weight.name not in names):
                continue
            numel = float(stack.num_layers * weight.numel)
            if "experts" in weight.name:
                numel *= model.top_k / model.experts
            active += numel
    return active
