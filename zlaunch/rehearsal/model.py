"""The user's model, from its config.json, and a batch for it; without contents."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from zlaunch.memory.workload import Lora, Workload

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_KINDS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
)
"""What a model is trained as if its config.json names no architecture, in this order."""


class UnknownModel(Exception):
    """A config.json that transformers cannot make a model from."""


def read_config(workload: Workload) -> Any:
    """Make transformers' config object; raise UnknownModel."""
    given = dict(workload.model)
    if workload.remote_code is not None:
        return transformers.AutoConfig.from_pretrained(workload.remote_code, trust_remote_code=True)
    kind = given.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        raise UnknownModel(f"transformers {transformers.__version__} knows no model type `{kind}`")
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(given)
    except Exception as error:  # noqa: BLE001 - whatever it raises is about a value of the config
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise UnknownModel(f"transformers refuses this model: {words[-1].strip()}") from None
    if workload.attention == "eager":
        config._attn_implementation = "eager"
    return config


def model_class(config: Any) -> Any:
    """Find the class that a config.json describes, with a head to train."""
    for name in config.architectures or ():
        if hasattr(transformers, name) and not name.endswith("Model"):
            return getattr(transformers, name)
    for kind in _KINDS:
        if name := getattr(modeling_auto, kind).get(config.model_type):
            return getattr(transformers, name)
    raise UnknownModel(f"transformers has no `{config.model_type}` with a language model's head")


def build(workload: Workload, config: Any) -> torch.nn.Module:
    """Make the model as `from_pretrained` leaves it, before it is given to DeepSpeed."""
    model: torch.nn.Module = model_class(config)._from_config(config, dtype=DTYPES[workload.load_dtype])
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
    kind = peft.TaskType.SEQ_2_SEQ_LM if model.config.is_encoder_decoder else peft.TaskType.CAUSAL_LM
    config = peft.LoraConfig(r=lora.rank, target_modules=modules, task_type=kind)
    adapted: torch.nn.Module = peft.get_peft_model(model, config, autocast_adapter_dtype=not stage3)
    return adapted


def vocabulary(config: Any) -> int | None:
    """Say how many tokens the model knows, if it says so."""
    found: int | None = getattr(config.get_text_config(), "vocab_size", None)
    return found


def batch(workload: Workload, config: Any, device: torch.device) -> Mapping[str, Any]:
    """Make one micro-batch of token ids, shape (micro-batch, sequence length), with labels."""
    size = (int(workload.ds_config["train_micro_batch_size_per_gpu"]), workload.seq_len)
    tokens = {name: torch.zeros(size, dtype=torch.long, device=device) for name in ("input_ids", "labels")}
    return tokens if config.is_encoder_decoder else {**tokens, "use_cache": False}
