"""Operators of tensors whose types differ fail in a rehearsal as for real."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")

from zlaunch.estimate.rehearsal.fake_tensors import ONE_TYPE, check_types  # noqa: E402

aten = torch.ops.aten
HALF, WHOLE = torch.bfloat16, torch.float32


def ones(*shape: int, dtype: Any = HALF) -> Any:
    return torch.ones(shape, dtype=dtype)


INDEX = torch.zeros(4, dtype=torch.long)
CONVOLUTION = ([1], [0], [1], False, [0], 1)
CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mm": (aten.mm.default, (ones(4, 4), ones(4, 4, dtype=WHOLE))),
    "mv": (aten.mv.default, (ones(4, 4), ones(4, dtype=WHOLE))),
    "addmm": (aten.addmm.default, (ones(4, dtype=WHOLE), ones(4, 4), ones(4, 4))),
    "addmv": (aten.addmv.default, (ones(4, dtype=WHOLE), ones(4, 4), ones(4))),
    "convolution": (
        aten.convolution.default,
        (ones(1, 4, 8), ones(4, 4, 3, dtype=WHOLE), None, *CONVOLUTION),
    ),
    "bias of a convolution": (
        aten.convolution.default,
        (ones(1, 4, 8), ones(4, 4, 3), ones(4, dtype=WHOLE), *CONVOLUTION),
    ),
    "nll_loss": (aten.nll_loss_forward.default, (ones(4, 4), INDEX, ones(4, dtype=WHOLE), 1, -100)),
    "index_put": (aten.index_put.default, (ones(4, 4, dtype=WHOLE), [INDEX[:1]], ones(1, 4))),
    "layer_norm": (aten.native_layer_norm.default, (ones(2, 4, dtype=WHOLE), [4], ones(4), ones(4), 1e-5)),
    "group_norm": (
        aten.native_group_norm.default,
        (ones(2, 4, 8, dtype=WHOLE), ones(4), ones(4), 2, 4, 8, 2, 1e-5),
    ),
    "index_add": (aten.index_add.default, (ones(4, 4, dtype=WHOLE), 0, INDEX[:1], ones(1, 4))),
}


def error_of(call: Callable[[], object]) -> str | None:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", CALLS)
def test_types_that_differ_fail_with_the_words_of_torch(name: str) -> None:
    func, args = CALLS[name]
    real = error_of(lambda: func(*args))
    assert real is not None
    assert error_of(lambda: check_types(func, args, {}, ONE_TYPE[id(func)])) == real


def test_types_that_autocast_converts_do_not_fail() -> None:
    func, args = CALLS["mm"]
    with torch.autocast("cpu", HALF):
        assert error_of(lambda: check_types(func, args, {}, ONE_TYPE[id(func)])) is None


@pytest.mark.parametrize("name", ["layer_norm", "group_norm"])
def test_norms_with_weights_that_the_cpu_converts_do_not_fail(name: str) -> None:
    func, args = CALLS[name]
    args = (args[0].to(HALF), *(arg.to(WHOLE) if isinstance(arg, torch.Tensor) else arg for arg in args[1:]))
    assert error_of(lambda: func(*args)) is None
    assert error_of(lambda: check_types(func, args, {}, ONE_TYPE[id(func)])) is None
