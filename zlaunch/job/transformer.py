"""A model's config.json read as sizes: its weights in order, and the widths its activations have.

The count is exact for the types in `families.FAMILIES`; any other model with the usual keys is taken
for one built as Llama is, and `known` is false then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from zlaunch.job.model_families import FAMILIES, SHAPES, Family
from zlaunch.job.model_sizes import read_sizes, text_part, widths_of

_HEADS: Final = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
"""How classes end that have a language model's head, the only one that is known here."""
_ACTIVATION_KEYS: Final = ("hidden_activation", "hidden_act", "activation_function", "dense_act_fn")


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter: its name in `families.SHAPES`, with `.bias` for a bias, and its shape."""

    name: str
    rows: int
    columns: int

    @property
    def numel(self) -> int:
        """Count the elements."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class Stack:
    """Equal layers, one after the other."""

    weights: tuple[Weight, ...]
    """Those of one layer."""
    num_layers: int
    num_norms: int
    num_attentions: int

    @property
    def layer_numel(self) -> int:
        """Count the elements of one layer."""
        return sum(weight.numel for weight in self.weights)

    @property
    def expert_numel(self) -> int:
        """Count those of the experts of one layer."""
        return sum(weight.numel for weight in self.weights if weight.name.startswith("experts"))


@dataclass(frozen=True, slots=True)
class Transformer:
    """A model's sizes; widths in elements per token."""

    family: Family
    known: bool
    embedding: tuple[Weight, ...]
    stacks: tuple[Stack, ...]
    head: tuple[Weight, ...]
    """What comes after the layers; without the output matrix where it is the embedding."""
    hidden: int
    query: int
    key: int
    heads: int
    ffn: int
    vocab: int
    experts: int
    top_k: int
    """Experts that each token goes through; 0 without experts."""
    shared: int
    """Width of the expert that every token goes through."""
    window: int
    """Tokens that attention looks back on; 0 for all."""
    activation: str
    gated: bool
    dropouts: int
    """How many of the two sums in a layer have dropout."""
    squashes_logits: bool
    squashes_scores: bool
    """Whether attention scores are squashed, which only eager attention can."""
    tied: bool

    @property
    def parameters(self) -> int:
        """Count all elements."""
        layers = sum(stack.num_layers * stack.layer_numel for stack in self.stacks)
        return layers + sum(weight.numel for weight in (*self.embedding, *self.head))

    @property
    def largest(self) -> int:
        """Count the elements of the largest single parameter."""
        return max(weight.numel for weight in self.in_order())

    @property
    def num_layers(self) -> int:
        """Count the layers of all stacks."""
        return sum(stack.num_layers for stack in self.stacks)

    def in_order(self) -> tuple[Weight, ...]:
        """List all parameters as `model.parameters()` does."""
        layers = (weight for stack in self.stacks for weight in stack.weights * stack.num_layers)
        return (*self.embedding, *layers, *self.head)


def read_transformer(config: Mapping[str, Any]) -> Transformer:
    """Read a model's config.json; raise Refused if it does not say how large the model is.

    Of a model with several parts, such as one that reads images, the text part is read.
    """
    given = text_part(config)
    kind = str(given.get("model_type", ""))
    sizes = read_sizes(given, kind)
    family = FAMILIES.get(kind) or _like(given, sizes)
    widths = widths_of(given, sizes)
    family = _as_configured(family, given)
    stacks = [_stack(family, family.layer, given, widths, sizes["layers"])]
    if family.decoder:
        depth = sizes.get("decoder_layers") or sizes["layers"]
        stacks.append(_stack(family, family.decoder, given, widths, depth))
    tied = bool(given.get("tie_word_embeddings", family.tied))
    head = family.head.replace("lm+", "vocab_bias").replace("lm", "") if tied else family.head
    odds = [given.get(key, default) for key, default in family.dropouts]
    return Transformer(
        family=family,
        known=kind in FAMILIES and "text_config" not in config and _has_language_head(given),
        embedding=_weights(family, family.embedding, given, widths),
        stacks=tuple(stacks),
        head=_weights(family, head, given, widths),
        hidden=widths["hidden"],
        query=widths["query"],
        key=widths["key"],
        heads=sizes["heads"],
        ffn=widths["ffn"],
        vocab=sizes["vocab"],
        experts=widths["experts"],
        top_k=sizes.get("top_k", 0) if "experts_up" in family.layer and widths["experts"] else 0,
        shared=widths["shared"] if "shared_up" in family.layer else 0,
        window=_window(given, sizes),
        activation=_activation(given, family),
        gated="gate" in family.layer.replace("shared_gate", "") or "experts_up" in family.layer,
        dropouts=sum(1 for odd in odds if odd),
        squashes_logits=bool(given.get("final_logit_softcapping")),
        squashes_scores=bool(given.get("attn_logit_softcapping")),
        tied=tied,
    )


