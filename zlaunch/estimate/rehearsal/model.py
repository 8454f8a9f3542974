"""The user's model, built by transformers from its config.json."""

import inspect
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeGuard

import torch
import transformers
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto import modeling_auto

from zlaunch.estimate.rehearsal.linear_layers import LinearLayers
from zlaunch.estimate.rehearsal.quantized import quantize
from zlaunch.estimate.workload import DEFAULT_MODULES, LINEAR_LAYERS, Lora, Workload
from zlaunch.frozen import dataclass
from zlaunch.job.trainer_releases import is_before

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_TASKS = (
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "MASKED_LM",
    "CAUSAL_LM",
    "IMAGE_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
)
"""Tasks that a model is trained for if config.json names no class with a loss; the first match counts."""

_AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageTextToText",
    "AutoModelForMaskedLM",
)
"""Entries of `auto_map` to train if config.json names no class; the first match counts."""

_LOSSES = frozenset({"labels", "start_positions", "return_loss"})
"""A model computes a loss if its `forward` has one of these arguments."""


class NotRehearsed(Exception):
    """There is no rehearsal; `why` names the reason in the result."""

    why = "failure"


class UnknownModel(NotRehearsed):
    """transformers cannot build a model from the config.json."""

    why = "unknown_model"


class CannotTell(NotRehearsed):
    """The model can perhaps be trained, but not be rehearsed."""

    why = "cannot_tell"


@dataclass(frozen=True)
class ChosenModel:
    """The class to train, and a note if it is not the class that config.json names."""

    type: type[transformers.PreTrainedModel]
    note: str | None = None


def read_config(workload: Workload) -> transformers.PretrainedConfig:
    """Load the config with `AutoConfig`; raise UnknownModel or CannotTell."""
    kind, has_code = workload.model.get("model_type"), workload.remote_code is not None
    if not has_code and kind not in transformers.CONFIG_MAPPING:
        raise CannotTell(f"transformers {transformers.__version__} has no model type `{kind}`")
    try:
        with _model_directory(workload) as directory:
            config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=has_code)
    except Exception as error:  # noqa: BLE001 - any exception is about a value of the config
        lines = str(error).strip().splitlines() or [type(error).__name__]
        if has_code:
            raise CannotTell(f"the model's custom code fails: {' '.join(lines)}") from None
        raise UnknownModel(f"transformers rejects this model: {lines[-1].strip()}") from None
    if workload.attention == "eager":
        config._attn_implementation = "eager"
    return config


@contextmanager
def _model_directory(workload: Workload) -> Iterator[str]:
    """Yield a directory with the config.json, and with the model's code if it may run."""
    if workload.remote_code is not None:
        yield workload.remote_code
        return
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(workload.model))
        yield directory


def choose_class(config: transformers.PretrainedConfig, code: str | None) -> ChosenModel:
    """Choose a class with a loss: from `code`, the named one, or the usual one for the model type.

    Raise CannotTell if there is none.
    """
    if config.model_type == LINEAR_LAYERS:
        return ChosenModel(LinearLayers)
    auto_map = getattr(config, "auto_map", None) or {}
    named = next(iter(config.architectures or ()), None)
    if code is not None and (reference := _class_in_code(auto_map, named)) is not None:
        try:
            return ChosenModel(get_class_from_dynamic_module(reference, code))
        except Exception as error:  # noqa: BLE001 - custom code may raise anything
            message = " ".join(str(error).split()) or type(error).__name__
            raise CannotTell(f"the model's custom code fails: {message}") from None
    if named is not None and _has_loss(cls := getattr(transformers, str(named), None)):
        return ChosenModel(cls)
    for task in _TASKS:
        known = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {})  # a task may be newer
        if name := known.get(config.model_type):
            if isinstance(name, tuple):  # of a type with several classes; the first is the usual one
                name = name[0]
            return ChosenModel(getattr(transformers, name), _why_not_trained(named, name))
    raise CannotTell(f"`{named or config.model_type}` has no class that computes a loss")


