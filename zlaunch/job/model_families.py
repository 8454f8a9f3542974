"""The structure of each `model_type` in transformers 5: its weights in order, and what affects memory.

A layer is a list of names from `SHAPES`. `+` after a name means that it has a bias, `?` that the config key
in `biased` decides.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

SHAPES: Final[dict[str, tuple[str, str]]] = {
    "q": ("hidden", "query"),
    "k": ("hidden", "key"),
    "v": ("hidden", "key"),
    "qkv": ("hidden", "fused"),
    "o": ("query", "hidden"),
    "gate": ("hidden", "ffn"),
    "up": ("hidden", "ffn"),
    "gate_up": ("hidden", "2ffn"),
    "down": ("ffn", "hidden"),
    "router": ("hidden", "experts"),
    "experts_up": ("hidden", "experts*2ffn"),
    "experts_down": ("experts*ffn", "hidden"),
    "shared_gate": ("hidden", "shared"),
    "shared_up": ("hidden", "shared"),
    "shared_down": ("shared", "hidden"),
    "shared_router": ("hidden", "one"),
    "norm": ("one", "hidden"),
    "head_norm": ("one", "head"),
    "query_norm": ("one", "query"),
    "key_norm": ("one", "key"),
    "tokens": ("vocab", "hidden"),
    "positions": ("positions", "hidden"),
    "types": ("types", "hidden"),
    "relative": ("buckets", "heads"),
    "dense": ("hidden", "hidden"),
    "lm": ("hidden", "vocab"),
    "vocab_bias": ("one", "vocab"),
}
"""Name of a weight → rows and columns, as names of widths; a vector has one row."""

LINEAR: Final = frozenset(
    {
        *("q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down"),
        *("shared_gate", "shared_up", "shared_down", "shared_router"),
    }
)
"""Matrices that can have a LoRA adapter."""

Names = tuple[tuple[str, str], ...]


def _names(text: str) -> Names:
    """Parse `q=q_proj k=k_proj`."""
    return tuple((weight, module) for weight, _, module in (word.partition("=") for word in text.split()))


_LLAMA_NAMES: Final = _names(
    "q=q_proj k=k_proj v=v_proj qkv=qkv_proj o=o_proj gate=gate_proj up=up_proj gate_up=gate_up_proj "
    "down=down_proj"
)


@dataclass(frozen=True, slots=True)
class Family:
    """The structure of all models of a type."""

    layer: str
    embedding: str = "tokens"
    head: str = "norm lm"
    decoder: str = ""
    """A layer of the second stack, if there is one."""
    norm: Literal["rms", "gemma", "t5", "layer", "upcast"] = "rms"
    """`upcast`: a layer norm implemented in Python, in fp32."""
    rotary: Literal["whole", "part", "none"] = "whole"
    """Whether rotary embeddings apply to whole heads or to a part that is split off and concatenated."""
    parallel: bool = False
    """Whether attention and MLP have the same input."""
    tied: bool = False
    """The default of `tie_word_embeddings`."""
    biased: tuple[str, bool] = ("attention_bias", False)
    """The config key behind `?`, and its default."""
    activation: str = "silu"
    """The default of the activation function."""
    dropouts: tuple[tuple[str, float], ...] = ()
    """Config keys of the dropouts on the outputs of attention and MLP, and their defaults."""
    upcasts_logits: bool = True
    """Whether the loss is computed in fp32."""
    offset: int = 0
    """Rows of the position table beyond the configured positions."""
    module_names: Names = _LLAMA_NAMES
    """Names of the matrices in LoRA's `target_modules`."""
    expert_names: Names = ()
    """The same for experts and their router, if PEFT supports adapters for them
    (`peft.utils.transformers_weight_conversion`)."""
    eager: bool = False
    """Whether attention has no fused kernel and computes its scores as fp32 tensors."""


_LLAMA = Family("q? k? v? o? gate up down norm norm")
_GEMMA = Family("q? k? v? o? gate up down norm norm", norm="gemma", tied=True, activation="gelu_pytorch_tanh")
_GPT2 = Family(
    "norm+ qkv+ o+ norm+ up+ down+",
    embedding="tokens positions",
    head="norm+ lm",
    norm="layer",
    rotary="none",
    tied=True,
    activation="gelu_new",
    dropouts=(("resid_pdrop", 0.1), ("resid_pdrop", 0.1)),
    module_names=_names("qkv=c_attn o=c_proj up=c_fc down=c_proj"),
)
_BERT = Family(
    "q+ k+ v+ o+ norm+ up+ down+ norm+",
    embedding="tokens positions types norm+",
    head="vocab_bias dense+ norm+ lm",
    norm="layer",
    rotary="none",
    tied=True,
    activation="gelu",
    dropouts=(("hidden_dropout_prob", 0.1), ("hidden_dropout_prob", 0.1)),
    upcasts_logits=False,
    module_names=_names("q=query k=key v=value o=dense up=dense down=dense"),
)
_T5 = Family(
    "q k v o norm up down norm",
    embedding="tokens relative relative",
    decoder="q k v o norm q k v o norm up down norm",
    head="norm norm lm",
    norm="t5",
    rotary="none",
    tied=True,
    activation="relu",
    dropouts=(("dropout_rate", 0.1), ("dropout_rate", 0.1)),
    upcasts_logits=False,
    module_names=_names("q=q k=k v=v o=o gate=wi_0 up=wi down=wo"),
)
_MIXTRAL = Family(
    "q k v o router experts_up experts_down norm norm",
    expert_names=_names("router=gate experts_up=w1 experts_down=w2"),
)

