"""Stand-ins for the kernels of Liger (`--use_liger_kernel`), which allocate what they do and compute nothing.

From liger-kernel 0.8.5, `ops/` and `transformers/monkey_patch.py`. The loss is computed from parts of the
hidden states, so that never all logits exist; normalizations and activations save their inputs alone.
"""

import inspect
import math
import re
import sys
from functools import partial
from typing import Any, Final

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

IN_PLACE: Final = ("llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "smollm3")
"""Model types whose normalizations write their gradient over the one that they get."""
APPLIED: Final = frozenset((*IN_PLACE, "gemma2", "gemma3_text", "olmo2", "olmo3", "exaone4"))
"""Model types whose kernels are all replaced here."""
_PARTLY = re.compile(
    r"deepseek_v[234]|gemma[34](_text)?|gemma4|glm4\w*|gpt_oss|internvl|llama4(_text)?|llava|granite|mllama\w*|"
    r"mixtral|muse_glimmer|nemotron|pixtral|qwen[23](_5)?_(vl|moe)\w*|qwen3_(next|5)\w*|phi3|paligemma|falcon_h1|"
    r"smolvlm|hunyuan_v1\w*"
)
"""The other types that Liger has kernels for."""

_MULTIPROCESSORS: Final = 132
"""Of an H100; gradients of a normalization's weight are added up from one row of each."""


def apply(model: torch.nn.Module, kind: str, *, fuses_loss: bool = True) -> bool:
    """Replace what Liger replaces in a model, its loss only on demand; return whether that is all of it."""
    if kind not in APPLIED:
        return not _PARTLY.fullmatch(kind)  # others are left as they are, by Liger too
    for module in model.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm"):
            module.forward = partial(_normalize, module, kind in IN_PLACE)
        elif name.endswith("MLP"):
            module.forward = partial(_activate, module)
    vars(sys.modules[type(model).__module__])["apply_rotary_pos_emb"] = _rotate
    if fuses_loss:
        forward: Any = partial(_forward, model)
        forward.__signature__ = inspect.signature(model.forward)  # by which the Trainer chooses columns
        model.forward = forward
    return True


def _normalize(module: Any, in_place: bool, hidden: torch.Tensor) -> torch.Tensor:
    normalized: torch.Tensor = _RmsNorm.apply(hidden, module.weight, in_place)
    return normalized


def _activate(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    gated: torch.Tensor = _GatedUnit.apply(module.gate_proj(hidden), module.up_proj(hidden))
    result: torch.Tensor = module.down_proj(gated)
    return result


def _rotate(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: object, **__: object
) -> tuple[torch.Tensor, torch.Tensor]:
    rotated: tuple[torch.Tensor, torch.Tensor] = _Rotary.apply(query, key, cos, sin)
    return rotated


def _forward(model: Any, labels: torch.Tensor, **inputs: Any) -> CausalLMOutputWithPast:
    hidden = getattr(model, model.base_model_prefix)(**inputs)[0]
    targets = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous().view(-1)
    loss = _LinearCrossEntropy.apply(hidden.view(-1, hidden.shape[-1]), model.lm_head.weight, targets)
    return CausalLMOutputWithPast(loss=loss)


class _RmsNorm(torch.autograd.Function):  # type: ignore[misc]
    """Saves its input, and one fp32 number per row."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, in_place: bool) -> torch.Tensor:
        rows = hidden.numel() // hidden.shape[-1]
        ctx.in_place = in_place
        ctx.save_for_backward(hidden, weight, hidden.new_empty(rows, dtype=torch.float32))
        return torch.empty_like(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, _ = ctx.saved_tensors
        of_weight = None
        if ctx.needs_input_grad[1]:
            each = hidden.new_empty((_MULTIPROCESSORS, hidden.shape[-1]), dtype=torch.float32)
            of_weight = each.sum(dim=0).to(weight.dtype)
        if not ctx.in_place:
            gradient = torch.zeros_like(gradient)
        return gradient, of_weight, None


class _GatedUnit(torch.autograd.Function):  # type: ignore[misc]
    """SwiGLU and GeGLU: saves both inputs, and writes their gradients over them."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(ctx.saved_tensors)


class _Rotary(torch.autograd.Function):  # type: ignore[misc]
    """Rotates in place; inputs that are not contiguous are copied."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        return _made_contiguous(query, key)

    @staticmethod
    def backward(ctx: Any, of_query: torch.Tensor, of_key: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (*_made_contiguous(of_query, of_key), None, None)


def _made_contiguous(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors)


class _LinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """Computes all gradients in the forward pass; the logits of a part take what the hidden states take."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        (tokens, width), vocabulary = hidden.shape, weight.shape[0]
        parts = math.ceil(vocabulary / width)
        size = min(tokens, 1 << (math.ceil(tokens / parts) - 1).bit_length())
        of_hidden = torch.zeros_like(hidden)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = hidden.new_zeros(tokens, dtype=torch.float32)
        logits = hidden.new_empty((size, vocabulary))
        for start in range(0, tokens, size):
            part = hidden[start : start + size]
            some = logits[: len(part)]
            torch.mm(part, weight.t(), out=some)
            torch.mm(some, weight, out=of_hidden[start : start + size])
            if of_weight is not None:
                torch.addmm(of_weight, some.t(), part, out=of_weight)
        ctx.save_for_backward(of_hidden, of_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden, of_weight, None
