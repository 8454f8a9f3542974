"""The same architecture with narrow widths and few layers, as a config.json.

Every key that is not a size stays as it is: kinds of layers, tied embeddings, activations, biases.
"""

from collections.abc import Mapping
from typing import Any, Final

from zlaunch.units import whole

HEAD: Final = 16
"""Width of an attention head; rotary embeddings and their sections divide it."""
VOCABULARY: Final = 256

_LIMITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim", "ffn_hidden_size"), 96),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "intermediate_size_mlp"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("n_group", "num_expert_group"), 2),
    **dict.fromkeys(("topk_group", "n_shared_experts"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim"), HEAD),
    "qk_rope_head_dim": HEAD // 2,
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"), 128),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 128),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "vocab_size_per_layer_input"), 64),
    "hidden_size_per_layer_input": HEAD,
}
"""Key → its largest value in a small model."""
_HIDDEN: Final = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim")
_HEADS: Final = (
    *("num_attention_heads", "n_head", "num_heads", "n_heads"),
    *("encoder_attention_heads", "decoder_attention_heads", "attention_heads"),
)
_KEY_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
_HEAD_WIDTHS: Final = ("head_dim", "d_kv", "kv_channels", "global_head_dim", "qk_head_dim")
DEPTHS: Final = (
    *("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "num_encoder_layers"),
    *("num_decoder_layers", "decoder_layers", "depth"),
)
_MOST_KEY_HEADS, _MOST_GROUP = 2, 2
_TOKENS: Final = ("_token_id", "_token_index")


def narrow(config: Mapping[str, Any]) -> dict[str, Any]:
    """Make a model narrow, and take out what is random in training; all its layers stay."""
    small = _small_section(config)
    tokens = _Tokens(_vocabulary(config))
    return {key: _renumbered(key, value, tokens) for key, value in small.items()}


def with_depth(config: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Keep the first layers, and what lists say of each; sections of a model are cut alike."""
    cut: dict[str, Any] = {}
    depths = {number for key in DEPTHS if (number := whole(config.get(key)))}
    for key, value in config.items():
        if key in DEPTHS and whole(value) is not None:
            cut[key] = min(value, depth)
        elif isinstance(value, list) and len(value) in depths:
            cut[key] = value[:depth]
        elif isinstance(value, Mapping):
            cut[key] = with_depth(value, depth)
        else:
            cut[key] = value
    return cut


def deepest(config: Mapping[str, Any]) -> int:
    """Return the layers of the deepest part."""
    most = max((whole(config.get(key)) or 0 for key in DEPTHS), default=0)
    sections = (value for value in config.values() if isinstance(value, Mapping))
    return max([most, *map(deepest, sections)])


def _small_section(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = next((number for key in _HEADS if (number := whole(config.get(key)))), 1)
    key_heads = next((number for key in _KEY_HEADS if (number := whole(config.get(key)))), heads)
    few_key_heads = min(key_heads, _MOST_KEY_HEADS)
    few_heads = few_key_heads * min(heads // key_heads or 1, _MOST_GROUP)
    replaced: dict[str, int] = {
        **dict.fromkeys(_HIDDEN, few_heads * HEAD),
        **dict.fromkeys(_HEADS, few_heads),
        **dict.fromkeys(_KEY_HEADS, few_key_heads),
        **dict.fromkeys(_HEAD_WIDTHS, HEAD),
        "vocab_size": VOCABULARY,
    }
    small: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            small[key] = _small_section(value)
            if key in ("rope_scaling", "rope_parameters"):
                small[key] = _rope(value, float(config.get("partial_rotary_factor", 1.0)))
        elif _is_random(key, value):
            small[key] = 0.0
        elif whole(value) and key in replaced:
            small[key] = replaced[key]
        elif whole(value) and key in _LIMITS:
            small[key] = min(value, _LIMITS[key])
        else:
            small[key] = value
    patch = whole(small.get("patch_size"))
    if patch and whole(small.get("image_size")):
        small["image_size"] = 4 * patch
    return small


def _is_random(key: str, value: object) -> bool:
    """Whether a rate of dropout or of noise: with it, no two runs are the same."""
    return isinstance(value, float) and ("drop" in key or "pdrop" in key or "jitter" in key)


def _rope(scaling: Mapping[str, Any], part: float) -> dict[str, Any]:
    """Fit the lists of a rotary embedding to the narrow heads: one number for each pair of channels.

    `part` is the part of a head that is rotated.
    """
    part = float(scaling.get("partial_rotary_factor", part))
    small = dict(scaling)
    for key, value in scaling.items():
        if isinstance(value, Mapping):
            small[key] = _rope(value, part)
        elif key in ("long_factor", "short_factor"):
            small[key] = value[: int(part * HEAD) // 2]
        elif key == "mrope_section":
            small[key] = [HEAD // 2 - 2 * (HEAD // 6), HEAD // 6, HEAD // 6]
    return small


def _vocabulary(config: Mapping[str, Any]) -> int:
    sizes = [whole(config.get("vocab_size")) or 0]
    text = config.get("text_config")
    if isinstance(text, Mapping):
        sizes.append(whole(text.get("vocab_size")) or 0)
    return max(sizes)


class _Tokens:
    """Gives tokens above the small vocabulary other numbers, the same one wherever a token is named."""

    def __init__(self, vocabulary: int) -> None:
        self._is_cut = vocabulary > VOCABULARY
        self._numbers: dict[int, int] = {}

    def number(self, token: int) -> int:
        if not self._is_cut or token < VOCABULARY // 2:
            return token
        return self._numbers.setdefault(token, VOCABULARY - 1 - len(self._numbers))


def _renumbered(key: str, value: Any, tokens: _Tokens) -> Any:
    if isinstance(value, Mapping):
        return {inner: _renumbered(inner, content, tokens) for inner, content in value.items()}
    if not key.endswith(_TOKENS):
        return value
    if isinstance(value, list):
        return [tokens.number(token) for token in value]
    if whole(value) is None:
        return value
    return tokens.number(value)
