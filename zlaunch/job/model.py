"""What a model's `config.json` tells about its shape; never its weights."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Finding, InputMissing, Place, Refused
from zlaunch.job.trainer_args import flags

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
    config: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """All of config.json, for what depends on more than two sizes."""


@dataclass(frozen=True)
class ModelConfig:
    """A model's config.json as it was written."""

    value: Mapping[str, Any]
    text: str
    source: str
    """Where it stands, as a person would name it."""

    @property
    def kind(self) -> str:
        """Name the type of the model; nothing if it is no text."""
        named = self.value.get("model_type")
        return named if isinstance(named, str) else ""

    @property
    def shape(self) -> ModelShape:
        """Take out the sizes that decide buckets."""
        return shape(self.value, self.source)

    @property
    def parts(self) -> Iterator[Mapping[str, Any]]:
        """Give the model's own keys, then those of the text model inside of it."""
        yield self.value
        part = self.value.get("text_config")
        if isinstance(part, Mapping):
            yield part

    def first(self, *keys: str) -> Any:
        """Look up the first of these keys that has a value, in the model or in its text model."""
        found = (part[key] for part in self.parts for key in keys if part.get(key) is not None)
        return next(found, None)

    @property
    def num_positions(self) -> int | None:
        """Say how many tokens a sequence may have, if the model says so."""
        number = self.first(
            "max_position_embeddings", "n_positions", "max_sequence_length", "max_target_positions"
        )
        return number if isinstance(number, int) and number > 0 else None

    def locate(self, finding: Finding) -> Finding:
        """Give a finding its place in the file."""
        return parse(self.text, self.source).locate(finding)


def model_flag(argv: Sequence[str]) -> str | None:
    """Find the model a script's command line names."""
    given = {name: value for name, value in flags(argv) if value is not None}
    return next((given[name] for name in MODEL_FLAGS if name in given), None)


def read_model(directory: Path) -> ModelConfig:
    """Read a local model; raise InputMissing without a config.json, Refused if it is no JSON."""
    file = directory if directory.is_file() else directory / "config.json"
    try:
        data = file.read_bytes()
    except OSError:
        raise InputMissing(
            f"the model directory `{directory}` has no config.json",
            "name a directory that `save_pretrained` wrote, or a hub id",
        ) from None
    return parse_model(data, str(file), os.path.relpath(file))


def parse_model(data: bytes, file: str, source: str) -> ModelConfig:
    """Read what a config.json holds; raise Refused if it is no JSON object."""
    problem: tuple[str, int] | None = None
    try:
        text = data.decode()
        value = json.loads(text)
    except ValueError as error:
        problem = f"this is no JSON: {error}", getattr(error, "lineno", 1)
    except RecursionError:
        problem = "this is nested too deep", 1
    else:
        if isinstance(value, dict):
            return ModelConfig(value, text, source)
        problem = "a model's config is one JSON object", 1
    message, line = problem
    raise Refused([Finding("not-json", message, place=Place(file, line, 1))]) from None


def read_shape(directory: Path) -> ModelShape:
    """Read the sizes of a local model."""
    return read_model(directory).shape


def shape(config: Mapping[str, Any], source: str) -> ModelShape:
    """Read the sizes as `transformers.integrations.deepspeed` does: the model's, then its text model's.

    Older models call the width `n_embd` or `d_model`, which transformers maps to `hidden_size`.
    """
    part = config.get("text_config")
    text: Mapping[str, Any] = part if isinstance(part, Mapping) else {}
    older = () if str(config.get("model_type")) in UNMAPPED else ("n_embd", "d_model")
    named = [(config, key) for key in ("hidden_size", "hidden_sizes", *older)]
    named += [(text, key) for key in ("hidden_size", "hidden_sizes")]
    hidden = next((size for part, key in named if (size := _largest(part.get(key)))), None)
    sizes = {**text, **config}
    widest = max((_largest(sizes.get(key)) or 0) for key in ("vocab_size", "intermediate_size"))
    return ModelShape(hidden, hidden * widest if hidden and widest else None, source, config)


def _largest(size: Any) -> int | None:
    """Some models give one size, some one for each layer."""
    sizes = size if isinstance(size, list) else [size]
    return max((number for number in sizes if isinstance(number, int)), default=None)
