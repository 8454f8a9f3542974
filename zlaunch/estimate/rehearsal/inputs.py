"""A micro-batch without contents: what the `forward` of a model takes, in the sizes that its config says."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.models.auto import modeling_auto

from zlaunch.estimate.rehearsal.model import CannotTell
from zlaunch.estimate.workload import Workload

_ONE_LABEL = ("SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION", "MULTIPLE_CHOICE")
"""Tasks with one label for each example, as transformers' tables of classes are called."""
_CHOICES = 4
"""Answers of a question with several, as in most data sets."""


@dataclass(frozen=True)
class ModelInputs:
    """What a model is given in each micro-batch."""

    shapes: Mapping[str, tuple[int, ...]]
    """Tensors; those of numbers with a fraction have the names in `_FLOATS`."""
    switches: Mapping[str, bool]
    notes: tuple[str, ...] = ()
    """What a person would not expect to be counted this way, or not to be counted."""
    has_images: bool = False
    """Whether there are images beside the text."""

    def make(self, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        """Make a micro-batch on a device; numbers with a fraction have the format of the engine."""
        make = partial(torch.zeros, device=device)
        tensors = {
            name: make(shape, dtype=dtype if name in _FLOATS else torch.long)
            for name, shape in self.shapes.items()
        }
        return {**tensors, **self.switches}


_FLOATS = frozenset({"pixel_values", "input_features", "input_values"})


def is_text(kind: Any, config: Any) -> bool:
    """Whether a class of models is trained on nothing but tokens."""
    return kind.main_input_name == "input_ids" and not _senses(config)


def _senses(config: Any) -> list[str]:
    """Name what a model takes beside text."""
    return [what for name, what in _SENSES.items() if hasattr(config, name)]


_SENSES = {"vision_config": "images", "audio_config": "sound"}


def inputs_of(workload: Workload, net: Any, config: Any) -> ModelInputs:
    """Work out what a model is trained on; raise CannotTell for one whose inputs are not known."""
    base = net.get_base_model() if hasattr(net, "get_base_model") else net
    takes, name = inspect.signature(base.forward).parameters, type(base).__name__
    count = int(workload.ds_config["train_micro_batch_size_per_gpu"])
    make = _MAKERS.get(base.main_input_name)
    if make is None:
        raise CannotTell(f"nobody knows what `{name}` is trained on: its input is `{base.main_input_name}`")
    shapes, notes = make(workload, config, count)
    has_images = False
    if base.main_input_name == "input_ids":
        if _is_of(name, ("MULTIPLE_CHOICE",)):
            shapes = {"input_ids": (count, _CHOICES, workload.seq_len)}
        images, more = _images(workload, config, takes, count)
        shapes, notes, has_images = {**shapes, **images}, (*notes, *more), bool(images)
    if _is_of(name, ("SEQUENCE_CLASSIFICATION",)) and config.get_text_config().pad_token_id is None:
        config.get_text_config().pad_token_id = 0  # else it takes no more than one sequence at a time
    shapes |= _labels(name, takes, (count, workload.seq_len))
    switches = {"return_loss": True} if "return_loss" in takes and "labels" not in shapes else {}
    if "use_cache" in takes and not config.is_encoder_decoder:
        switches["use_cache"] = False
    return ModelInputs(shapes, switches, notes, has_images)


_Made = tuple[dict[str, tuple[int, ...]], tuple[str, ...]]


def _text(workload: Workload, config: Any, count: int) -> _Made:
    return {"input_ids": (count, workload.seq_len)}, ()


def _pictures(workload: Workload, config: Any, count: int) -> _Made:
    """Make images of the size that the model, or its encoder, is made for."""
    image = _image(getattr(config, "encoder", config))
    if image is None:
        raise CannotTell("this config.json does not say how large the model's images are")
    return {"pixel_values": (count, *image)}, ()


def _spectra(workload: Workload, config: Any, count: int) -> _Made:
    """Make spectra that are as long as the encoder takes, after a convolution that halves them."""
    bins, positions = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    if bins is None or positions is None:
        raise CannotTell("this config.json does not say how large the model's spectra are")
    return {"input_features": (count, bins, 2 * positions)}, ()


def _sounds(workload: Workload, config: Any, count: int) -> _Made:
    """Make sounds of which convolutions leave as many frames as a sequence has tokens."""
    strides = getattr(config, "conv_stride", None)
    if not strides:
        raise CannotTell("this config.json does not say how the model cuts sound into frames")
    samples = workload.seq_len * math.prod(strides)
    note = f"a sequence of {workload.seq_len} is that many frames of sound: {samples} samples"
    return {"input_values": (count, samples)}, (note,)


_MAKERS = {
    "input_ids": _text,
    "pixel_values": _pictures,
    "input_features": _spectra,
    "input_values": _sounds,
}
"""Main input of a model → what makes it."""


def _images(workload: Workload, config: Any, takes: Mapping[str, Any], count: int) -> _Made:
    """Give each sequence one image, whose tokens are among its own, if the model takes images of one size."""
    image = _image(getattr(config, "vision_config", None)) if "pixel_values" in takes else None
    if image is None or not workload.images:
        missing = "what training on them adds is missing"
        return {}, tuple(f"counted without {what}: {missing}" for what in _senses(config))
    note = f"counted with one image of {image[1]} x {image[2]} in each sequence, its tokens among the others"
    return {"pixel_values": (count, *image)}, (note,)


def _image(vision: Any) -> tuple[int, int, int] | None:
    """Say how large an image is: channels, height, width."""
    size = getattr(vision, "image_size", None)
    if not size:
        return None
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return getattr(vision, "num_channels", None) or 3, height, width


def _labels(name: str, takes: Mapping[str, Any], size: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """Make what a model computes its loss from: a label for each example, or for each token."""
    if "labels" not in takes:
        return {one: size[:1] for one in ("start_positions", "end_positions") if one in takes}
    labels = {"labels": size[:1] if _is_of(name, _ONE_LABEL) else size}
    return labels | ({"next_sentence_label": size[:1]} if "next_sentence_label" in takes else {})


def _is_of(name: str, tasks: tuple[str, ...]) -> bool:
    tables = (getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in tasks)
    return any(name in _names(table) for table in tables)


def _names(table: Mapping[str, Any]) -> set[str]:
    """List the classes of a table; some models have several."""
    return {one for value in table.values() for one in (value if isinstance(value, tuple) else (value,))}
