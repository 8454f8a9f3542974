"""Optimizers and schedules: names, and the parameters of their constructors."""

import inspect
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from tests.contract.zlaunch_side import NO_DEFAULT, choices, plain, plain_defaults
from tests.each import each
from tools.asked import Asked
from zlaunch.config.client_optimizer import TESTED
from zlaunch.dsconfig.schema import optimizer, scheduler
from zlaunch.dsconfig.schema.section import Section

OPTIMIZERS: dict[str, tuple[str, type[Section]]] = {
    "FusedAdam": ("deepspeed.ops.adam:FusedAdam", optimizer.AdamParams),
    "DeepSpeedCPUAdam": ("deepspeed.ops.adam:DeepSpeedCPUAdam", optimizer.AdamParams),
    "torch AdamW": ("torch.optim:AdamW", optimizer.AdamParams),
    "FusedLion": ("deepspeed.ops.lion:FusedLion", optimizer.LionParams),
    "DeepSpeedCPULion": ("deepspeed.ops.lion:DeepSpeedCPULion", optimizer.LionParams),
    "torch Adagrad": ("torch.optim:Adagrad", optimizer.AdagradParams),
    "DeepSpeedCPUAdagrad": ("deepspeed.ops.adagrad:DeepSpeedCPUAdagrad", optimizer.AdagradParams),
    "FusedLamb": ("deepspeed.ops.lamb:FusedLamb", optimizer.LambParams),
}

NOT_FOR_PARAMS = {
    "DeepSpeedCPUAdam": {"adamw_mode"},  # the engine passes it itself, from `adam_w_mode`
    "FusedLamb": {"max_grad_norm"},  # the engine refuses it: `gradient_clipping` is at the top level
}

POPPED_FOR_ADAM = {"torch_adam", "foreach", "fp32_optimizer_states", "adam_w_mode"}
"""What the engine takes out of Adam's `params` before it calls a constructor; a test below holds it."""

DEFAULTS_OF_ANOTHER = {"torch AdamW"}
"""Chosen by `torch_adam` only; the defaults shown are those of DeepSpeed's own Adam."""

SCHEDULES: dict[str, type[Section]] = {
    "WarmupLR": scheduler.WarmupParams,
    "WarmupDecayLR": scheduler.WarmupDecayParams,
    "WarmupCosineLR": scheduler.WarmupCosineParams,
    "OneCycle": scheduler.OneCycleParams,
    "LRRangeTest": scheduler.LrRangeTestParams,
}

OPTIMIZER = each("name", OPTIMIZERS)
SCHEDULE = each("name", SCHEDULES)


def constructor(name: str) -> tuple[Any, type[Section]]:
    """Take the class of an optimizer, and our model of its parameters."""
    theirs, ours = OPTIMIZERS[name]
    return resolve_name(theirs), ours


def parameters(constructed: Any) -> dict[str, Any]:
    """Name a constructor's parameters after the model's, with their defaults as JSON has them."""
    _, _, *rest = inspect.signature(constructed.__init__).parameters.values()
    return {
        parameter.name: NO_DEFAULT if parameter.default is parameter.empty else plain(parameter.default)
        for parameter in rest
    }


def subclasses(module: Any, base: Any) -> set[str]:
    return {
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    }


def test_every_optimizer_of_deepspeed_has_a_model() -> None:
    from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS

    assert {*optimizer.KIND_OF} == {*DEEPSPEED_OPTIMIZERS}


def test_the_torch_optimizers_are_those_of_the_installed_torch() -> None:
    import torch

    others = {*get_args(optimizer.TorchOptimizerName)}
    assert others == subclasses(torch.optim, torch.optim.Optimizer) - {*optimizer.OPTIMIZERS}


def test_zero_takes_these_optimizers_of_torch_from_a_script() -> None:
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

    of_torch = {kind.__name__ for kind in ZERO_SUPPORTED_OPTIMIZERS if kind.__module__.startswith("torch.")}
    assert {*TESTED} == of_torch


def test_the_schedules_are_those_that_deepspeed_knows() -> None:
    from deepspeed.runtime import lr_schedules

    assert [*scheduler.DEEPSPEED_SCHEDULERS] == lr_schedules.VALID_LR_SCHEDULES


def test_every_schedule_of_deepspeed_has_a_model_here() -> None:
    from deepspeed.runtime import lr_schedules

    assert {*SCHEDULES} == {*lr_schedules.VALID_LR_SCHEDULES}


