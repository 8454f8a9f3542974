"""What an allocation is for: told by the line of DeepSpeed that made it, else by phase and shape."""

import linecache
import re
import sys
from types import CodeType, FrameType

import torch

_MODEL = "the model's own"

_FILES: tuple[tuple[str, str], ...] = (
    (r"/torch/optim/|/transformers/optimization", "optimizer step"),
    (r"/deepspeed/ops/adam/|/deepspeed/ops/(lamb|lion|adagrad)/", "optimizer states"),
    (r"/deepspeed/runtime/swap_tensor/", "swap buffers"),
    (r"/deepspeed/runtime/zero/linear|/deepspeed/runtime/activation_checkpointing/", _MODEL),
    (r"/deepspeed/runtime/(zero/|bf16_|fp16/|engine|base_)", ""),
)
"""File → the part of what it allocates; nothing if its functions differ. Other files say nothing."""

_FUNCTIONS: tuple[tuple[str, str], ...] = (
    (r"engine:(forward|backward|_do_backward|_backward_prologue|_backward_epilogue)", _MODEL),
    (r"engine:_configure_distributed_model|engine:_broadcast_model", "parameters"),
    (r"partition_parameters:.*gather.*|partition_parameters:wait", "gathered parameters"),
    (r"partition_parameters:.*|utils:defragment|parameter_offload:.*", "parameters"),
    (r"\w+:(setup_buckets|allreduce_.*|.*_bucket.*|.*ipg.*|.*reduce.*)", "buckets"),
    (
        r"\w+:(step|_?unscale.*|.*norm.*|.*_optimizer_step|_prepare_sub_group|_release_sub_group)",
        "optimizer step",
    ),
    (r"\w+:(copy_grads_in_partition|.*grad.*)", "gradients"),
    (r"\w+:_create_fp32_partitions", "master weights"),
    (r"\w+:(.*flatten.*|_create_fp16.*|.*fp16_partition.*|.*partitioned_groups.*)", "parameters"),
    (r"\w+:initialize_optimizer_states", "gradients"),
)
"""Module and function of DeepSpeed → part; the first that fits. None: its caller decides."""

_LINES: tuple[tuple[str, str], ...] = (
    (r"bucket|ipg", "buckets"),
    (r"exp_avg|momentum", "optimizer states"),
    (r"grad", "gradients"),
    (r"fp32|\.float\(\)", "master weights"),
)
"""Words in a line of an `__init__` or a set-up → part."""


class Attribution:
    """Says of a new tensor what it is for."""

    def __init__(self, vocabulary: int | None, *, half: bool) -> None:
        """Know tensors whose last dimension is the vocabulary as logits; `half` is the model's format."""
        self._vocabulary = vocabulary
        self._half = half
        self._weights: set[tuple[int, ...]] = set()
        self._known: dict[tuple[int, int], str | None] = {}
        self._codes: list[CodeType] = []
        """What is known by its identity has to live."""
        self.moment = ""
        """What the run is doing: load, initialize, forward, backward or step."""

    def know(self, model: torch.nn.Module) -> None:
        """Remember the shapes of a model's parameters: tensors like them are their gradients."""
        self._weights = {tuple(getattr(p, "ds_shape", p.shape)) for p in model.parameters()}

    def of(self, tensor: torch.Tensor) -> str:
        """Name the part that a tensor, just allocated, belongs to."""
        frame: FrameType | None = sys._getframe(3)
        while frame is not None:
            where = (id(frame.f_code), frame.f_lasti)  # to hash code, or to count its lines, takes longer
            part = self._known.get(where, "")
            if part == "":
                part = self._known[where] = _part_of_line(frame)
                self._codes.append(frame.f_code)
            if part is not None:
                return self._of_model(tensor) if part == _MODEL else self._for_now(part)
            frame = frame.f_back
        return self._of_model(tensor)

    def _for_now(self, part: str) -> str:
        """What holds gradients or weights during the step only is the step's."""
        passing = self.moment == "step" and part in ("gradients", "master weights", "parameters")
        return "optimizer step" if passing else part

    def _of_model(self, tensor: torch.Tensor) -> str:
        if self.moment in ("load", "initialize"):
            master = self.moment == "initialize" and self._half and tensor.dtype is torch.float32
            return "master weights" if master else "parameters"
        shape = tuple(tensor.shape)
        if len(shape) > 1 and shape in self._weights:
            return "gradients"
        if shape and shape[-1] == self._vocabulary:
            return "logits"
        return "activations"


def _part_of_line(frame: FrameType) -> str | None:
    """Find the part that a line of a program allocates for; None if that is not for it to say."""
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    found = next((part for pattern, part in _FILES if re.search(pattern, file)), None)
    if found:
        stays = function == "_init_group" or "state[" in linecache.getline(file, frame.f_lineno)
        return "optimizer states" if stays else found
    if found is None:
        return None
    name = f"{file.rsplit('/', 1)[1].removesuffix('.py')}:{function}"
    part = next((part for pattern, part in _FUNCTIONS if re.fullmatch(pattern, name)), None)
    if part is not None:
        return part
    line = linecache.getline(file, frame.f_lineno)
    return next((part for pattern, part in _LINES if re.search(pattern, line)), None)
