"""Checks of a model's config.json and of the sequence length, before the model is built."""

import json
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches

from zlaunch.errors import Finding, Severity
from zlaunch.job.file_kinds import kind_of_config
from zlaunch.job.model import ModelConfig

SIZES = (
    *("hidden_size", "n_embd", "d_model", "vocab_size", "intermediate_size"),
    *("num_hidden_layers", "n_layer", "num_layers", "num_attention_heads", "n_head", "num_key_value_heads"),
)
"""Keys that must be valid sizes."""

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
"""Models with a table of positions: longer sequences raise an index error."""

PADDED = frozenset(
    {
        *("camembert", "data2vec-text", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm"),
        *("xlm-roberta", "xlm-roberta-xl"),
    }
)
"""Models whose position table starts after the padding index, so that its first rows are unused."""


def usable_positions(model: ModelConfig) -> int | None:
    """Return the maximum sequence length; None if the model has no limit."""
    number = model.num_positions
    if number is None or model.kind not in PADDED:
        return number
    padding = model.first("pad_token_id")
    if not isinstance(padding, int):
        padding = 1
    return max(1, number - 1 - padding)


def quantization(model: ModelConfig) -> str | None:
    """Return the quantization method of the weights; None if they are not quantized."""
    config = model.first("quantization_config", "compression_config")
    if not config:
        return None
    if isinstance(config, Mapping) and config.get("quant_method"):
        return str(config["quant_method"])
    return "bitsandbytes"


def check_model(
    model: ModelConfig, known: Collection[str], seq_len: int | None, trusts_code: bool
) -> list[Finding]:
    """Check that transformers can build the model, and that it supports the sequence length.

    `known` are the model types of the installed transformers.
    """
    findings = [*_type(model, known, trusts_code), *wrong_sizes(model)]
    if seq_len is not None:
        findings += _length(model, seq_len)
    return findings


def _type(model: ModelConfig, known: Collection[str], trusts_code: bool) -> Iterator[Finding]:
    kind = model.kind
    if trusts_code and "auto_map" in model.value:
        return
    if not kind:
        message = "`model_type` is missing or not a string, so the architecture is unknown"
        hint = "use the config.json of a transformers model"
        if (other := kind_of_config(model.value)) is not None:
            message = f"it is {other}, not the config.json of a model"
            hint = "name a model; its ds_config is given with `--ds-config FILE`"
        where = "model_type" if "model_type" in model.value else ""
        yield model.locate(Finding("no-model-type", message, hint, where))
    elif kind not in known:
        hint = "a newer transformers may support it"
        if "auto_map" in model.value:
            hint = "allow its custom code to run: `--trust-remote-code`"
        elif similar := get_close_matches(kind, known, 1):
            hint = f"did you mean `{similar[0]}`?"
        message = f"the installed transformers has no model type `{kind}`"
        yield model.locate(Finding("unknown-model-type", message, hint, "model_type"))
    elif "auto_map" in model.value:
        message = f"the model has custom code; the estimate uses `{kind}` of transformers instead"
        hint = "if your script passes `trust_remote_code=True`, add `--trust-remote-code`"
        yield model.locate(Finding("own-code", message, hint, "auto_map", Severity.ADVICE))


def wrong_sizes(model: ModelConfig) -> Iterator[Finding]:
    """Find impossible sizes."""
    for section, prefix in zip(model.sections, ("", "text_config."), strict=False):
        for key in SIZES:
            if (value := section.get(key)) is not None and not _is_size(value):
                message = f"{json.dumps(value)[:60]} is not a valid size"
                hint = f"write an integer from 1 to {LARGEST_SIZE - 1}"
                yield model.locate(Finding("absurd-size", message, hint, f"{prefix}{key}"))


def _is_size(value: object) -> bool:
    """Whether a size may be valid; lists of sizes by layer are not checked."""
    return isinstance(value, list | dict) or (type(value) is int and 0 < value < LARGEST_SIZE)


def _length(model: ModelConfig, seq_len: int) -> Iterator[Finding]:
    most = usable_positions(model)
    if most is None or seq_len <= most:
        return
    effect, severity = "training works, but the model was not made for it", Severity.IGNORED
    if model.kind in TABLED | PADDED:
        effect, severity = "training fails with an index error", Severity.FAILS_LATER
    yield Finding(
        "sequence-too-long",
        f"a sequence of {seq_len} tokens is longer than the {most} positions of the model: {effect}",
        f"write `--seq-len {most}` or less",
        "--seq-len",
        severity,
    )
