"""Stand-ins for linear layers with weights of four bits, as QLoRA trains on them; they compute nothing.

From bitsandbytes 0.50 (`autograd/_functions.py`, `nn/modules.py`). A weight is kept in half a byte per
element, and a scale for 64 of them. Each pass makes the whole weight again, and saves nothing. peft copies
the result, to which it adds that of the adapter (`tuners/lora/bnb.py`).
"""

from typing import Any, Final

import torch

BLOCK: Final = 64
"""Elements with one scale, of four bytes; a second quantization makes it one, and four for 256 blocks."""
NESTED: Final = 256


def quantize(model: Any, *, nested: bool) -> None:
    """Quantize all linear layers but the output layer, as transformers does."""
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        if type(module) is torch.nn.Linear and module is not head:
            module.__class__ = _Linear4bit
            numel = module.weight.numel()
            scales = -(-numel // BLOCK)
            num_bytes = 4 * scales
            if nested:
                num_bytes = scales + 4 * -(-scales // NESTED)
            packed = module.weight.new_empty((-(-numel // 2), 1), dtype=torch.uint8)
            module.weight = torch.nn.Parameter(packed, requires_grad=False)
            # As bytes, because an engine casts numbers to its own format.
            module.register_buffer("scales", packed.new_empty(num_bytes), persistent=False)


def num_parameters(model: torch.nn.Module) -> tuple[int, int]:
    """Count the elements of all parameters, and of those that are trained."""
    numels = [(_numel_of(parameter), parameter.requires_grad) for parameter in model.parameters()]
    return sum(numel for numel, _ in numels), sum(numel for numel, is_trained in numels if is_trained)


def _numel_of(parameter: torch.nn.Parameter) -> int:
    """Count the elements of a parameter: two in each byte of a quantized one."""
    if parameter.dtype is torch.uint8:
        return 2 * int(parameter.numel())
    return int(getattr(parameter, "ds_numel", parameter.numel()))


class _Linear4bit(torch.nn.Linear):  # type: ignore[misc]
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Product.apply(hidden, self)
        return result.clone()

    def whole_weight(self, dtype: torch.dtype) -> torch.Tensor:
        return self.weight.new_empty((self.out_features, self.in_features), dtype=dtype)


class _Product(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, layer: _Linear4bit) -> torch.Tensor:
        ctx.layer = layer
        return torch.nn.functional.linear(hidden, layer.whole_weight(hidden.dtype), layer.bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient @ ctx.layer.whole_weight(gradient.dtype), None
