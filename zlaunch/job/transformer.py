"""A transformer as sizes, read from config.json: its weights in order, and the widths of its activations.

The number of parameters is exact for the types in `model_families.json`. Any other type is treated like
the most similar known one, and `known` is False.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

from zlaunch.errors import Finding, Refused
from zlaunch.frozen import dataclass
from zlaunch.job.model_families import SHAPES, Family, families
from zlaunch.units import whole

DEFAULT_SIZES: Final = Path(__file__).with_name("default_sizes.json")

_KEYS: Final = {
    "hidden": ("hidden_size", "d_model", "n_embd", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"),
    "heads": (
        "num_attention_heads",
        "n_head",
        "num_heads",
        "n_heads",
        "encoder_attention_heads",
        "attention_heads",
    ),
    "vocab": ("vocab_size",),
    "ffn": (
        "intermediate_size",
        "ffn_dim",
        "d_ff",
        "n_inner",
        "hidden_dim",
        "ffn_hidden_size",
        "encoder_ffn_dim",
    ),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head": ("head_dim", "d_kv", "kv_channels"),
    "positions": ("max_position_embeddings", "n_positions", "n_ctx"),
    "types": ("type_vocab_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "expert_ffn": ("moe_intermediate_size",),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"),
    "shared": ("shared_expert_intermediate_size",),
    "buckets": ("relative_attention_num_buckets",),
    "decoder_layers": ("num_decoder_layers", "decoder_layers"),
    "window": ("sliding_window",),
}
"""Size → config keys, the usual one first."""
_DEPTHS: Final = ("layers", "decoder_layers")
_NEEDED: Final = ("hidden", "layers", "heads", "vocab")
_MOST_LAYERS: Final = 10_000
"""No model has more, and transformers would take minutes to build it."""
_HEADS: Final = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
"""Suffixes of classes with a language modeling head, the only one that is supported."""
_ACTIVATION_KEYS: Final = ("hidden_activation", "hidden_act", "activation_function", "dense_act_fn")


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter: its name in `model_families.SHAPES`, with `.bias` for a bias, and its shape."""

    name: str
    rows: int
    columns: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class Stack:
    """A sequence of equal layers."""

    weights: tuple[Weight, ...]
    """The weights of one layer."""
    num_layers: int
    num_norms: int
    num_attentions: int

    @property
    def layer_numel(self) -> int:
        """Elements of one layer."""
        return sum(weight.numel for weight in self.weights)

    @property
    def expert_numel(self) -> int:
        """Elements of the experts of one layer."""
        return sum(weight.numel for weight in self.weights if weight.name.startswith("experts"))


