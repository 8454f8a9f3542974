"""Compare the tensors of a model with the sizes in its config.json."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from zlaunch.errors import Refused
from zlaunch.job.model_families import families
from zlaunch.job.transformer import depth_of, read_transformer, with_default_sizes
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

_WRAPPERS = ("module.", "_orig_mod.", "_forward_module.", "_fsdp_wrapped_module.", "base_model.model.")
"""Before all names of a model that was saved with DDP or an engine, `torch.compile`, Lightning, FSDP or peft
around it."""

_CLASSIFIES = ("ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice")
_ANSWERS = ("ForQuestionAnswering",)
_OF_CLASSES = re.compile(r"(?:^|\.)(?:score|classifier|classification_head)\.")
_OF_ANSWERS = re.compile(r"(?:^|\.)qa_outputs\.")


def unlike_config(config: Mapping[str, Any], tensors: Tensors) -> str | None:
    """Say what tensors lack of the model that a config.json describes; None if nothing is certain.

    More than it describes is no problem: `from_pretrained` leaves it out. Quantized weights have other
    shapes, and what a model with code of its own makes of its config is not known.
    """
    if not config or "quantization_config" in config or "auto_map" in config:
        return None
    if (message := next(filter(None, _size_differences(config, tensors)), None)) is not None:
        return message
    message = next(filter(None, _size_differences(with_default_sizes(config), tensors)), None)
    return message and f"{message}; sizes that it leaves out are the defaults of transformers"


def _size_differences(config: Mapping[str, Any], tensors: Tensors) -> Iterator[str | None]:
    if config.get("model_type"):
        yield _common_prefix(tensors)
    yield _layers(config, tensors)
    yield _vocabulary(config, tensors)
    yield _parameters(config, tensors)
    if config.get("model_type") in families():
        yield _unknown_attention(config, tensors)
        yield _head(config, tensors)


def common_wrapper(names: Iterable[str]) -> str | None:
    """Return the prefix of all names that something around the model has left; None if there is none."""
    listed = list(names)
    return next((one for one in _WRAPPERS if all(name.startswith(one) for name in listed)), None)


def _common_prefix(tensors: Tensors) -> str | None:
    wrapper = common_wrapper(tensors)
    if wrapper is None:
        return None
    return f"all its names begin with `{wrapper}`, and `from_pretrained` looks for them without it"


def _unknown_attention(config: Mapping[str, Any], tensors: Tensors) -> str | None:
    """Look for the attention by its name, which other programs than transformers call differently."""
    family = families()[config["model_type"]]
    words = {word.rstrip("+?") for word in family.layer.split()}
    kind = "qkv" if "qkv" in words else "q"
    name = dict(family.module_names)[kind]
    if any(tensor.endswith(f".{name}.weight") for tensor in tensors):
        return None
    return f"it has no `{name}`, as transformers names the attention of `{config['model_type']}`"


def _head(config: Mapping[str, Any], tensors: Tensors) -> str | None:
    """Look for what is trained for the task of the model's class."""
    named = config.get("architectures")
    kind = str(named[0]) if isinstance(named, list) and named else ""
    heads = {_CLASSIFIES: _OF_CLASSES, _ANSWERS: _OF_ANSWERS}
    wanted = next((head for suffixes, head in heads.items() if kind.endswith(suffixes)), None)
    if wanted is None or any(map(wanted.search, tensors)):
        return None
    return f"it has no head of `{kind}`, which config.json names"


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
    if kind in _VARIED:
        return None
    try:
        model = read_transformer({**config, "architectures": None})
    except Refused:
        return None
    if not model.known:
        return None
    has_head = isinstance(named, list) and bool(named) and str(named[0]).endswith(_HEADS)
    if model.family.decoder and not has_head:
        return None  # it may be the encoder alone
    weights = model.in_order() if has_head else model.in_order()[: -len(model.head)]
    wanted = Counter(weight.numel for weight in weights if not weight.name.startswith(_OF_EXPERTS))
    lacking = wanted - Counter(map(math.prod, tensors.values()))
    if not lacking:
        return None
    count = f"{plural(lacking.total(), 'tensor')} of {wanted.total()}"
    return f"it lacks {count} that config.json describes, or they have other sizes"
