"""Views whose shape and strides a rehearsal computes by itself, against those of real tensors."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.program

SIZES = st.lists(st.sampled_from([-1, 0, 1, 2, 3, 4, 6, 12]), max_size=4).map(tuple)


@given(SIZES, SIZES)
def test_a_view_of_a_contiguous_tensor_is_the_one_that_torch_makes(
    base: tuple[int, ...], size: tuple[int, ...]
) -> None:
    import torch

    from zlaunch.estimate.rehearsal.fake_tensors import contiguous, inferred

    real = torch.empty([abs(length) for length in base], device="meta")
    assert real.numel() == 0 or real.stride() == contiguous(tuple(real.shape))
    try:
        view = real.view(size)
    except RuntimeError:
        assert inferred(size, real.numel()) == ()
        return
    shape = inferred(size, real.numel())
    if size == () or real.numel() == 0:
        assert shape == ()  # torch is asked
    else:
        assert (shape, contiguous(shape)) == (tuple(view.shape), view.stride())
        assert math.prod(shape) == real.numel()
