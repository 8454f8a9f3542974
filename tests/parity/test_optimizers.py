"""The references for optimizers that torch has not."""

import pytest

pytestmark = pytest.mark.program


def test_lion_moves_each_weight_by_the_learning_rate_and_none_without_a_gradient() -> None:
    import torch

    from zlaunch.parity.program.optimizers import Lion

    weight = torch.zeros(3)
    weight.grad = torch.tensor([2.0, -0.1, 0.0])
    Lion([weight], lr=0.1).step()
    assert torch.equal(weight, torch.tensor([-0.1, 0.1, 0.0]))


def test_lion_is_not_sure_of_a_sign_where_momentum_and_gradient_cancel_out() -> None:
    import torch

    from zlaunch.parity.program.optimizers import UNSURE, Lion

    weight, unsure = torch.zeros(1), []
    lion = Lion([weight], lr=0.1, betas=(0.5, 0.0))
    for gradient in (1.0, -1.0):
        weight.grad = torch.tensor([gradient])
        lion.step()
        unsure.append(lion.state[weight][UNSURE])
    assert unsure == [0.0, 0.2]


def test_an_update_of_muon_has_singular_values_near_one() -> None:
    import torch

    from zlaunch.parity.program.optimizers import Muon

    weight = torch.zeros(8, 16)
    weight.grad = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    group = {"params": [weight], "use_muon": True, "lr": 1.0, "momentum": 0.95, "weight_decay": 0.0}
    Muon([group], torch.float32, torch.float16).step()
    values = torch.linalg.svdvals(weight)
    assert 0.6 < values.min() < values.max() < 1.3
