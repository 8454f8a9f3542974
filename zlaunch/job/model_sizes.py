"""Sizes of a model from its config.json, under the key names of all model types."""

from collections.abc import Mapping
from typing import Final

from zlaunch.errors import Finding, Refused
from zlaunch.units import whole

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


def text_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return the keys of a model, overridden by those of its `text_config` if it has one."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, Mapping) else dict(config)


def depth_of(config: Mapping[str, object]) -> int:
    """Return the layers of the deepest stack, 0 if unknown; raise Refused if the number is impossible."""
    given = text_config(config)
    depths = {key: whole(given.get(key)) or 0 for name in _DEPTHS for key in _KEYS[name]}
    key, depth = max(depths.items(), key=lambda item: item[1])
    if depth > _MOST_LAYERS:
        hint = f"write a number from 1 to {_MOST_LAYERS}"
        raise Refused([Finding("absurd-size", f"no model has {depth} layers", hint, where=key)])
    return depth


def read_sizes(given: Mapping[str, object], kind: str) -> dict[str, int]:
    """Return all known sizes; raise Refused if a required one is missing."""
    depth_of(given)
    found = {}
    for size, keys in _KEYS.items():
        values = [number for key in keys if (number := whole(given.get(key)) or 0) > 0]
        if values:
            found[size] = values[0]
    missing = [_KEYS[name][0] for name in _NEEDED if name not in found]
    if "experts" not in found:  # under an unknown key they would be ignored
        missing += [key for key in given if "experts" in key and (whole(given[key]) or 0) > 1][:1]
    if missing:
        raise Refused([_no_sizes(kind, missing)])
    return found


def widths_of(sizes: Mapping[str, int]) -> dict[str, int]:
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


def _no_sizes(kind: str, missing: list[str]) -> Finding:
    keys = ", ".join(f"`{key}`" for key in missing)
    return Finding(
        "model-without-sizes",
        f"the model's config.json{f' (`{kind}`)' if kind else ''} has no valid {keys}",
        "name a config.json that `save_pretrained` wrote",
        where=missing[0],
    )