def _has_language_head(given: Mapping[str, Any]) -> bool:
    named = given.get("architectures")
    return not isinstance(named, list) or not named or str(named[0]).endswith((*_HEADS, "Model"))


def _like(given: Mapping[str, Any], sizes: Mapping[str, int]) -> Family:
    """Take a model of an unknown type for the known one that it resembles."""
    if given.get("is_encoder_decoder"):
        return FAMILIES["t5"]
    if "experts" in sizes and "top_k" in sizes:
        return FAMILIES["mixtral"]
    if "type_vocab_size" in given:
        return FAMILIES["bert"]
    rms = any("rms" in key for key in given)
    return FAMILIES["llama"] if rms or "num_key_value_heads" in given else FAMILIES["gpt_neox"]


def _as_configured(family: Family, given: Mapping[str, Any]) -> Family:
    """Give a family the matrices that a config switches on."""
    if str(given.get("feed_forward_proj", "")).startswith("gated"):
        layer, decoder = (part.replace("up down", "gate up down") for part in (family.layer, family.decoder))
        names = tuple((name, "wi_1" if name == "up" else called) for name, called in family.module_names)
        return replace(family, layer=layer, decoder=decoder, module_names=names)
    if "types" in family.embedding and "MaskedLM" not in str(given.get("architectures")):
        return replace(family, upcasts_logits=True)  # trained as a decoder, as transformers names it first
    if given.get("mlp_bias"):
        return replace(family, layer=family.layer.replace("gate up down", "gate+ up+ down+"))
    return family


def _stack(
    family: Family, layer: str, given: Mapping[str, Any], widths: Mapping[str, int], depth: int
) -> Stack:
    names = layer.replace("+", "").replace("?", "").split()
    attentions = sum(name in ("q", "qkv") for name in names)
    return Stack(_weights(family, layer, given, widths), depth, names.count("norm"), attentions)


def _weights(
    family: Family, names: str, given: Mapping[str, Any], widths: Mapping[str, int]
) -> tuple[Weight, ...]:
    found = []
    for word in names.split():
        name = word.rstrip("+?")
        rows, columns = (widths[side] for side in SHAPES[name])
        if name == "positions":
            rows += family.offset
        found.append(Weight(name, rows, columns))
        key, default = family.biased
        if word.endswith("+") or (word.endswith("?") and given.get(key, default)):
            found.append(Weight(f"{name}.bias", 1, columns))
    return tuple(found)


def _window(given: Mapping[str, Any], sizes: Mapping[str, int]) -> int:
    """Say how far attention looks back; Qwen's models have a window that is switched off."""
    return sizes.get("window", 0) if given.get("use_sliding_window", True) else 0


def _activation(given: Mapping[str, Any], family: Family) -> str:
    named = next((given[key] for key in _ACTIVATION_KEYS if given.get(key)), None)
    proj = str(given.get("feed_forward_proj", ""))
    if named is None and proj:
        named = {"gated-gelu": "gelu_new"}.get(proj, proj.removeprefix("gated-"))
    return str(named or family.activation)
