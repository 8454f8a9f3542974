"""`from_pretrained` without reading weights.

It runs as it is where the files are on this machine, and gets tensors of the sizes that their heads say. Else
it makes the model of the same config, in the same format.
"""

import contextlib
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import PreTrainedModel
from transformers.utils import cached_file

from zlaunch.estimate.rehearsal import liger
from zlaunch.estimate.rehearsal.model import CannotTell, base_of
from zlaunch.estimate.rehearsal.program import weights
from zlaunch.estimate.rehearsal.program.mode import ProgramMode
from zlaunch.job.trainer_releases import is_before

_OF_FILES: Final = (
    *(
        "cache_dir",
        "force_download",
        "local_files_only",
        "token",
        "use_auth_token",
        "revision",
        "code_revision",
    ),
    *("subfolder", "proxies", "trust_remote_code", "_from_auto", "_from_pipeline", "_commit_hash"),
)
"""Arguments about where the files of a model are."""
_OF_WEIGHTS: Final = (
    *("state_dict", "ignore_mismatched_sizes", "low_cpu_mem_usage", "_fast_init", "use_safetensors"),
    *("weights_only", "variant", "max_memory", "offload_folder", "offload_state_dict", "offload_buffers"),
    *("adapter_kwargs", "adapter_name", "generation_config", "key_mapping", "from_tf", "from_flax", "mirror"),
    *("tqdm_class", "disable_mmap", "resume_download", "use_kernels", "allow_all_kernels", "kernel_config"),
)
"""Arguments about how weights are read, which they are not."""


def apply(mode: ProgramMode) -> None:
    """Let transformers load models without their weights."""
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # threads have no fake tensors
    weights.apply(mode)
    load = PreTrainedModel.from_pretrained.__func__

    def from_pretrained(cls: type[PreTrainedModel], name: Any, *args: Any, **kwargs: Any) -> Any:
        if _has_weights(name, kwargs):
            return load(cls, name, *args, **kwargs)
        return _from_config(cls, name, *args, **kwargs)

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    _use_flash_attention_of_torch()
    _use_stand_ins_of_liger()


def _use_stand_ins_of_liger() -> None:
    """Kernels of Liger are compiled for a GPU; what stands in for them allocates the same."""
    from transformers import trainer
    from transformers.utils import is_liger_kernel_available

    apply_kernels = getattr(trainer, "apply_liger_kernel", None)
    if apply_kernels is None:  # before transformers 4.56
        return

    def apply_stand_ins(model: torch.nn.Module, kernel_config: Mapping[str, Any] | None) -> None:
        base = base_of(model)
        if not is_liger_kernel_available() or not isinstance(base, PreTrainedModel):
            apply_kernels(model, kernel_config)
            return
        options = dict(kernel_config or {})
        fuses_loss = bool(options.pop("fused_linear_cross_entropy", True))
        if options or not liger.apply(base, base.config.model_type, fuses_loss=fuses_loss):
            raise CannotTell("it uses kernels of Liger that are not rehearsed")

    trainer.apply_liger_kernel = apply_stand_ins


def _has_weights(name: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether the weights are here, in files whose heads say the sizes of all tensors."""
    if not isinstance(name, (str, os.PathLike)) or kwargs.get("gguf_file") or kwargs.get("state_dict"):
        return False
    where = {key: kwargs[key] for key in ("cache_dir", "revision", "subfolder") if kwargs.get(key)}
    return any(
        cached_file(
            str(name), file, _raise_exceptions_for_missing_entries=False, local_files_only=True, **where
        )
        for file in ("model.safetensors", "model.safetensors.index.json")
    )


def _use_flash_attention_of_torch() -> None:
    """Flash attention of another package needs a GPU to be imported; torch's own allocates the same."""
    if is_before(transformers.__version__, "4.56"):
        choose = PreTrainedModel._autoset_attn_implementation.__func__

        def chosen(cls: type[PreTrainedModel], config: Any, *args: Any, **kwargs: Any) -> Any:
            config._attn_implementation = _without_flash(config._attn_implementation)
            return choose(cls, config, *args, **kwargs)

        PreTrainedModel._autoset_attn_implementation = classmethod(chosen)
        return
    adjust = PreTrainedModel._check_and_adjust_attn_implementation

    def adjusted(self: PreTrainedModel, wanted: str | None, *args: Any, **kwargs: Any) -> Any:
        return adjust(self, _without_flash(wanted), *args, **kwargs)

    PreTrainedModel._check_and_adjust_attn_implementation = adjusted


def _without_flash(attention: str | None) -> str | None:
    if attention is not None and attention.rpartition("/")[2].startswith("flash"):
        return "sdpa"
    return attention


def _from_config(
    cls: type[PreTrainedModel], name: Any, *model_args: Any, config: Any = None, **kwargs: Any
) -> Any:
    of_files = {key: kwargs.pop(key) for key in _OF_FILES if key in kwargs}
    for key in _OF_WEIGHTS:
        kwargs.pop(key, None)
    wants_info = kwargs.pop("output_loading_info", False)
    legacy = kwargs.pop("torch_dtype", None)
    dtype = kwargs.pop("dtype", None) or legacy
    device_map = kwargs.pop("device_map", None)
    attention = {key: kwargs.pop(key) for key in ("attn_implementation",) if key in kwargs}
    if kwargs.pop("quantization_config", None) is not None:
        raise CannotTell("it loads quantized weights, which are not supported")
    for key in ("tp_plan", "tp_size", "device_mesh", "distributed_config"):
        if kwargs.pop(key, None) is not None:
            raise CannotTell(f"it splits a model with `{key}`")
    if not isinstance(config, transformers.PretrainedConfig):
        known = {key: value for key, value in of_files.items() if not key.startswith("_")}
        config, kwargs = cls.config_class.from_pretrained(
            config if config is not None else name, return_unused_kwargs=True, **known, **kwargs
        )
    if getattr(config, "quantization_config", None) is not None:
        raise CannotTell("its model has quantized weights, which are not supported")
    key = "torch_dtype" if is_before(transformers.__version__, "4.56") else "dtype"
    model = cls._from_config(config, *model_args, **{key: _dtype(dtype, name, config)}, **attention, **kwargs)
    if is_before(transformers.__version__, "5.0"):
        model.tie_weights()
    if isinstance(name, (str, os.PathLike)):
        model.config.name_or_path = model.name_or_path = str(name)
    model.eval()
    if device_map is not None:
        model.to(torch.device("cuda"))
    if wants_info:
        return model, {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": [], "error_msgs": []}
    return model


def _dtype(wanted: Any, name: Any, config: Any) -> torch.dtype:
    """Choose the format of the weights as transformers does."""
    if wanted is None and is_before(transformers.__version__, "5.0"):
        return torch.float32
    if wanted is None or wanted == "auto":
        text = getattr(config, "text_config", None)
        known = getattr(config, "dtype", None) or getattr(text, "dtype", None) or _dtype_of_file(name)
        wanted = known or torch.float32
    if isinstance(wanted, dict):
        wanted = wanted.get("", torch.float32)
    if isinstance(wanted, str):
        wanted = getattr(torch, wanted)
    assert isinstance(wanted, torch.dtype)
    return wanted


def _dtype_of_file(name: Any) -> torch.dtype | None:
    """Read the format of the first weight from the head of a local file; None if there is none."""
    with contextlib.suppress(OSError, ValueError, struct.error, TypeError):
        return next(weights.formats(Path(name)), None)
    return None
