"""What a model's `config.json` tells about its shape; never its weights."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zlaunch.errors import Finding, InputMissing, Place, Refused
from zlaunch.trainer_args import flags

MODEL_FLAGS = ("model", "model_name_or_path", "model_id", "model_name", "model_path", "base_model")
"""How scripts name the flag that takes a model."""

UNMAPPED = frozenset({"omdet-turbo"})
"""Model types whose `d_model` is not their width to transformers."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that decide buckets, and where they were read."""

    hidden_size: int | None
    largest_parameter: int | None
    """Elements in the largest single matrix, as far as config.json tells."""
    source: str


def model_flag(argv: Sequence[str]) -> str | None:
    """Find the model a script's command line names."""
    given = {name: value for name, value in flags(argv) if value is not None}
    return next((given[name] for name in MODEL_FLAGS if name in given), None)


def read_shape(directory: Path) -> ModelShape:
    """Read a local model; raise InputMissing without a config.json, Refused if it is no JSON."""
    file = directory if directory.is_file() else directory / "config.json"
    try:
        config = json.loads(file.read_text("utf-8"))
    except OSError:
        raise InputMissing(
            f"the model directory `{directory}` has no config.json",
            "name a directory that `save_pretrained` wrote, or a hub id",
        ) from None
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise Refused(
            [Finding("not-json", f"this is no JSON: {error}", place=Place(str(file), line, 1))]
        ) from None
    if not isinstance(config, dict):
        raise Refused(
            [Finding("not-json", "a model's config is one JSON object", place=Place(str(file), 1, 1))]
        )
    return shape(config, os.path.relpath(file))


def shape(config: Mapping[str, Any], source: str) -> ModelShape:
    """Read the sizes as `transformers.integrations.deepspeed` does: the model's, then its text model's.

    Older models call the width `n_embd` or `d_model`, which transformers maps to `hidden_size`.
    """
    part = config.get("text_config")
    text: Mapping[str, Any] = part if isinstance(part, Mapping) else {}
    older = () if config.get("model_type") in UNMAPPED else ("n_embd", "d_model")
    named = [(config, key) for key in ("hidden_size", "hidden_sizes", *older)]
    named += [(text, key) for key in ("hidden_size", "hidden_sizes")]
    hidden = next((size for part, key in named if (size := _largest(part.get(key)))), None)
    sizes = {**text, **config}
    widest = max((_largest(sizes.get(key)) or 0) for key in ("vocab_size", "intermediate_size"))
    return ModelShape(hidden, hidden * widest if hidden and widest else None, source)


def _largest(size: Any) -> int | None:
    """Some models give one size, some one for each layer."""
    sizes = size if isinstance(size, list) else [size]
    return max((number for number in sizes if isinstance(number, int)), default=None)
