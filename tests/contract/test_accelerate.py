"""What zlaunch takes for accelerate's choices, against `DeepSpeedPlugin` and `Accelerator`."""

import ast
import inspect
import textwrap
from typing import Any

import pytest

from tests.each import each
from tests.making import WRITTEN
from zlaunch.config.resolve.autos import OpenReason, ResolvedAutos, resolve_autos
from zlaunch.config.resolve.values import AUTO, Values
from zlaunch.config.rules.rule import Context
from zlaunch.dsconfig.text.document import KeyPath, dotted
from zlaunch.job.model import ModelShape
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_args import TrainerArgs

ZERO = "zero_optimization"
PLUGIN_FILLS: tuple[KeyPath, ...] = (
    (ZERO, "stage"),
    (ZERO, "offload_optimizer", "device"),
    (ZERO, "offload_param", "device"),
    (ZERO, "stage3_gather_16bit_weights_on_model_save"),
)
NVME_PATHS: tuple[KeyPath, ...] = (
    (ZERO, "offload_optimizer", "nvme_path"),
    (ZERO, "offload_param", "nvme_path"),
)
"""Accelerate fills these in with the word "none", a directory below the working one: zlaunch refuses."""


def autos(*paths: KeyPath) -> Values:
    values = Values.of({"gradient_accumulation_steps": 1}, WRITTEN)
    for path in paths:
        values = values.put(path, AUTO, WRITTEN)
    return values


def resolved(values: Values) -> ResolvedAutos:
    model = ModelShape(256, None, "config.json")
    return resolve_autos(values, Context(2, TrainerArgs(), model, ConfigInterface.ACCELERATE))


def plugin_fills(values: Values) -> Values:
    from accelerate.utils import DeepSpeedPlugin

    plugin: Any = DeepSpeedPlugin(hf_ds_config=values.config())
    return Values.of(plugin.deepspeed_config, WRITTEN)


@pytest.mark.parametrize("path", PLUGIN_FILLS, ids=dotted)
def test_a_default_of_accelerate_is_the_plugins(path: KeyPath) -> None:
    values = autos((ZERO, "stage"), path)
    assert resolved(values).values[path] == plugin_fills(values)[path]


def test_the_plugin_fills_in_nothing_else() -> None:
    everything = autos(
        *PLUGIN_FILLS,
        *NVME_PATHS,
        ("train_batch_size",),
        ("train_micro_batch_size_per_gpu",),
        ("gradient_accumulation_steps",),
        ("gradient_clipping",),
        ("bf16", "enabled"),
        ("fp16", "enabled"),
        (ZERO, "reduce_bucket_size"),
        (ZERO, "overlap_comm"),
    )
    filled = plugin_fills(everything)
    assert {path for path in everything.autos() if filled[path] != AUTO} == {*PLUGIN_FILLS, *NVME_PATHS}


@each(
    "path",
    [(ZERO, "overlap_comm"), ("optimizer", "params", "betas"), ("optimizer", "params", "eps")],
    ids=dotted,
)
def test_accelerate_refuses_an_auto_that_nobody_fills_in(path: KeyPath) -> None:
    from accelerate.utils import DeepSpeedPlugin

    values = autos((ZERO, "stage"), path)
    plugin: Any = DeepSpeedPlugin(hf_ds_config=values.config())
    with pytest.raises(ValueError, match=str(path[-1])):
        plugin.deepspeed_config_process(must_match=False)
    assert resolved(values).left == {dotted(path): OpenReason.NEVER_FILLED}
    assert dotted(path) not in keys_from_the_scripts_objects()


@pytest.mark.parametrize("path", NVME_PATHS, ids=dotted)
def test_a_directory_that_accelerate_would_make_up_is_not_filled_in(path: KeyPath) -> None:
    assert dotted(path) in resolved(autos((ZERO, "stage"), path)).left


def test_the_clip_of_accelerate_is_its_own() -> None:
    path: KeyPath = ("gradient_clipping",)
    assert resolved(autos(path)).values[path] == prepared_constants()["gradient_clipping"]


def prepare_dicts() -> list[ast.Dict]:
    """Find the tables from which `Accelerator.prepare` fills in a ds_config."""
    from accelerate import Accelerator

    source = textwrap.dedent(inspect.getsource(Accelerator._prepare_deepspeed))
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Dict)]


def prepared_constants() -> dict[str, Any]:
    return {
        str(key.value): value.value
        for node in prepare_dicts()
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
    }


def keys_from_the_scripts_objects() -> set[str]:
    return {
        str(key.value)
        for node in prepare_dicts()
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and not isinstance(value, ast.Constant)
    }


def keys_of_dummies() -> list[str]:
    return sorted(
        key for key in keys_from_the_scripts_objects() if key.startswith(("optimizer", "scheduler"))
    )


@each("key", keys_of_dummies)
def test_what_a_script_gives_to_dummy_optim_or_dummy_scheduler_is_left_to_it(key: str) -> None:
    assert key in resolved(autos(tuple(key.split(".")))).left