FAMILIES: Final[dict[str, Family]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "granite": _LLAMA,
    "smollm3": replace(_LLAMA, tied=True),
    "qwen2": replace(_LLAMA, layer="q+ k+ v+ o gate up down norm norm"),
    "qwen3": replace(_LLAMA, layer="q? k? v? o? head_norm head_norm gate up down norm norm"),
    "olmo2": replace(_LLAMA, layer="q? k? v? o? query_norm key_norm gate up down norm norm", norm="gemma"),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, layer="q? k? v? o? gate up down norm norm norm norm"),
    "gemma3_text": replace(_GEMMA, layer="q? k? v? o? head_norm head_norm gate up down norm norm norm norm"),
    "phi3": Family(
        "o qkv gate_up down norm norm", rotary="part", dropouts=(("resid_pdrop", 0.0), ("resid_pdrop", 0.0))
    ),
    "phi": Family(
        "q+ k+ v+ o+ up+ down+ norm+",
        head="norm+ lm+",
        norm="layer",
        rotary="part",
        parallel=True,
        activation="gelu_new",
        dropouts=(("resid_pdrop", 0.0), ("resid_pdrop", 0.0)),
        module_names=_names("q=q_proj k=k_proj v=v_proj o=dense up=fc1 down=fc2"),
    ),
    "starcoder2": Family(
        "q? k? v? o? up? down? norm+ norm+",
        head="norm+ lm",
        norm="layer",
        tied=True,
        biased=("use_bias", True),
        activation="gelu_pytorch_tanh",
        dropouts=(("residual_dropout", 0.0), ("residual_dropout", 0.0)),
        module_names=(*_LLAMA_NAMES[:5], *_names("up=c_fc down=c_proj")),
    ),
    "stablelm": Family(
        "q? k? v? o gate up down norm+ norm+",
        head="norm+ lm",
        norm="layer",
        rotary="part",
        biased=("use_qkv_bias", False),
    ),
    "cohere": Family("q? k? v? o? gate up down norm", norm="upcast", parallel=True, tied=True),
    "gpt2": _GPT2,
    "gptj": Family(
        "norm+ k v q o up+ down+",
        head="norm+ lm+",
        norm="layer",
        rotary="part",
        parallel=True,
        activation="gelu_new",
        dropouts=(("resid_pdrop", 0.0), ("resid_pdrop", 0.0)),
        module_names=(*_LLAMA_NAMES[:3], *_names("o=out_proj up=fc_in down=fc_out")),
        eager=True,
    ),
    "gpt_neox": Family(
        "norm+ norm+ qkv? o? up+ down+",
        head="norm+ lm",
        norm="layer",
        rotary="part",
        parallel=True,
        biased=("attention_bias", True),
        activation="gelu",
        dropouts=(("hidden_dropout", 0.0), ("hidden_dropout", 0.0)),
        module_names=_names("qkv=query_key_value o=dense up=dense_h_to_4h down=dense_4h_to_h"),
    ),
    "opt": Family(
        "k? v? q? o? norm+ up? down? norm+",
        embedding="tokens positions",
        head="norm+ lm",
        norm="layer",
        rotary="none",
        tied=True,
        biased=("enable_bias", True),
        activation="relu",
        dropouts=(("dropout", 0.1), ("dropout", 0.1)),
        offset=2,
        module_names=(*_LLAMA_NAMES[:3], *_names("o=out_proj up=fc1 down=fc2")),
    ),
    "mixtral": _MIXTRAL,
    "qwen3_moe": replace(
        _MIXTRAL,
        layer="q? k? v? o? head_norm head_norm router experts_up experts_down norm norm",
        expert_names=_names("router=gate experts_up=gate_proj experts_down=down_proj"),
    ),
    "qwen2_moe": replace(
        _MIXTRAL,
        layer="q? k? v? o router experts_up experts_down "
        "shared_gate shared_up shared_down shared_router norm norm",
        biased=("qkv_bias", True),
        module_names=(
            *_LLAMA_NAMES,
            *_names("shared_gate=gate_proj shared_up=up_proj shared_down=down_proj"),
            ("shared_router", "shared_expert_gate"),
        ),
        expert_names=(),
    ),
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "t5": _T5,
    "mt5": replace(_T5, tied=False),
}
