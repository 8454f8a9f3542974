"""Write down which keys of a ds_config the imported DeepSpeed reads, from its behaviour.

`python -m tools.recorder FILE`, with one DeepSpeed release on the path. The recorder starts at the top
level and lets DeepSpeed read objects that remember what they were asked for. It then puts an object at
every key that was asked for, and sees whether that is asked in turn: then the key is a section. A section
that becomes a pydantic model is known by a key that nobody knows: whoever receives it is the model.
"""

import inspect
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin
from unittest import mock

import deepspeed
import pydantic
import pydantic.v1
from deepspeed.runtime import config as runtime
from deepspeed.runtime.pipe.engine import PipelineEngine

from tools.asked import NO_DEFAULT, Asked

KeyPath = tuple[str, ...]

MODELS = (pydantic.BaseModel, pydantic.v1.BaseModel)
"""DeepSpeed 0.14 still has models of pydantic 1."""

STRANGER = "a key that nobody knows"

OPENINGS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "": ({"zero_optimization": True},),
    "data_efficiency.data_sampling.dynamic_batching": (
        {"enabled": True, "max_tokens": 1, "max_batch_size": 1},
    ),
    "elasticity": (
        {
            "enabled": True,
            "max_train_batch_size": 4,
            "micro_batch_sizes": [1, 2],
            "ignore_non_elastic_batch_info": True,
        },
    ),
    "fp16": ({"enabled": True, "loss_scale_window": 1},),
    "optimizer": ({"type": "Adam"},),
    "scheduler": ({"type": "WarmupLR"},),
    "sparse_attention": tuple(
        {"mode": mode} for mode in ("dense", "fixed", "variable", "bigbird", "bslongformer")
    ),
}
"""What must stand in a section before DeepSpeed asks for the rest; `"enabled": true` is tried everywhere."""

HANDED_ON: Mapping[str, str] = {
    "amp": "the arguments of apex",
    "autotuning.arg_mappings": "the names of the script's own options",
    "compression_training": "groups of modules, with names that users choose",
    "curriculum_learning": "read by the curriculum scheduler",
    "data_efficiency.data_routing.random_ltd": "read by the layers",
    "data_efficiency.data_sampling.curriculum_learning": "read by the data sampler",
    "data_efficiency.data_sampling.dynamic_batching": "read by the data sampler",
    "datastates_ckpt": "read by the checkpoint engine",
    "optimizer.params": "the arguments of the optimizer",
    "progressive_layer_drop": "the arguments of its schedule",
    "scheduler.params": "the arguments of the scheduler",
}
"""Sections of which the config class reads little or nothing, and who reads the rest."""


class Kind(str, Enum):
    """What a release does with a key it does not know in a section."""

    CLOSED = "closed"
    """It refuses the config."""

    LENIENT = "lenient"
    """It ignores the key."""

    OPEN = "open"
    """It hands the key on to somebody else."""


class Recording(NamedTuple):
    """What one release reads: keys with their defaults, sections, and keys refused by their presence."""

    keys: dict[str, Any]
    sections: dict[str, Kind]
    refused: list[str]


def record() -> Recording:
    """Explore the imported DeepSpeed, from the top level down."""
    found = Recording({}, {"": Kind.LENIENT}, [])
    waiting: list[KeyPath] = [()]
    while waiting:
        section = waiting.pop()
        for key, default in _asked_in(section).items():
            path = (*section, key)
            if _is_refused(path):
                found.refused.append(_dotted(path))
            elif found.sections[_dotted(section)] is not Kind.CLOSED:
                _add(found, path, default)
                if found.sections.get(_dotted(path)) in (Kind.LENIENT, Kind.CLOSED):
                    waiting.append(path)
    found.keys.update({path: _scalar(default) for path, default in _read_elsewhere().items()})
    found.sections["pipeline"] = Kind.LENIENT
    found.refused.sort()
    return found


def read_at(path: KeyPath, block: Asked) -> None:
    """Let DeepSpeed read a ds_config with an object at a path; whatever it raises comes through."""
    whole = block
    for key in reversed(path):
        whole = Asked({key: whole})
    dict.setdefault(whole, "train_batch_size", 1)
    with mock.patch("deepspeed.runtime.config.dist.get_rank", return_value=0):
        runtime.DeepSpeedConfig(whole)


