"""Record which keys of a ds_config the imported DeepSpeed reads.

`python -m tools.recorder FILE`, with one DeepSpeed release on the import path. The recorder lets DeepSpeed
read an object that records which keys are read, starting at the top level. It then puts such an object at
each of these keys: if it is read too, the key is a section. To find sections that become pydantic models,
it adds an unknown key and sees which model receives it.
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

UNKNOWN_KEY = "unknown key"

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
"""Contents that make DeepSpeed read the rest of a section; `"enabled": true` is tried for all."""

PASSED_ON: Mapping[str, str] = {
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
"""Sections of which the config class reads little or nothing, and what their keys are."""


class Kind(str, Enum):
    """What a release does with unknown keys in a section."""

    CLOSED = "closed"
    """It rejects the config."""

    LENIENT = "lenient"
    """It ignores them."""

    OPEN = "open"
    """It passes them on."""


class Recording(NamedTuple):
    """The keys of one release with their defaults, sections, and keys that it always rejects."""

    keys: dict[str, Any]
    sections: dict[str, Kind]
    refused: list[str]


def record() -> Recording:
    """Explore the imported DeepSpeed, starting at the top level."""
    found = Recording({}, {"": Kind.LENIENT}, [])
    waiting: list[KeyPath] = [()]
    while waiting:
        section = waiting.pop()
        for key, default in _keys_read_in(section).items():
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
    """Let DeepSpeed read a ds_config with an object at a path; exceptions pass through."""
    whole = block
    for key in reversed(path):
        whole = Asked({key: whole})
    dict.setdefault(whole, "train_batch_size", 1)
    with mock.patch("deepspeed.runtime.config.dist.get_rank", return_value=0):
        runtime.DeepSpeedConfig(whole)


def _keys_read_in(path: KeyPath) -> dict[str, Any]:
    """Return the keys that DeepSpeed reads in the object at a path, with their defaults."""
    found: dict[str, Any] = {}
    for content in ({}, {"enabled": True}, *OPENINGS.get(_dotted(path), ())):
        block = Asked(content)
        _error_of(path, block)
        for key, default in block.defaults.items():
            if found.get(key, NO_DEFAULT) is NO_DEFAULT:
                found[key] = default
    return found


def _add(found: Recording, path: KeyPath, default: Any) -> None:
    """Record a key; as a section, if DeepSpeed reads keys of an object there."""
    found.keys[_dotted(path)] = _scalar(default)
    if model := _model_at(path):
        _add_model(found, path, model)
    elif _dotted(path) in PASSED_ON:
        found.sections[_dotted(path)] = Kind.OPEN
        found.keys.update(
            {_dotted((*path, key)): _scalar(value) for key, value in _keys_read_in(path).items()}
        )
    elif _keys_read_in(path):
        found.sections[_dotted(path)] = Kind.LENIENT


def _add_model(found: Recording, path: KeyPath, model: Any) -> None:
    """Record the fields of a pydantic model, including aliases."""
    found.sections[_dotted(path)] = Kind.LENIENT
    if _is_closed(model):
        found.sections[_dotted(path)] = Kind.CLOSED
    for name, field in (getattr(model, "model_fields", None) or model.__fields__).items():
        default = field.default
        if field.default_factory:
            default = field.default_factory()
        for key in {name, field.alias or name}:
            child = (*path, key)
            found.keys[_dotted(child)] = _scalar(default)
            for cls in _classes(field.annotation):
                if isinstance(cls, type) and issubclass(cls, MODELS):
                    _add_model(found, child, cls)
                elif cls is dict:
                    found.sections[_dotted(child)] = Kind.OPEN


def _classes(annotation: Any) -> Iterator[Any]:
    """Yield all classes in a type annotation."""
    yield get_origin(annotation) or annotation
    for argument in get_args(annotation):
        yield from _classes(argument)


class _Received(Exception):
    """A model received the unknown key."""

    def __init__(self, model: type) -> None:
        self.model = model


def _model_at(path: KeyPath) -> type | None:
    """Return the pydantic model that DeepSpeed creates from the object at a path."""
    spies = [mock.patch.object(model, "__init__", _spy(model.__init__)) for model in MODELS]
    with spies[0], spies[1]:
        error = _error_of(path, Asked({UNKNOWN_KEY: None}))
    if isinstance(error, _Received):
        return error.model
    return None


def _spy(init: Callable[..., None]) -> Callable[..., None]:
    def watched(self: Any, /, **data: Any) -> None:
        if UNKNOWN_KEY in data:
            raise _Received(type(self))
        init(self, **data)

    return watched


def _is_closed(model: Any) -> bool:
    try:
        model(**{UNKNOWN_KEY: None})
    except ValueError:
        return True
    return False


def _is_refused(path: KeyPath) -> bool:
    """Whether DeepSpeed rejects a key with any value."""
    values: tuple[Any, ...] = (None, False, {})
    errors = [_error_of(path[:-1], Asked({path[-1]: value})) for value in values]
    return isinstance(errors[0], runtime.DeepSpeedConfigError) and len({*map(str, errors)}) == 1


def _error_of(path: KeyPath, block: Asked) -> Exception | None:
    try:
        read_at(path, block)
    except Exception as error:  # noqa: BLE001  - most of these configs are invalid
        return error
    return None


def _read_elsewhere() -> dict[str, Any]:
    """Return the keys that are read outside the config class, found in source code."""
    early = re.findall(r'"(\w+)" in config\b', inspect.getsource(deepspeed.initialize))
    late = re.findall(r"_config\.pipeline(?:\.get\(|\[)'(\w+)'", inspect.getsource(PipelineEngine))
    pipeline = {**dict.fromkeys(late), **runtime.get_pipeline_config({})}
    return {**dict.fromkeys(early), **{f"pipeline.{key}": default for key, default in pipeline.items()}}


def _scalar(default: Any) -> Any:
    """Return a default as a JSON scalar; None for anything else."""
    if isinstance(default, Enum):
        default = default.value
    if isinstance(default, bool | int | float | str):
        return default
    return None


def _dotted(path: KeyPath) -> str:
    return ".".join(path)


if __name__ == "__main__":
    logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
    recording = {"version": deepspeed.__version__.strip(), **record()._asdict()}
    Path(sys.argv[1]).write_text(json.dumps(recording), encoding="utf-8")
