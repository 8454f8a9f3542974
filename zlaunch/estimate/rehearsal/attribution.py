"""Category of an allocation: from the line of DeepSpeed that made it, else from phase and shape."""

import linecache
import re
import sys
from types import CodeType, FrameType

import torch

_MODEL = "by the model"
"""Allocated by the model's own code: the category depends on phase and shape."""

_FILES: tuple[tuple[str, str], ...] = (
    (r"/transformers/models/", _MODEL),
    (r"/torch/optim/|/transformers/optimization", "optimizer step"),
    (r"/deepspeed/ops/adam/|/deepspeed/ops/(lamb|lion|adagrad)/", "optimizer states"),
    (r"/deepspeed/runtime/swap_tensor/", "swap buffers"),
    (r"/deepspeed/runtime/zero/linear|/deepspeed/runtime/activation_checkpointing/", _MODEL),
    (r"/deepspeed/runtime/(zero/|bf16_|fp16/|engine|base_)", ""),
)
"""Pattern of a file → category of its allocations; empty if that depends on the function. For any other
file, the caller decides."""

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
"""Pattern of `module:function` in DeepSpeed → category; the first match counts."""

_STATES = ("_init_group", "_process_value_according_to_param_policy")
"""Functions of torch's optimizers that create states, or load them."""

_LINES: tuple[tuple[str, str], ...] = (
    (r"bucket|ipg", "buckets"),
    (r"exp_avg|momentum", "optimizer states"),
    (r"grad", "gradients"),
    (r"fp32|\.float\(\)", "master weights"),
)
"""Pattern of a source line, for all other functions of DeepSpeed → category."""


class Attribution:
    """Assigns each new tensor to a category."""

    def __init__(self, vocab_size: int | None, *, is_half: bool) -> None:
        """Tensors whose last dimension is `vocab_size` count as logits.

        `is_half` tells whether the model is trained in bf16 or fp16, with master weights in fp32.
        """
        self._vocab_size = vocab_size
        self._is_half = is_half
        self._weight_shapes: set[tuple[int, ...]] = set()
        self._categories: dict[tuple[int, int], str | None] = {}
        self._codes: list[CodeType] = []  # keeps the ids in the keys of _categories valid
        self.phase = ""
        """The current phase: load, initialize, forward, backward or step."""

    def learn(self, model: torch.nn.Module, vocab_size: int | None, *, is_half: bool) -> None:
        """Learn of a model what could not be said before it was made."""
        self._vocab_size, self._is_half = vocab_size, is_half
        self.set_model(model)

    def set_model(self, model: torch.nn.Module) -> None:
        """Remember the shapes of the parameters: tensors of these shapes count as gradients."""
        self._weight_shapes = {tuple(getattr(p, "ds_shape", p.shape)) for p in model.parameters()}

    def category_of(self, tensor: torch.Tensor) -> str:
        """Return the category of a tensor that was just allocated."""
        frame: FrameType | None = sys._getframe(3)
        while frame is not None:
            where = (id(frame.f_code), frame.f_lasti)  # hashing code or computing f_lineno is slow
            category = self._categories.get(where, "")
            if category == "":
                category = self._categories[where] = _category_of_line(frame)
                self._codes.append(frame.f_code)
            if category == _MODEL:
                break
            if category in ("gradients", "master weights", "parameters") and self.phase == "step":
                return "optimizer step"  # temporary copies of gradients and weights
            if category is not None:
                return category
            frame = frame.f_back
        return self._by_shape(tensor)

    def _by_shape(self, tensor: torch.Tensor) -> str:
        if self.phase == "initialize" and self._is_half and tensor.dtype is torch.float32:
            return "master weights"
        if self.phase in ("load", "initialize"):
            return "parameters"
        shape = tuple(tensor.shape)
        if len(shape) > 1 and shape in self._weight_shapes:
            return "gradients"
        if shape and shape[-1] == self._vocab_size:
            return "logits"
        return "activations"


def _category_of_line(frame: FrameType) -> str | None:
    """Return the category of what a line allocates; None if its caller decides."""
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    category = next((category for pattern, category in _FILES if re.search(pattern, file)), None)
    if category and (function in _STATES or "state[" in linecache.getline(file, frame.f_lineno)):
        return "optimizer states"
    if category:
        return category
    if category is None:
        return None
    name = f"{file.rsplit('/', 1)[1].removesuffix('.py')}:{function}"
    category = next((category for pattern, category in _FUNCTIONS if re.fullmatch(pattern, name)), None)
    if category is not None:
        return category
    line = linecache.getline(file, frame.f_lineno)
    return next((category for pattern, category in _LINES if re.search(pattern, line)), None)
