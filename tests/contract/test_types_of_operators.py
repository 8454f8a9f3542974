"""Operators of tensors whose types differ fail in a rehearsal as for real."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

Call = tuple[Any, tuple[Any, ...]]
"""An operator of torch, and its arguments."""


@cache
def calls() -> dict[str, Call]:
    import torch

    aten, half, whole = torch.ops.aten, torch.bfloat16, torch.float32
    index = torch.zeros(4, dtype=torch.long)
    convolution = ([1], [0], [1], False, [0], 1)

    def ones(*shape: int, dtype: Any = half) -> Any:
        return torch.ones(shape, dtype=dtype)

    return {
        "mm": (aten.mm.default, (ones(4, 4), ones(4, 4, dtype=whole))),
        "mv": (aten.mv.default, (ones(4, 4), ones(4, dtype=whole))),
        "addmm": (aten.addmm.default, (ones(4, dtype=whole), ones(4, 4), ones(4, 4))),
        "addmv": (aten.addmv.default, (ones(4, dtype=whole), ones(4, 4), ones(4))),
        "convolution": (
            aten.convolution.default,
            (ones(1, 4, 8), ones(4, 4, 3, dtype=whole), None, *convolution),
        ),
        "bias of a convolution": (
            aten.convolution.default,
            (ones(1, 4, 8), ones(4, 4, 3), ones(4, dtype=whole), *convolution),
        ),
        "nll_loss": (aten.nll_loss_forward.default, (ones(4, 4), index, ones(4, dtype=whole), 1, -100)),
        "index_put": (aten.index_put.default, (ones(4, 4, dtype=whole), [index[:1]], ones(1, 4))),
        "layer_norm": (
            aten.native_layer_norm.default,
            (ones(2, 4, dtype=whole), [4], ones(4), ones(4), 1e-5),
        ),
        "group_norm": (
            aten.native_group_norm.default,
            (ones(2, 4, 8, dtype=whole), ones(4), ones(4), 2, 4, 8, 2, 1e-5),
        ),
        "index_add": (aten.index_add.default, (ones(4, 4, dtype=whole), 0, index[:1], ones(1, 4))),
    }


NAMES = (
    *("mm", "mv", "addmm", "addmv", "convolution", "bias of a convolution"),
    *("nll_loss", "index_put", "layer_norm", "group_norm", "index_add"),
)


def check(func: Any, args: tuple[Any, ...]) -> None:
    """Check the arguments as a rehearsal does."""
    from zlaunch.estimate.rehearsal.fake_tensors import ONE_TYPE, check_types

    check_types(func, args, {}, ONE_TYPE[id(func)])


def error_of(call: Callable[[], object]) -> str | None:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return None


def test_every_call_has_a_name() -> None:
    assert tuple(calls()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_types_that_differ_fail_with_the_words_of_torch(name: str) -> None:
    func, args = calls()[name]
    real = error_of(lambda: func(*args))
    assert real is not None
    assert error_of(lambda: check(func, args)) == real


def test_types_that_autocast_converts_do_not_fail() -> None:
    import torch

    func, args = calls()["mm"]
    with torch.autocast("cpu", torch.bfloat16):
        assert error_of(lambda: check(func, args)) is None


@pytest.mark.parametrize("name", ["layer_norm", "group_norm"])
def test_norms_with_weights_that_the_cpu_converts_do_not_fail(name: str) -> None:
    import torch

    func, (first, *others) = calls()[name]
    weights = (arg.to(torch.float32) if isinstance(arg, torch.Tensor) else arg for arg in others)
    args = (first.to(torch.bfloat16), *weights)
    assert error_of(lambda: func(*args)) is None
    assert error_of(lambda: check(func, args)) is None