@dataclass(frozen=True, slots=True)
class Transformer:
    """The sizes of a model; widths in elements per token."""

    family: Family
    known: bool
    embedding: tuple[Weight, ...]
    stacks: tuple[Stack, ...]
    head: tuple[Weight, ...]
    """Weights after the layers; without the output matrix if it is tied to the embedding."""
    hidden: int
    query: int
    key: int
    heads: int
    ffn: int
    vocab: int
    experts: int
    top_k: int
    """Experts per token; 0 without experts."""
    shared: int
    """Width of the shared expert."""
    window: int
    """Tokens in the attention window; 0 for all."""
    activation: str
    gated: bool
    dropouts: int
    """Number of residual additions in a layer with dropout."""
    caps_logits: bool
    caps_scores: bool
    """Whether attention scores are soft-capped, which only eager attention supports."""
    tied: bool

    @property
    def parameters(self) -> int:
        """Elements of all parameters."""
        layers = sum(stack.num_layers * stack.layer_numel for stack in self.stacks)
        return layers + sum(weight.numel for weight in (*self.embedding, *self.head))

    @property
    def largest(self) -> int:
        """Elements of the largest parameter."""
        return max(weight.numel for weight in self.in_order())

    @property
    def num_layers(self) -> int:
        """Layers of all stacks."""
        return sum(stack.num_layers for stack in self.stacks)

    def shared_by(self, ranks: int) -> "Transformer":
        """Return what one of some ranks has of each layer and of the output matrix, as AutoTP shares them.

        Embeddings and norms are whole on each rank. Parts are rounded up.
        """
        stacks = tuple(replace(stack, weights=_part_of_a_rank(stack.weights, ranks)) for stack in self.stacks)
        widths = {
            name: -(-getattr(self, name) // ranks) for name in ("query", "key", "heads", "ffn", "shared")
        }
        return replace(self, stacks=stacks, head=_part_of_a_rank(self.head, ranks), **widths)

    def in_order(self) -> tuple[Weight, ...]:
        """List all parameters in the order of `model.parameters()`."""
        layers = chain(*(stack.weights * stack.num_layers for stack in self.stacks))
        return (*self.embedding, *layers, *self.head)


_BY_COLUMNS: Final = frozenset(
    {
        *("q", "k", "v", "qkv", "gate", "up", "gate_up", "shared_gate", "shared_up", "experts_up", "lm"),
        *("q.bias", "k.bias", "v.bias", "qkv.bias", "gate.bias", "up.bias", "gate_up.bias"),
    }
)
_BY_ROWS: Final = frozenset({"o", "down", "shared_down", "experts_down"})
"""Weights that ranks share by their outputs, and by their inputs."""


def _part_of_a_rank(weights: tuple[Weight, ...], ranks: int) -> tuple[Weight, ...]:
    parts = []
    for weight in weights:
        part = weight
        if weight.name in _BY_COLUMNS:
            part = replace(weight, columns=-(-weight.columns // ranks))
        elif weight.name in _BY_ROWS:
            part = replace(weight, rows=-(-weight.rows // ranks))
        parts.append(part)
    return tuple(parts)


def read_transformer(config: Mapping[str, object]) -> Transformer:
    """Read a config.json; raise Refused if it has no sizes.

    Of a multimodal model, only the text model is read.
    """
    given = _text_config(config)
    kind = str(given.get("model_type", ""))
    sizes = _read_sizes(given, kind)
    family = families().get(kind) or _like(given, sizes)
    widths = _widths_of(sizes)
    family = _as_configured(family, given)
    stacks = [_stack(family, family.layer, given, widths, sizes["layers"])]
    if family.decoder:
        depth = sizes.get("decoder_layers") or sizes["layers"]
        stacks.append(_stack(family, family.decoder, given, widths, depth))
    tied = bool(given.get("tie_word_embeddings", family.tied))
    head = family.head
    if tied:
        head = head.replace("lm+", "vocab_bias").replace("lm", "")
    top_k = shared = 0
    if "experts_up" in family.layer and widths["experts"]:
        top_k = sizes.get("top_k", 0)
    if "shared_up" in family.layer:
        shared = widths["shared"]
    dropouts = [given.get(key, default) for key, default in family.dropouts]
    return Transformer(
        family=family,
        known=kind in families() and "text_config" not in config and _has_language_head(given),
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
        top_k=top_k,
        shared=shared,
        window=_window(given, sizes),
        activation=_activation(given, family),
        gated="gate" in family.layer.replace("shared_gate", "") or "experts_up" in family.layer,
        dropouts=sum(map(bool, dropouts)),
        caps_logits=bool(given.get("final_logit_softcapping")),
        caps_scores=bool(given.get("attn_logit_softcapping")),
        tied=tied,
    )


def with_default_sizes(config: Mapping[str, object]) -> Mapping[str, object]:
    """Add the sizes that transformers gives a model of a known type whose config.json does not have them."""
    usual = _default_sizes().get(str(config.get("model_type")), {})
    given = {key for keys in _KEYS.values() if not config.keys().isdisjoint(keys) for key in keys}
    return {**{key: size for key, size in usual.items() if key not in given}, **config}


@cache
def _default_sizes() -> Mapping[str, Mapping[str, int]]:
    sizes: dict[str, dict[str, int]] = json.loads(DEFAULT_SIZES.read_text("utf-8"))
    return sizes


def _text_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return the keys of a model, overridden by those of its `text_config` if it has one."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return dict(config)
    return {**config, **text}


def depth_of(config: Mapping[str, object]) -> int:
    """Return the layers of the deepest stack, 0 if unknown; raise Refused if the number is impossible."""
    given = _text_config(config)
    keys = chain.from_iterable(_KEYS[name] for name in _DEPTHS)
    depths = {key: whole(given.get(key)) or 0 for key in keys}
    key, depth = max(depths.items(), key=lambda item: item[1])
    if depth > _MOST_LAYERS:
        hint = f"write a number from 1 to {_MOST_LAYERS}"
        raise Refused([Finding("absurd-size", f"no model has {depth} layers", hint, where=key)])
    return depth


def _read_sizes(given: Mapping[str, object], kind: str) -> dict[str, int]:
    """Return all known sizes; raise Refused if a required one is missing."""
    depth_of(given)
    sizes = {}
    for size, keys in _KEYS.items():
        values = [number for key in keys if (number := whole(given.get(key)) or 0) > 0]
        if values:
            sizes[size] = values[0]
    missing = [_KEYS[name][0] for name in _NEEDED if name not in sizes]
    if "experts" not in sizes:  # under an unknown key they would be ignored
        missing += [key for key in given if "experts" in key and (whole(given[key]) or 0) > 1][:1]
    if missing:
        file = "the model's config.json"
        if kind:
            file += f" (`{kind}`)"
        message = f"{file} has no valid {', '.join(f'`{key}`' for key in missing)}"
        hint = "name a config.json that `save_pretrained` wrote"
        raise Refused([Finding("model-without-sizes", message, hint, where=missing[0])])
    return sizes


def _widths_of(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the widths that `SHAPES` refers to."""
    hidden, heads = sizes["hidden"], sizes["heads"]
    head = sizes.get("head") or max(1, hidden // heads)
    query, key = heads * head, sizes.get("kv_heads", heads) * head
    ffn = sizes.get("expert_ffn") or sizes.get("ffn") or 4 * hidden
    experts = sizes.get("experts", 0)
    return {
        "one": 1,
        "hidden": hidden,
        "heads": heads,
        "head": head,
        "query": query,
        "key": key,
        "fused": query + 2 * key,
        "ffn": ffn,
        "2ffn": 2 * ffn,
        "experts": experts,
        "experts*ffn": experts * ffn,
        "experts*2ffn": experts * 2 * ffn,
        "shared": sizes.get("shared", 0),
        "vocab": sizes["vocab"],
        "positions": sizes.get("positions", 0),
        "types": sizes.get("types", 0),
        "buckets": sizes.get("buckets", 0),
    }


def _has_language_head(given: Mapping[str, object]) -> bool:
    named = given.get("architectures")
    return not isinstance(named, list) or not named or str(named[0]).endswith((*_HEADS, "Model"))


def _like(given: Mapping[str, object], sizes: Mapping[str, int]) -> Family:
    """Return the family that a model of an unknown type resembles most."""
    if given.get("is_encoder_decoder"):
        return families()["t5"]
    if "experts" in sizes and "top_k" in sizes:
        return families()["mixtral"]
    if "type_vocab_size" in given:
        return families()["bert"]
    if "num_key_value_heads" in given or any("rms" in key for key in given):
        return families()["llama"]
    return families()["gpt_neox"]


def _as_configured(family: Family, given: Mapping[str, object]) -> Family:
    """Add the matrices that a config enables."""
    if str(given.get("feed_forward_proj", "")).startswith("gated"):
        layer, decoder = (part.replace("up down", "gate up down") for part in (family.layer, family.decoder))
        names = dict(family.module_names)
        if "up" in names:
            names["up"] = "wi_1"
        return replace(family, layer=layer, decoder=decoder, module_names=tuple(names.items()))
    if "types" in family.embedding and "MaskedLM" not in str(given.get("architectures")):
        return replace(family, upcasts_logits=True)  # transformers' first class for the type is a decoder
    if given.get("mlp_bias"):
        return replace(family, layer=family.layer.replace("gate up down", "gate+ up+ down+"))
    return family


def _stack(
    family: Family, layer: str, given: Mapping[str, object], widths: Mapping[str, int], depth: int
) -> Stack:
    names = layer.replace("+", "").replace("?", "").split()
    attentions = sum(name in ("q", "qkv") for name in names)
    return Stack(_weights(family, layer, given, widths), depth, names.count("norm"), attentions)


def _weights(
    family: Family, names: str, given: Mapping[str, object], widths: Mapping[str, int]
) -> tuple[Weight, ...]:
    weights = []
    for word in names.split():
        name = word.rstrip("+?")
        rows, columns = (widths[side] for side in SHAPES[name])
        if name == "positions":
            rows += family.offset
        weights.append(Weight(name, rows, columns))
        key, default = family.biased
        if word.endswith("+") or (word.endswith("?") and given.get(key, default)):
            weights.append(Weight(f"{name}.bias", 1, columns))
    return tuple(weights)


def _window(given: Mapping[str, object], sizes: Mapping[str, int]) -> int:
    """Return the attention window; Qwen models have one that is disabled by default."""
    if not given.get("use_sliding_window", True):
        return 0
    return sizes.get("window", 0)


def _activation(given: Mapping[str, object], family: Family) -> str:
    named = next((given[key] for key in _ACTIVATION_KEYS if given.get(key)), None)
    proj = str(given.get("feed_forward_proj", ""))
    if named is None and proj:
        named = {"gated-gelu": "gelu_new"}.get(proj, proj.removeprefix("gated-"))
    return str(named or family.activation)
