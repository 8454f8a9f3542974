"""The user's model, from its config.json, without contents."""

import inspect
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto import modeling_auto

from zlaunch.estimate.workload import Lora, Workload

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_KINDS = (
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
"""What a model is trained as if its config.json names no architecture that can be, in this order."""

_AUTO = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageTextToText",
    "AutoModelForMaskedLM",
)
"""Which of a model's own classes is trained if its config.json does not say, in this order."""

_LOSSES = frozenset({"labels", "start_positions", "return_loss"})
"""Arguments of `forward` of which a model with a loss has one."""


class UnknownModel(Exception):
    """A config.json that transformers cannot make a model from."""


class CannotTell(Exception):
    """A model that may well be trained, but not rehearsed."""


@dataclass(frozen=True)
class ChosenModel:
    """The class that is trained, and why it is not the one that config.json names, if it is not."""

    type: Any
    note: str | None = None


def read_config(workload: Workload) -> Any:
    """Make transformers' config object, as `AutoConfig` does; raise UnknownModel or CannotTell."""
    kind, own = workload.model.get("model_type"), workload.remote_code
    if own is None and kind not in transformers.CONFIG_MAPPING:
        raise CannotTell(f"transformers {transformers.__version__} knows no model type `{kind}`")
    try:
        with _directory(workload) as directory:
            config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=own is not None)
    except Exception as error:  # noqa: BLE001 - whatever it raises is about a value of the config
        words = str(error).strip().splitlines() or [type(error).__name__]
        if own is not None:
            raise CannotTell(f"the model's own code fails: {' '.join(words)}") from None
        raise UnknownModel(f"transformers refuses this model: {words[-1].strip()}") from None
    if workload.attention == "eager":
        config._attn_implementation = "eager"
    return config


@contextmanager
def _directory(workload: Workload) -> Iterator[str]:
    """Name a directory with the config.json, and with the code that may run."""
    if workload.remote_code is not None:
        yield workload.remote_code
        return
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(workload.model))
        yield directory


def choose_class(config: Any, own_code: str | None) -> ChosenModel:
    """Find the class that a config.json describes, with a loss to train with."""
    auto_map = getattr(config, "auto_map", None) or {}
    named = next(iter(config.architectures or ()), None)
    if own_code is not None and (reference := _own_class(auto_map, named)) is not None:
        try:
            return ChosenModel(get_class_from_dynamic_module(reference, own_code))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not for us to mend
            words = " ".join(str(error).split()) or type(error).__name__
            raise CannotTell(f"the model's own code fails: {words}") from None
    if named is not None and _has_loss(found := getattr(transformers, str(named), None)):
        return ChosenModel(found)
    for kind in _KINDS:
        if name := getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES").get(config.model_type):
            why = "has no loss of its own" if hasattr(transformers, str(named)) else "is not in transformers"
            note = None if named is None else f"`{named}` {why}: counted as `{name}`"
            return ChosenModel(getattr(transformers, name), note)
    raise CannotTell(f"no loss is known that `{named or config.model_type}` is trained with")


def _own_class(auto_map: Mapping[str, str], named: str | None) -> str | None:
    """Choose among a model's own classes; None if it has none that is a model."""
    models = {key: value for key, value in auto_map.items() if key.startswith("AutoModel")}
    of_name = (value for value in models.values() if value.rpartition(".")[2] == named)
    in_order = (models[key] for key in (*_AUTO, *models) if key in models)
    return next(of_name, next(in_order, None))


def _has_loss(found: Any) -> bool:
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    return is_model and not _LOSSES.isdisjoint(inspect.signature(found.forward).parameters)


def build(workload: Workload, config: Any, chosen: ChosenModel) -> torch.nn.Module:
    """Make the model as `from_pretrained` leaves it, before it is given to DeepSpeed."""
    model: torch.nn.Module = chosen.type._from_config(config, dtype=DTYPES[workload.load_dtype])
    if workload.lora is not None:
        model = _adapted(model, workload.lora, stage3=workload.zero_init)
    model.train()
    if workload.activation_checkpointing:
        if workload.lora is not None:
            model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _adapted(model: torch.nn.Module, lora: Lora, *, stage3: bool) -> torch.nn.Module:
    """Freeze the model and add adapters, as `peft` does.

    Adapters in float32, peft's default beside a half-precision model, are refused by stage 3, which
    joins all partitions in one buffer.
    """
    import peft

    modules: Any = list(lora.modules) or "all-linear"
    kind = None
    if model.main_input_name == "input_ids" and model.can_generate():
        kind = peft.TaskType.SEQ_2_SEQ_LM if model.config.is_encoder_decoder else peft.TaskType.CAUSAL_LM
    config = peft.LoraConfig(r=lora.rank, target_modules=modules, task_type=kind)
    adapted: torch.nn.Module = peft.get_peft_model(model, config, autocast_adapter_dtype=not stage3)
    return adapted


def trained_dtype(ds_config: Mapping[str, Any]) -> torch.dtype:
    """Say in which format the engine trains."""
    halves = {name: ds_config.get(name, {}).get("enabled") is True for name in ("bf16", "fp16")}
    return next((DTYPES[name] for name, is_on in halves.items() if is_on), torch.float32)


def vocabulary(config: Any) -> int | None:
    """Say how many tokens the model knows, if it says so."""
    found: int | None = getattr(config.get_text_config(), "vocab_size", None)
    return found
