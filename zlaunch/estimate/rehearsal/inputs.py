"""A micro-batch for a model: the inputs of its `forward`, with sizes from its config."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import field

import torch
import transformers
from torch.utils._python_dispatch import _disable_current_modes
from transformers.models.auto import modeling_auto

from zlaunch.estimate.rehearsal.images import ImageInputs, image_inputs, image_shape, tokens_with_images
from zlaunch.estimate.rehearsal.model import CannotTell, base_of
from zlaunch.estimate.workload import Workload
from zlaunch.frozen import dataclass

Shapes = dict[str, tuple[int, ...]]
Inputs = tuple[Shapes, tuple[str, ...]]
"""Shapes by name, and notes for the user."""

_ONE_LABEL = ("SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION", "MULTIPLE_CHOICE")
"""Tasks with one label for each example, as in the names of transformers' class tables."""
_NUM_CHOICES = 4
"""Choices per example for multiple choice, as in most datasets."""
_FLOATING_POINT = frozenset({"pixel_values", "input_features", "input_values", "vectors", "targets"})
_BESIDE_TEXT = {
    "images": ("vision_config", "pixel_values", "image", "image_patches", "visual_embeds", "visual_feats"),
    "audio": ("audio_config", "input_features", "input_values", "audio_input_ids", "user_audio_codes"),
}
"""What a model may take besides text → attributes of its config and arguments of `forward` that tell."""


