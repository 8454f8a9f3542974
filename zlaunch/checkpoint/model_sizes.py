"""Compare the tensors of a model with the sizes in its config.json."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from zlaunch.errors import Refused
from zlaunch.job.model_families import families
from zlaunch.job.transformer import depth_of, read_transformer
from zlaunch.units import plural, whole

Tensors = Mapping[str, tuple[int, ...]]
"""Name → shape."""

_NUMBERED = re.compile(r"(.*?)\.(\d+)\.")

_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")

_FEWER_LAYERS = frozenset({"albert", "efficientnet"})
"""Types of models, of all in transformers 5, with fewer numbered layers than their config.json says."""

_OTHER_WIDTHS = ("embedding_size", "word_embed_proj_dim")
"""Keys of models whose embedding is narrower than their layers."""

_VARIED = frozenset({"stablelm", "opt", "bert", "roberta", "xlm-roberta", "camembert"})
"""Types of models whose classes or settings change which parameters there are."""

_OF_EXPERTS = ("router", "experts", "shared")
"""How the names of weights begin that not every layer has, or that files have in another form."""

_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Suffixes of classes with a language modeling head."""


def unlike_config(config: Mapping[str, Any], tensors: Tensors) -> str | None:
    """Say what tensors lack of the model that a config.json describes; None if nothing is certain.

    More than it describes is no problem: `from_pretrained` leaves it out. Quantized weights have other
    shapes, and what a model with code of its own makes of its config is not known.
    """
    if not config or "quantization_config" in config or "auto_map" in config:
        return None
    return next(filter(None, _differences(config, tensors)), None)


def _differences(config: Mapping[str, Any], tensors: Tensors) -> Iterator[str | None]:
    yield _layers(config, tensors)
    yield _vocabulary(config, tensors)
    yield _parameters(config, tensors)


def _layers(config: Mapping[str, Any], tensors: Tensors) -> str | None:
    depth = _depth(config)
    deepest = max(map(len, _layer_numbers(tensors).values()), default=0)
    if config.get("model_type") in _FEWER_LAYERS or not 0 < deepest < depth:
        return None
    return f"it has {plural(deepest, 'layer')}, and config.json says {depth}"


def adapter_unlike_config(config: Mapping[str, Any], modules: Iterable[str]) -> str | None:
    """Say in which layers of a model an adapter is missing, if all layers of its type are alike.

    `modules` are the adapted ones, which are in all layers.
    """
    kind = config.get("model_type")
    if kind not in families() or kind in _VARIED or not (depth := _depth(config)):
        return None
    numbers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for module in modules:
        if match := _NUMBERED.match(module):
            numbers[match[1], module[match.end() :]].add(match[2])
    few = {name: len(layers) for (_, name), layers in numbers.items() if len(layers) < depth}
    if not few or len({place for place, _ in numbers}) > 1:  # an encoder and a decoder
        return None
    name, count = min(few.items())
    return f"it has adapters of `{name}` in {plural(count, 'layer')}, and the model has {depth}"


def _depth(config: Mapping[str, Any]) -> int:
    try:
        return depth_of(config)
    except Refused:
        return 0


def _layer_numbers(names: Iterable[str]) -> Mapping[str, set[str]]:
    """Return the numbers of the layers in each list of them."""
    numbers: dict[str, set[str]] = defaultdict(set)
    for name in names:
        if match := _NUMBERED.match(name):
            numbers[match[1]].add(match[2])
    return numbers


def _vocabulary(config: Mapping[str, Any], tensors: Tensors) -> str | None:
    rows, columns = whole(config.get("vocab_size")), whole(config.get("hidden_size"))
    embeddings = [name for name, shape in tensors.items() if name.endswith(_EMBEDDINGS) and len(shape) == 2]
    is_known = config.get("model_type") in families() and config.keys().isdisjoint(_OTHER_WIDTHS)
    if len(embeddings) != 1 or None in (rows, columns) or not is_known:
        return None
    shape = tensors[embeddings[0]]
    if shape == (rows, columns):
        return None
    said = f"`vocab_size` {rows} and `hidden_size` {columns}"
    return f"`{embeddings[0]}` has shape {list(shape)}, and config.json says {said}"


def _parameters(config: Mapping[str, Any], tensors: Tensors) -> str | None:
    """Look for a tensor of the size of each parameter, for types of models whose parameters are known."""
    named, kind = config.get("architectures"), config.get("model_type")
    if not isinstance(named, list) or not named or kind in _VARIED:
        return None
    try:
        model = read_transformer({**config, "architectures": None})
    except Refused:
        return None
    if not model.known:
        return None
    has_head = str(named[0]).endswith(_HEADS)
    weights = model.in_order() if has_head else model.in_order()[: -len(model.head)]
    wanted = Counter(weight.numel for weight in weights if not weight.name.startswith(_OF_EXPERTS))
    lacking = wanted - Counter(map(math.prod, tensors.values()))
    if not lacking:
        return None
    count = f"{plural(lacking.total(), 'tensor')} of {wanted.total()}"
    return f"it lacks {count} that config.json describes, or they have other sizes"
