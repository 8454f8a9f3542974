"""What is wrong with a model's config.json, or with what is asked of it, before it is built."""

import json
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from zlaunch.errors import Finding, Severity
from zlaunch.job.model import ModelConfig

SIZES = (
    *("hidden_size", "n_embd", "d_model", "vocab_size", "intermediate_size"),
    *("num_hidden_layers", "n_layer", "num_layers", "num_attention_heads", "n_head", "num_key_value_heads"),
)
"""Keys without which, or with nonsense in which, a model cannot be built."""

LARGEST_SIZE = 1 << 31

TABLED = frozenset(
    {
        *("albert", "bart", "bert", "bert-generation", "big_bird", "bigbird_pegasus", "biogpt"),
        *("blenderbot", "blenderbot-small", "codegen", "convbert", "ctrl", "distilbert", "electra"),
        *("ernie", "flaubert", "fnet", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "layoutlm", "marian"),
        *("mbart", "mobilebert", "nystromformer", "openai-gpt", "opt", "pegasus", "plbart", "rembert"),
        *("roformer", "squeezebert", "xlm"),
    }
)
"""Models with a table of positions: a longer sequence ends in an index error."""

PADDED = frozenset(
    {
        *("camembert", "data2vec-text", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm"),
        *("xlm-roberta", "xlm-roberta-xl"),
    }
)
"""Models whose table begins behind the padding token, so that some of its rows are never used."""


def usable_positions(model: ModelConfig) -> int | None:
    """Say how many tokens a sequence may have; None if the model does not limit them."""
    number = model.num_positions
    if number is None or model.kind not in PADDED:
        return number
    padding = model.first("pad_token_id")
    return max(1, number - 1 - (padding if isinstance(padding, int) else 1))


def quantization(model: ModelConfig) -> str | None:
    """Name the method that a model's weights are quantized by; None if they are not."""
    asked = model.first("quantization_config", "compression_config")
    if not asked:
        return None
    named = asked.get("quant_method") if isinstance(asked, Mapping) else None
    return str(named or "bitsandbytes")


def check_model(
    model: ModelConfig, known: Collection[str], seq_len: int | None, trusts_code: bool
) -> list[Finding]:
    """Find what keeps this model from being built, and what a sequence of this length does to it."""
    found = [*_type(model, known, trusts_code), *wrong_sizes(model)]
    if seq_len is not None:
        found += _length(model, seq_len)
    return found


def _type(model: ModelConfig, known: Collection[str], trusts_code: bool) -> Iterator[Finding]:
    kind = model.kind
    if trusts_code and "auto_map" in model.value:
        return
    if not kind:
        message = "`model_type` is missing or is not a name, so it is not known how the model is built"
        hint = "name the config.json of a transformers model"
        where = "model_type" if "model_type" in model.value else ""
        yield model.locate(Finding("no-model-type", message, hint, where))
    elif kind not in known:
        if "auto_map" in model.value:
            hint = "its own code says how: allow it to run with `--trust-remote-code`"
        else:
            meant = get_close_matches(kind, known, 1)
            hint = f"did you mean `{meant[0]}`?" if meant else "a newer transformers may know it"
        message = f"the installed transformers knows no model of type `{kind}`"
        yield model.locate(Finding("unknown-model-type", message, hint, "model_type"))
    elif "auto_map" in model.value:
        message = f"the model brings its own code; without that it is transformers' own `{kind}`"
        hint = "a script that passes `trust_remote_code=True` takes its own: `--trust-remote-code`"
        yield model.locate(Finding("own-code", message, hint, "auto_map", Severity.ADVICE))


def wrong_sizes(model: ModelConfig) -> Iterator[Finding]:
    """Find sizes that no model can have."""
    for part, above in zip(model.parts, ("", "text_config."), strict=False):
        for key in SIZES:
            if (value := part.get(key)) is not None and not _is_size(value):
                message = f"no model has {json.dumps(value)[:60]} here"
                hint = f"write a whole number from 1 to {LARGEST_SIZE - 1}"
                yield model.locate(Finding("absurd-size", message, hint, f"{above}{key}"))


def _is_size(value: Any) -> bool:
    """Some models give a size for each layer, which only their own code can judge."""
    return isinstance(value, list | dict) or (type(value) is int and 0 < value < LARGEST_SIZE)


def _length(model: ModelConfig, seq_len: int) -> Iterator[Finding]:
    most = usable_positions(model)
    if most is None or seq_len <= most:
        return
    ends = model.kind in TABLED | PADDED
    what = (
        "a longer one fails with an index error"
        if ends
        else "it trains on longer ones, but was not made for them"
    )
    yield Finding(
        "sequence-too-long",
        f"a sequence of {seq_len} tokens is longer than the {most} positions of this model: {what}",
        f"`--seq-len {most}` is the most",
        "--seq-len",
        Severity.LATE if ends else Severity.SILENT,
    )