def test_the_torch_schedules_are_those_of_the_installed_torch() -> None:
    from torch.optim import lr_scheduler

    public = {name for name in subclasses(lr_scheduler, lr_scheduler.LRScheduler) if name[0] != "_"}
    assert {*get_args(scheduler.TorchSchedulerName)} == public


@OPTIMIZER
def test_every_parameter_of_an_optimizer_can_be_written(name: str) -> None:
    constructed, model = constructor(name)
    assert {*parameters(constructed)} - NOT_FOR_PARAMS.get(name, set()) - {*model.model_fields} == set()


@pytest.mark.parametrize("model", dict.fromkeys(model for _, model in OPTIMIZERS.values()))
def test_every_parameter_that_can_be_written_has_a_taker(model: type[Section]) -> None:
    taken = {
        key for name, (_, of) in OPTIMIZERS.items() if of is model for key in parameters(constructor(name)[0])
    }
    taken |= POPPED_FOR_ADAM if model is optimizer.AdamParams else set()
    assert {*model.model_fields} - taken == set()


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in DEFAULTS_OF_ANOTHER])
def test_the_defaults_of_an_optimizer_are_its_constructors(name: str) -> None:
    constructed, model = constructor(name)
    theirs = parameters(constructed)
    ours = {key: value for key, value in plain_defaults(model).items() if key in theirs}
    assert ours == {key: theirs[key] for key in ours}


def test_the_engine_takes_the_same_keys_out_of_adams_parameters() -> None:
    from deepspeed.runtime.config import ADAM_W_MODE

    assert {*popped_for_adam()} | {ADAM_W_MODE} == POPPED_FOR_ADAM


def popped_for_adam() -> set[str]:
    from deepspeed.runtime.engine import DeepSpeedEngine

    params = Asked({"torch_adam": True})
    DeepSpeedEngine.get_optimizer_configuration(SimpleNamespace(), params, adam_w_mode=True)
    return {*params.defaults}


def test_muon_has_the_parameters_that_the_engine_reads() -> None:
    from deepspeed.runtime.config import ADAM_W_MODE

    assert {*optimizer.MuonParams.model_fields} == muon_asked() | popped_for_adam() | {ADAM_W_MODE}


def muon_asked() -> set[str]:
    """Ask the code that splits Muon's groups, and the code that marks the parameters for it."""
    import deepspeed
    import torch
    from deepspeed.runtime.engine import DeepSpeedEngine

    weight = torch.nn.Parameter(torch.zeros(2, 2))
    weight.use_muon = True
    params = Asked({})
    DeepSpeedEngine._muon_param_groups([weight], params)
    marked = SimpleNamespace(optimizer_name="muon", optimizer_params=params)
    deepspeed.set_optimizer_flags(marked, torch.nn.Linear(2, 2))
    return {*params.defaults}


@pytest.mark.parametrize(
    ("half", "keys"),
    [("Muon", ("momentum", "weight_decay")), ("Adam", ("betas", "eps", "weight_decay"))],
)
def test_the_defaults_of_muon_are_its_constructors(half: str, keys: tuple[str, ...]) -> None:
    import torch
    from deepspeed.runtime.zero.muon.original_muon import MuonWithAuxAdam

    group: dict[str, Any] = {
        "params": [torch.nn.Parameter(torch.zeros(2, 2))],
        "use_muon": half == "Muon",
    }
    MuonWithAuxAdam([group])
    ours = plain_defaults(optimizer.MuonParams)
    assert {key: ours[key] for key in keys} == {key: plain(group[key]) for key in keys}


def test_the_newton_schulz_methods_of_muon_are_deepspeeds() -> None:
    from deepspeed.runtime.zero.muon.original_muon import NS_METHODS

    assert choices(optimizer.MuonParams, "ns_method") == NS_METHODS


@SCHEDULE
def test_a_schedule_has_the_parameters_of_its_constructor(name: str) -> None:
    from deepspeed.runtime import lr_schedules

    assert {*SCHEDULES[name].model_fields} == {*parameters(getattr(lr_schedules, name))}


@SCHEDULE
def test_a_schedule_has_the_defaults_of_its_constructor(name: str) -> None:
    from deepspeed.runtime import lr_schedules

    assert plain_defaults(SCHEDULES[name]) == parameters(getattr(lr_schedules, name))


def test_the_warmup_types_are_deepspeeds() -> None:
    from deepspeed.runtime import lr_schedules

    theirs = {lr_schedules.WARMUP_LOG_RATE, lr_schedules.WARMUP_LINEAR_RATE}
    assert choices(scheduler.WarmupParams, "warmup_type") == theirs
