"""CUDA's choice of kernels for attention and dropout, for the fake GPU.

The functions are patched, not intercepted by a mode: modes are disabled while autograd runs, and there
activation checkpointing recomputes the forward pass.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from zlaunch.estimate.rehearsal.device import NAME
from zlaunch.estimate.rehearsal.fake_tensors import KernelMemory

aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)


def apply() -> None:
    """Patch attention and dropout so that the fake GPU uses the kernels that CUDA would."""
    original_attention, original_dropout = functional.scaled_dot_product_attention, functional.dropout

    def attention(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if query.device.type == NAME:
            given = ("key", "value", "attn_mask", "dropout_p", "is_causal")
            return _attention(query, **dict(zip(given, args, strict=False)), **kwargs)
        return original_attention(query, *args, **kwargs)

    def dropout(
        input: torch.Tensor,  # noqa: A002 - torch's name
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> torch.Tensor:
        if not training or p == 0:
            return input
        if input.device.type != NAME or inplace:
            return original_dropout(input, p, training, inplace)
        return aten.native_dropout(input, p, True)[0]

    functional.scaled_dot_product_attention = attention
    functional.dropout = torch.dropout = dropout


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    **options: Any,
) -> torch.Tensor:
    """Choose a kernel like `sdp_utils.cpp`: flash, then memory-efficient, then math.

    `query` is (batch, heads, tokens, head size); `key` and `value` may have fewer heads.
    """
    is_causal, scale = options.get("is_causal", False), options.get("scale")
    grouped, size = options.get("enable_gqa", False), query.shape[-1]
    if attn_mask is None and query.dtype in _HALF and size <= 256 and value.shape[-1] == size:
        return _flash((query, key, value), dropout_p, is_causal, scale)
    if not grouped and query.shape[1] == key.shape[1]:
        bias = None
        if attn_mask is not None:
            bias = _bias(attn_mask, query, key)
        needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=grouped
    )[0]


def _flash(
    tensors: Sequence[torch.Tensor], dropout_p: float, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """Run flash attention on query, key and value, with the head size padded to a multiple of 8."""
    size = tensors[0].shape[-1]
    if pad := -size % 8:
        scale = scale or 1 / math.sqrt(size)
        tensors = [functional.pad(tensor, (0, pad)) for tensor in tensors]
    out = aten._scaled_dot_product_flash_attention(*tensors, dropout_p, is_causal, False, scale=scale)[0]
    return out[..., :size] if pad else out


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Convert a mask to a bias for the scores; CUDA creates a new one in each call."""
    if mask.dtype is torch.bool:
        zero = torch.zeros((), dtype=query.dtype, device=query.device)
        mask = torch.where(mask, zero, float("-inf")).to(query.dtype)
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _flash_backward_bytes(args: Sequence[Any]) -> list[int]:
    """Return the sizes of the buffers of flash attention's backward kernel (`flash_api.cpp`), in bytes."""
    _, query, key = args[:3]
    batch, heads, tokens, size = query.shape
    key_heads, key_tokens = key.shape[1], key.shape[2]
    rows = batch * heads * _rounded(tokens, 128)
    sizes = [rows * _rounded(size, 32) * 4, rows * 4]
    if key_heads != heads:
        sizes += [batch * key_tokens * heads * size * query.element_size()] * 2
    return sizes


def _softmax_backward_bytes(args: Sequence[Any]) -> list[int]:
    """Return the size of the product of gradient and output (`softmax_backward_cuda_out`), in bytes."""
    gradient, output = args[:2]
    item = torch.promote_types(gradient.dtype, output.dtype).itemsize
    return [output.numel() * item]


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


_WORKSPACES = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward_bytes,
    aten._softmax_backward_data.default: _softmax_backward_bytes,
}
_OF_CUBLAS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)


def kernel_memory(cublas_bytes: int) -> KernelMemory:
    """Return what kernels allocate on a GPU where each handle of cuBLAS gets `cublas_bytes`."""
    return KernelMemory(_WORKSPACES, _OF_CUBLAS, cublas_bytes)