def _why_not_trained(named: str | None, chosen: str) -> str | None:
    if named is None:
        return None
    if hasattr(transformers, named):
        return f"`{named}` computes no loss: counted as `{chosen}`"
    return f"`{named}` is not in transformers: counted as `{chosen}`"


def _class_in_code(auto_map: Mapping[str, str], named: str | None) -> str | None:
    models = {key: value for key, value in auto_map.items() if key.startswith("AutoModel")}
    same_name = (value for value in models.values() if value.rpartition(".")[2] == named)
    in_order = (models[key] for key in (*_AUTO_CLASSES, *models) if key in models)
    return next(same_name, next(in_order, None))


def _has_loss(cls: Any) -> TypeGuard[type[transformers.PreTrainedModel]]:
    is_model = isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
    return is_model and not _LOSSES.isdisjoint(inspect.signature(cls.forward).parameters)


def build(workload: Workload, config: transformers.PretrainedConfig, chosen: ChosenModel) -> torch.nn.Module:
    """Build the model as `from_pretrained` would, with adapters and activation checkpointing."""
    name = "dtype"
    if is_before(transformers.__version__, "4.56"):
        name = "torch_dtype"
    try:
        with _no_initialization():
            model: torch.nn.Module = chosen.type._from_config(config, **{name: DTYPES[workload.load_dtype]})
    except ImportError as error:
        message = str(error).strip().splitlines()[0]
        raise NotRehearsed(f"a package is missing in {sys.executable}: {message}") from None
    if is_before(transformers.__version__, "5.0"):
        model.tie_weights()  # a part of the initialization
    if workload.frozen is not None:
        _freeze(model, workload.frozen)
    if workload.four_bits is not None and not workload.zero_init:
        quantize(model, nested=workload.four_bits == "nf4 nested")
    if workload.lora is not None:
        model = _with_adapters(model, workload.lora, stage3=workload.zero_init)
    model.train()
    if workload.activation_checkpointing:
        if workload.lora is not None:
            model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def base_of(model: torch.nn.Module) -> Any:
    """Return the model below its adapters."""
    if hasattr(model, "get_base_model"):
        return model.get_base_model()
    return model


def _freeze(model: torch.nn.Module, pattern: str) -> None:
    names = dict(model.named_parameters())
    frozen = [name for name in names if re.search(pattern, name)]
    if not frozen:
        raise CannotTell(f"no parameter matches `{pattern}`; the first one is `{next(iter(names))}`")
    for name in frozen:
        names[name].requires_grad_(False)


def _no_initialization() -> AbstractContextManager[None]:
    """Leave weights as they are in transformers 4: some of its releases initialize only whole parameters."""
    from transformers import modeling_utils

    skip: Callable[[], AbstractContextManager[None]] = getattr(modeling_utils, "no_init_weights", nullcontext)
    return skip()


def _with_adapters(model: torch.nn.Module, lora: Lora, *, stage3: bool) -> torch.nn.Module:
    """Freeze the model and add adapters with `peft`.

    Stage 3 puts all partitions into one buffer, so it rejects fp32 adapters of a half-precision model,
    which are peft's default.
    """
    try:
        import peft
    except ModuleNotFoundError:
        python = sys.executable
        raise NotRehearsed(f"peft is not installed in {python}: `{python} -m pip install peft`") from None

    modules: list[str] | str | None = list(lora.modules) or "all-linear"
    if lora.modules == DEFAULT_MODULES:
        modules = None
    kind = None
    if model.main_input_name == "input_ids" and model.can_generate():
        kind = peft.TaskType.CAUSAL_LM
        if model.config.is_encoder_decoder:
            kind = peft.TaskType.SEQ_2_SEQ_LM
    config = peft.LoraConfig(r=lora.rank, target_modules=modules, task_type=kind)
    adapted: torch.nn.Module = peft.get_peft_model(model, config, autocast_adapter_dtype=not stage3)
    return adapted


def trained_dtype(ds_config: Mapping[str, Any]) -> torch.dtype:
    """Return the dtype that the engine trains in."""
    halves = {name: ds_config.get(name, {}).get("enabled") is True for name in ("bf16", "fp16")}
    return next((DTYPES[name] for name, is_on in halves.items() if is_on), torch.float32)
