"""The constructors of torch's optimizers and schedulers, as read from its source and as they are."""

import inspect
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args

import pytest

from zlaunch.dsconfig.schema.optimizer import TorchOptimizerName
from zlaunch.dsconfig.schema.scheduler import TorchSchedulerName
from zlaunch.hosts.machine.torch_optim import Constructors, Kind, constructors_in

CLASSES: list[tuple[Kind, str, str]] = [
    *(("optimizer", "torch.optim", name) for name in get_args(TorchOptimizerName)),
    *(("scheduler", "torch.optim.lr_scheduler", name) for name in get_args(TorchSchedulerName)),
]


@pytest.fixture
def find() -> Constructors:
    import torch

    found = constructors_in(Path(torch.__file__).parent)
    assert found is not None
    return found


@pytest.mark.parametrize(("kind", "module", "name"), CLASSES)
def test_the_arguments_read_from_the_source_are_those_of_the_class(
    kind: Kind, module: str, name: str, find: Constructors
) -> None:
    read = find(kind, name)
    assert read is not None
    signature = inspect.signature(resolve_name(f"{module}:{name}"))
    _, *given = signature.parameters.values()
    assert read.names == {one.name for one in given}
    assert list(read.needed) == [one.name for one in given if one.default is one.empty]


@pytest.mark.parametrize(
    ("kind", "name", "params"),
    [
        ("optimizer", "SGD", {"lr": 0.1, "momentums": 0.9}),
        ("optimizer", "SGD", {"lr": 0.1, "momentum": 0.9}),
        ("scheduler", "CosineAnnealingLR", {"eta_min": 0}),
        ("scheduler", "CosineAnnealingLR", {"T_max": 10, "eta_min": 0}),
        ("scheduler", "StepLR", {"step_size": 3, "steps": 1}),
        ("scheduler", "ReduceLROnPlateau", {}),
    ],
)
def test_torch_refuses_the_arguments_that_zlaunch_refuses(
    kind: Kind, name: str, params: dict[str, Any], find: Constructors
) -> None:
    import torch

    read = find(kind, name)
    assert read is not None
    is_right = params.keys() <= read.names and params.keys() >= set(read.needed)
    weights = [torch.nn.Parameter(torch.zeros(2))]
    first: Any = weights if kind == "optimizer" else torch.optim.SGD(weights, lr=0.1)
    module = "torch.optim" if kind == "optimizer" else "torch.optim.lr_scheduler"
    try:
        resolve_name(f"{module}:{name}")(first, **params)
    except TypeError:
        assert not is_right
    else:
        assert is_right


def test_a_class_that_the_source_does_not_show_is_unknown(tmp_path: Path) -> None:
    nothing = constructors_in(tmp_path)
    assert nothing is not None
    assert nothing("optimizer", "SGD") is None
    assert constructors_in(None) is None