@dataclass(frozen=True)
class ModelInputs:
    """The inputs of a model for one micro-batch."""

    shapes: Mapping[str, tuple[int, ...]]
    flags: Mapping[str, bool]
    """Other keyword arguments of `forward`."""
    notes: tuple[str, ...] = ()
    """Assumptions that the user should know."""
    missing: tuple[str, ...] = ()
    """Inputs of the model that are left out."""
    has_images: bool = False
    """Whether a text model also gets images."""
    data: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The data of inputs by which a model decides, such as the grids of images."""

    def make(self, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor | bool]:
        """Create a micro-batch of zeros on a device; floating-point inputs have the given dtype."""
        batch: dict[str, torch.Tensor | bool] = dict(self.flags)
        for name, shape in self.shapes.items():
            if name in _FLOATING_POINT:
                batch[name] = torch.zeros(shape, dtype=dtype, device=device)
            else:
                batch[name] = torch.zeros(shape, dtype=torch.long, device=device)
        for name, data in self.data.items():
            with _disable_current_modes():
                batch[name]._known = data.clone()  # type: ignore[union-attr]
        return batch


def is_text(cls: type[transformers.PreTrainedModel], config: transformers.PretrainedConfig) -> bool:
    """Whether a model takes only tokens."""
    return cls.main_input_name == "input_ids" and not _modalities(cls, config)


def _modalities(cls: type[torch.nn.Module], config: transformers.PretrainedConfig) -> list[str]:
    """Name what a model that takes tokens may take besides."""
    arguments = inspect.signature(cls.forward).parameters
    modalities = []
    for modality, names in _BESIDE_TEXT.items():
        if any(name in arguments or hasattr(config, name) for name in names):
            modalities.append(modality)
    return modalities


def inputs_of(
    workload: Workload, model: torch.nn.Module, config: transformers.PretrainedConfig
) -> ModelInputs:
    """Derive the inputs that a model is trained on; raise CannotTell if they are unknown."""
    base = base_of(model)
    arguments, name = inspect.signature(base.forward).parameters, type(base).__name__
    count = int(workload.ds_config["train_micro_batch_size_per_gpu"])
    main_inputs = _MAIN_INPUTS.get(base.main_input_name)
    if main_inputs is None:
        raise CannotTell(f"zlaunch has no training inputs for `{name}`: it takes `{base.main_input_name}`")
    shapes, notes = main_inputs(workload, config, count)
    images, missing = ImageInputs(), list[str]()
    if base.main_input_name == "input_ids":
        if _is_for_task(name, ("MULTIPLE_CHOICE",)):
            shapes = {"input_ids": (count, _NUM_CHOICES, workload.seq_len)}
        with _disable_current_modes():
            size = (count, workload.seq_len)
            images = image_inputs(workload.images, config, arguments, size, processor=workload.processor)
        missing = _modalities(type(base), config)
        notes = (*notes, *images.notes)
        if images.shapes:
            shapes = {**shapes, **images.shapes}
            missing.remove("images")
            missing += images.missing
    if _is_for_task(name, ("SEQUENCE_CLASSIFICATION",)) and config.get_text_config().pad_token_id is None:
        config.get_text_config().pad_token_id = 0  # without it, batches of several sequences are rejected
    shapes |= _labels(name, arguments, (count, workload.seq_len))
    flags = {}
    if "return_loss" in arguments and "labels" not in shapes:
        flags["return_loss"] = True
    if "use_cache" in arguments and not config.is_encoder_decoder:
        flags["use_cache"] = False
    if workload.groups.sequences > 1:
        shapes = _shared(shapes, workload, name)
    data = dict(images.data)
    if images.token is not None and workload.images.width is not None:
        with _disable_current_modes():
            data |= tokens_with_images(images, workload.images.count, shapes["input_ids"], shapes)
    return ModelInputs(shapes, flags, notes, tuple(missing), bool(images.shapes), data)


def _shared(shapes: Shapes, workload: Workload, name: str) -> Shapes:
    """Return a rank's part of sequences, as `UlyssesSPDataLoaderAdapter` cuts them for the Trainer."""
    if set(shapes) != {"input_ids", "labels"}:
        raise CannotTell(f"zlaunch shares sequences only of language models, not of `{name}`")
    sharing = workload.groups.sequences
    if workload.seq_len % sharing:
        raise CannotTell(f"{sharing} ranks cannot share sequences of {workload.seq_len} tokens")
    part = (*shapes["input_ids"][:-1], workload.seq_len // sharing)
    return dict.fromkeys(("input_ids", "position_ids", "shift_labels"), part)


def _tokens(workload: Workload, config: transformers.PretrainedConfig, count: int) -> Inputs:
    return {"input_ids": (count, workload.seq_len)}, ()


def _pixel_values(workload: Workload, config: transformers.PretrainedConfig, count: int) -> Inputs:
    image = image_shape(getattr(config, "encoder", config))
    if image is None:
        raise CannotTell("the config.json has no `image_size`")
    return {"pixel_values": (count, *image)}, ()


def _spectrograms(workload: Workload, config: transformers.PretrainedConfig, count: int) -> Inputs:
    """Return spectrograms of the encoder's maximum length, which a convolution then halves."""
    bins, positions = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    if bins is None or positions is None:
        raise CannotTell("the config.json has no `num_mel_bins` or no `max_source_positions`")
    return {"input_features": (count, bins, 2 * positions)}, ()


def _audio(workload: Workload, config: transformers.PretrainedConfig, count: int) -> Inputs:
    """Return audio that the convolutions turn into as many frames as a sequence has tokens."""
    strides = getattr(config, "conv_stride", None)
    if not strides:
        raise CannotTell("the config.json has no `conv_stride`")
    samples = workload.seq_len * math.prod(strides)
    note = f"a sequence of {workload.seq_len} is counted as that many audio frames, {samples} samples"
    return {"input_values": (count, samples)}, (note,)


def _vectors(workload: Workload, config: transformers.PretrainedConfig, count: int) -> Inputs:
    return {"vectors": (count, config.width), "targets": (count, config.width)}, ()


_MAIN_INPUTS = {
    "input_ids": _tokens,
    "pixel_values": _pixel_values,
    "input_features": _spectrograms,
    "input_values": _audio,
    "vectors": _vectors,
}
"""`main_input_name` of a model → its inputs."""


def _labels(name: str, arguments: Mapping[str, inspect.Parameter], size: tuple[int, int]) -> Shapes:
    """Return labels for each example or for each token; `size` is (examples, tokens)."""
    if "labels" not in arguments:
        return {label: size[:1] for label in ("start_positions", "end_positions") if label in arguments}
    labels: Shapes = {"labels": size}
    if _is_for_task(name, _ONE_LABEL):
        labels = {"labels": size[:1]}
    if "next_sentence_label" in arguments:
        labels["next_sentence_label"] = size[:1]
    return labels


def _is_for_task(class_name: str, tasks: tuple[str, ...]) -> bool:
    """Whether a class is in transformers' table for one of the tasks; a table may list several per model."""
    for task in tasks:
        for names in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").values():
            if names == class_name or (isinstance(names, tuple) and class_name in names):
                return True
    return False
