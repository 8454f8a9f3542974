"""Optimizers as they were published, where torch has none: what DeepSpeed's own are compared with."""

import inspect
import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import optim

from zlaunch.parity.program.measured import LAST_BIT

UNSURE: Final = "unsure"
"""State of a weight: the length of the part of its last update that rounding decides."""

_KERNELS: Final = ("fused", "foreach", "capturable", "differentiable")
"""Options that choose how something is computed, not what."""
_ROUNDING: Final = 1e-6
"""A sum of two numbers in fp32 may be off by this part of them."""
_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
"""Of Newton and Schulz's iteration, by Jordan."""
_ITERATIONS: Final = 5


class Lion(optim.Optimizer):  # type: ignore[misc]
    """The sign of an average of momentum and gradient (Chen et al. 2023, arXiv:2302.06675, algorithm 2)."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        """Take DeepSpeed's names and defaults."""
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @property
    def momentum_rounding(self) -> float:
        """How far 1 - beta is off, as a part of it, if beta is a number in fp32."""
        betas: list[float] = [group["betas"][1] for group in self.param_groups]
        return LAST_BIT / (1 - max(betas))

    def step(self) -> None:
        """Update all weights that have a gradient."""
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        self._update(weight, group)

    def _update(self, weight: torch.Tensor, group: Mapping[str, Any]) -> None:
        state, rate, (first, second) = self.state[weight], group["lr"], group["betas"]
        momentum = state.setdefault("exp_avg", torch.zeros_like(weight))
        old, new = first * momentum, (1 - first) * weight.grad
        direction = old + new
        doubtful = (direction.abs() < _ROUNDING * (old.abs() + new.abs())).sum()
        state[UNSURE] = 2 * rate * math.sqrt(float(doubtful))
        weight.mul_(1 - rate * group["weight_decay"]).add_(direction.sign(), alpha=-rate)
        momentum.mul_(second).add_(weight.grad, alpha=1 - second)


class Muon(optim.Optimizer):  # type: ignore[misc]
    """Orthogonalized momentum for hidden matrices, AdamW for the rest (Jordan et al. 2024).

    Groups have `use_muon`. The iteration is computed in fp32; engines compute it in 16 bits.
    """

    def __init__(self, groups: list[dict[str, Any]], dtype: torch.dtype, half: torch.dtype) -> None:
        """Take the formats that the engine computes in: of gradients, and of the iteration."""
        super().__init__([group for group in groups if group["use_muon"]], {})
        self._dtype, self._half, self._rest = dtype, half, None
        if rest := [group for group in groups if not group["use_muon"]]:
            self._rest = optim.AdamW(rest)
            self._rest.state = self.state

    def step(self) -> None:
        """Update all weights; each has a gradient."""
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    self._update(weight, group)
        if self._rest is not None:
            self._rest.step()

    def _update(self, weight: torch.Tensor, group: Mapping[str, Any]) -> None:
        state, rate = self.state[weight], group["lr"]
        momentum = state.setdefault("momentum_buffer", torch.zeros_like(weight))
        momentum.lerp_(weight.grad, 1 - group["momentum"])
        ahead = weight.grad.lerp(momentum, group["momentum"])
        update = _orthogonal(ahead, torch.float32)
        rounded = _orthogonal(ahead.to(self._dtype).float(), self._half).to(self._dtype)
        state[UNSURE] = rate * float((update - rounded).norm())
        weight.mul_(1 - rate * group["weight_decay"]).add_(update, alpha=-rate)


def _orthogonal(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bring the singular values of a matrix, or of each one in a batch, close to 1."""
    rows, columns = matrix.shape[-2:]
    flat = matrix
    if matrix.ndim == 4:  # of a convolution
        flat = matrix.flatten(1)
    first, third, fifth = _COEFFICIENTS
    values = flat / (flat.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    is_tall = flat.shape[-2] > flat.shape[-1]
    if is_tall:
        values = values.mT
    values = values.to(dtype)
    for _ in range(_ITERATIONS):
        square = values @ values.mT
        values = first * values + (third * square + fifth * square @ square) @ values
    if is_tall:
        values = values.mT
    scale = math.sqrt(max(1.0, rows / columns))
    return values.float().reshape(matrix.shape) * scale


def uses_muon(name: str, weight: torch.Tensor) -> bool:
    """Whether DeepSpeed gives a weight to Muon, and not to Adam."""
    return weight.ndim >= 2 and not any(part in name.lower() for part in ("embed", "lm_head"))


_ADAMS: Final = ("adam", "fusedadam", "deepspeedcpuadam")
"""Names of Adam, whose weight decay may be a part of the gradient."""
_COUPLED: Final = "coupled adam"
_CLASSES: Final[Mapping[str, type[optim.Optimizer]]] = {
    _COUPLED: optim.Adam,
    **dict.fromkeys((*_ADAMS, "adamw"), optim.AdamW),
    **dict.fromkeys(("lion", "fusedlion", "deepspeedcpulion"), Lion),
    **dict.fromkeys(("adagrad", "deepspeedcpuadagrad"), optim.Adagrad),
}
"""Name in a ds_config, or class of DeepSpeed → class of torch, or of the publication."""


def class_of(name: str, is_decoupled: bool) -> type[optim.Optimizer] | None:
    """Return the class that stands for an optimizer of DeepSpeed; None if it has none by that name."""
    name = name.lower()
    if name in _ADAMS and not is_decoupled:
        name = _COUPLED
    return _CLASSES.get(name)


def options_of(kind: type[optim.Optimizer], options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out options that decide nothing of what the optimizer computes."""
    known = inspect.signature(kind.__init__).parameters.keys() - {"params", *_KERNELS}
    return {name: value for name, value in options.items() if name in known}


def reference_of(
    section: Mapping[str, Any], groups: list[dict[str, Any]], names: Mapping[int, str], dtype: torch.dtype
) -> Any:
    """Create the optimizer that a section of a ds_config names, for gradients of a `dtype`.

    `names` are those of the weights, by id.
    """
    name, options = section["type"], section.get("params", {})
    if name.lower() == "muon":
        return _muon(_halves(groups, options, names), options, dtype)
    kind: Any = class_of(name, options.get("adam_w_mode", True)) or getattr(optim, name)
    return kind(groups, **options_of(kind, options))


def _muon(halves: list[dict[str, Any]], options: Mapping[str, Any], dtype: torch.dtype) -> Muon:
    half = torch.float16
    if options.get("ns_method") == "standard":
        half = torch.bfloat16
    return Muon(halves, dtype, half)


def _halves(
    groups: list[dict[str, Any]], options: Mapping[str, Any], names: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Split each group into matrices for Muon and the rest for AdamW, with DeepSpeed's defaults."""
    both, decay = options.get("lr"), options.get("weight_decay", 0.0)
    adam = {"betas": options.get("betas", (0.9, 0.95)), "eps": options.get("eps", 1e-10)}
    adam["lr"] = options.get("adam_lr") or both or 3e-4
    muon = {"momentum": options.get("momentum", 0.95), "lr": options.get("muon_lr") or both or 0.02}
    halves: list[dict[str, Any]] = []
    for group in groups:
        shared = {"weight_decay": group.get("weight_decay", decay)}
        matrices, others = [], []
        for weight in group["params"]:
            if uses_muon(names[id(weight)], weight):
                matrices.append(weight)
            else:
                others.append(weight)
        for use_muon, weights, settings in ((True, matrices, muon), (False, others, adam)):
            if weights:
                halves.append({"params": weights, "use_muon": use_muon, **settings, **shared})
    return halves