def _asked_in(path: KeyPath) -> dict[str, Any]:
    """Name the keys that DeepSpeed looks for in the object at a path, with the defaults it falls back to."""
    found: dict[str, Any] = {}
    for content in ({}, {"enabled": True}, *OPENINGS.get(_dotted(path), ())):
        block = Asked(content)
        _error_of(path, block)
        for key, default in block.defaults.items():
            if found.get(key, NO_DEFAULT) is NO_DEFAULT:
                found[key] = default
    return found


def _add(found: Recording, path: KeyPath, default: Any) -> None:
    """Record a key that was asked for; as a section, if an object there is read in turn."""
    found.keys[_dotted(path)] = _scalar(default)
    if model := _model_at(path):
        _add_model(found, path, model)
    elif _dotted(path) in HANDED_ON:
        found.sections[_dotted(path)] = Kind.OPEN
        found.keys.update({_dotted((*path, key)): _scalar(value) for key, value in _asked_in(path).items()})
    elif _asked_in(path):
        found.sections[_dotted(path)] = Kind.LENIENT


def _add_model(found: Recording, path: KeyPath, model: Any) -> None:
    """Record the fields of a pydantic model, under both names where a field has two."""
    found.sections[_dotted(path)] = Kind.CLOSED if _is_closed(model) else Kind.LENIENT
    for name, field in (getattr(model, "model_fields", None) or model.__fields__).items():
        default = field.default_factory() if field.default_factory else field.default
        for key in {name, field.alias or name}:
            child = (*path, key)
            found.keys[_dotted(child)] = _scalar(default)
            for part in _parts(field.annotation):
                if isinstance(part, type) and issubclass(part, MODELS):
                    _add_model(found, child, part)
                elif part is dict:
                    found.sections[_dotted(child)] = Kind.OPEN


def _parts(annotation: Any) -> Iterator[Any]:
    """Take a type apart, down to classes."""
    yield get_origin(annotation) or annotation
    for argument in get_args(annotation):
        yield from _parts(argument)


class _Received(Exception):
    """A model was given the stranger."""

    def __init__(self, model: type) -> None:
        self.model = model


def _model_at(path: KeyPath) -> type | None:
    """Find the pydantic model that DeepSpeed makes of the object at a path."""
    spies = [mock.patch.object(model, "__init__", _spy(model.__init__)) for model in MODELS]
    with spies[0], spies[1]:
        error = _error_of(path, Asked({STRANGER: None}))
    return error.model if isinstance(error, _Received) else None


def _spy(init: Callable[..., None]) -> Callable[..., None]:
    def watched(self: Any, /, **data: Any) -> None:
        if STRANGER in data:
            raise _Received(type(self))
        init(self, **data)

    return watched


def _is_closed(model: Any) -> bool:
    try:
        model(**{STRANGER: None})
    except ValueError:
        return True
    return False


def _is_refused(path: KeyPath) -> bool:
    """Whether DeepSpeed refuses a key whatever its value is."""
    values: tuple[Any, ...] = (None, False, {})
    errors = [_error_of(path[:-1], Asked({path[-1]: value})) for value in values]
    return isinstance(errors[0], runtime.DeepSpeedConfigError) and len({*map(str, errors)}) == 1


def _error_of(path: KeyPath, block: Asked) -> Exception | None:
    try:
        read_at(path, block)
    except Exception as error:  # noqa: BLE001  any value is tried anywhere, and DeepSpeed checks few of them
        return error
    return None


def _read_elsewhere() -> dict[str, Any]:
    """Name the keys that are read outside the config class, from the source of who reads them."""
    early = re.findall(r'"(\w+)" in config\b', inspect.getsource(deepspeed.initialize))
    late = re.findall(r"_config\.pipeline(?:\.get\(|\[)'(\w+)'", inspect.getsource(PipelineEngine))
    pipeline = {**dict.fromkeys(late), **runtime.get_pipeline_config({})}
    return {**dict.fromkeys(early), **{f"pipeline.{key}": default for key, default in pipeline.items()}}


def _scalar(default: Any) -> Any:
    """Write a default as JSON has it; objects, lists and what no JSON can say are left out."""
    value: Any = default.value if isinstance(default, Enum) else default
    return value if isinstance(value, bool | int | float | str) else None


def _dotted(path: KeyPath) -> str:
    return ".".join(path)


if __name__ == "__main__":
    logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
    recording = {"version": deepspeed.__version__.strip(), **record()._asdict()}
    Path(sys.argv[1]).write_text(json.dumps(recording), encoding="utf-8")
