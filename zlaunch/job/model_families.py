"""The structure of each `model_type` in transformers 5, as `model_families.json` has it.

A layer is a list of weights in order, with names from `SHAPES`. `+` after a name means that it has a bias,
`?` that the config key in `biased` decides. A family that is `like` another has its other values.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from zlaunch.frozen import dataclass

FILE: Final = Path(__file__).with_name("model_families.json")

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


_LLAMA_NAMES: Final = (
    *(("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("qkv", "qkv_proj"), ("o", "o_proj")),
    *(("gate", "gate_proj"), ("up", "up_proj"), ("gate_up", "gate_up_proj"), ("down", "down_proj")),
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


@cache
def families() -> Mapping[str, Family]:
    """Read the families by `model_type`."""
    found: dict[str, Family] = {}
    for kind, row in json.loads(FILE.read_text("utf-8")).items():
        values = {name: _frozen_value(value) for name, value in row.items() if name != "like"}
        found[kind] = replace(found[row["like"]], **values) if "like" in row else Family(**values)
    return found


def _frozen_value(value: Any) -> Any:
    """Turn objects into pairs and lists into tuples, which do not change."""
    if isinstance(value, dict):
        return tuple(value.items())
    if isinstance(value, list):
        return tuple(map(_frozen_value, value))
    return value
