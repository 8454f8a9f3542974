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
    return shape(config, os.path.relpath(file))


def shape(config: Mapping[str, Any], source: str) -> ModelShape:
    """Read the sizes as `transformers.integrations.deepspeed` does: the text model's if it has parts."""
    text: Mapping[str, Any] = config.get("text_config") or {}
    hidden = _size(config) or _size(text)
    sizes = {**text, **config}
    widest = max(
        (int(sizes[key]) for key in ("vocab_size", "intermediate_size") if sizes.get(key)), default=0
    )
    return ModelShape(hidden, hidden * widest if hidden and widest else None, source)


def _size(config: Mapping[str, Any]) -> int | None:
    """Widths go by many names; `n_embd` and `d_model` are what `hidden_size` maps to in older models."""
    for key in ("hidden_size", "n_embd", "d_model"):
        if isinstance(config.get(key), int):
            return int(config[key])
    sizes = config.get("hidden_sizes")
    return max(sizes) if sizes else None
