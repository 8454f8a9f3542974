"""The models in `zlaunch/dsconfig` against the pydantic classes and the top level of DeepSpeed."""

import inspect
import re
from typing import Any, get_args

import deepspeed
import pytest
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.inference.config import QuantTypeEnum, WeightQuantConfig
from deepspeed.monitor import config as monitors
from deepspeed.runtime import config as runtime
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.tensor_parallel.config import TPConfig, TPTrainingConfig
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig, ZeroStageEnum
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.runtime.zero.offload_config import (
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
    OffloadDeviceEnum,
)
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig
from deepspeed.utils.logging import log_levels
from pydantic import BaseModel

from tests.contract.deepspeed_side import asked
from tests.contract.zlaunch_side import choices, default_of, plain, plain_defaults
from zlaunch.dsconfig.schema import compute, monitor, parallel, precision, zero
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import DtypeName, Section

SECTIONS: dict[str, tuple[Any, type[Section]]] = {
    "zero_optimization": (DeepSpeedZeroConfig, zero.Zero),
    "zero_optimization.offload_param": (DeepSpeedZeroOffloadParamConfig, zero.OffloadParam),
    "zero_optimization.offload_optimizer": (DeepSpeedZeroOffloadOptimizerConfig, zero.OffloadOptimizer),
    "zero_optimization.zenflow": (ZenFlowConfig, zero.ZenFlow),
    "zero_optimization.leaf_module": (DeepSpeedZeroLeafModuleConfig, zero.LeafModule),
    "fp16": (DeepSpeedFP16Config, precision.Fp16),
    "bf16": (DeepSpeedBF16Config, precision.Bf16),
    "hybrid_engine": (runtime.HybridEngineConfig, compute.HybridEngine),
    "comms_logger": (CommsLoggerConfig, monitor.CommsLogger),
    "tensorboard": (monitors.TensorBoardConfig, monitor.TensorBoard),
    "wandb": (monitors.WandbConfig, monitor.Wandb),
    "csv_monitor": (monitors.CSVConfig, monitor.CsvMonitor),
    "comet": (monitors.CometConfig, monitor.Comet),
    "compile": (CompileConfig, compute.Compile),
    "timers.throughput": (DeepSpeedThroughputTimerConfig, monitor.ThroughputTimer),
    "tensor_parallel": (TPTrainingConfig, parallel.TensorParallel),
    "tensor_parallel.tp": (TPConfig, parallel.TensorParallelGroup),
    "weight_quantization": (WeightQuantConfig, compute.WeightQuantization),
}

NOT_FOR_JSON = {
    "tensor_parallel": {"dtype"},  # wants a `torch.dtype`, which no JSON value is
    "tensor_parallel.tp": {"mpu", "tp_group"},  # Python objects
}

SECTION = pytest.mark.parametrize("name", SECTIONS)


def json_keys(deepspeed_class: Any) -> dict[str, Any]:
    return {field.alias or name: field for name, field in deepspeed_class.model_fields.items()}


@SECTION
def test_a_section_has_the_keys_of_deepspeeds_class(name: str) -> None:
    deepspeed_class, model = SECTIONS[name]
    assert {*model.model_fields} == {*json_keys(deepspeed_class)} - NOT_FOR_JSON.get(name, set())


@SECTION
def test_a_section_has_the_defaults_of_deepspeeds_class(name: str) -> None:
    deepspeed_class, model = SECTIONS[name]
    fields = json_keys(deepspeed_class)
    ours = {key: value for key, value in plain_defaults(model).items() if key in fields}
    assert ours == {key: default_of(fields[key]) for key in ours}


@SECTION
def test_a_section_knows_both_names_of_a_key_that_has_two(name: str) -> None:
    deepspeed_class, model = SECTIONS[name]
    both = {field.alias: second for second, field in deepspeed_class.model_fields.items() if field.alias}
    assert [second for key, second in both.items() if not is_read_as(model, second, key)] == []


def is_read_as(model: type[Section], second: str, key: str) -> bool:
    default = default_of(model.model_fields[key])
    written = default.model_dump() if isinstance(default, BaseModel) else default
    return bool(getattr(model.model_validate({second: written}), key) == default)


def test_the_top_level_has_every_key_that_deepspeed_looks_for() -> None:
    assert top_level_keys() - {*DsConfig.model_fields} == set()


def test_the_top_level_has_no_key_that_deepspeed_does_not_look_for() -> None:
    assert {*DsConfig.model_fields} - top_level_keys() == set()


def top_level_keys() -> set[str]:
    """Collect what the config class asks for, and what `deepspeed.initialize` asks before it."""
    found = {*asked(train_batch_size=1).defaults, *asked(train_batch_size=1, zero_optimization=True).defaults}
    found |= set(re.findall(r'"(\w+)" in config\b', inspect.getsource(deepspeed.initialize)))
    return found - set(runtime._REMOVED_TOP_LEVEL_CONFIG_KEYS)


def test_the_top_level_has_the_defaults_that_deepspeed_falls_back_to() -> None:
    theirs = asked(train_batch_size=1).scalar_defaults()
    ours = {key: value for key, value in plain_defaults(DsConfig).items() if key in theirs}
    assert ours == {key: theirs[key] for key in ours}


def test_number_formats_are_spelled_as_deepspeed_spells_them() -> None:
    training = [runtime.DtypeEnum.fp16, runtime.DtypeEnum.bf16, runtime.DtypeEnum.fp32]
    assert {*get_args(DtypeName)} == {name for member in training for name in member._all_values[1:]}


@pytest.mark.parametrize(
    ("model", "key", "theirs"),
    [
        (zero.Zero, "stage", {plain(stage) for stage in ZeroStageEnum}),
        (zero.OffloadParam, "device", {plain(device) for device in OffloadDeviceEnum}),
        (zero.OffloadOptimizer, "device", {plain(device) for device in OffloadDeviceEnum}),
        (compute.WeightQuantization, "q_type", {plain(kind) for kind in QuantTypeEnum}),
        (DsConfig, "gradient_allreduce_op", {*runtime.GRADIENT_ALLREDUCE_OP_SUPPORTED}),
        (DsConfig, "log_level", {*log_levels}),
    ],
)
def test_the_choices_of_a_key_are_deepspeeds(model: type[Section], key: str, theirs: set[Any]) -> None:
    assert choices(model, key) == theirs


def test_communication_formats_are_those_that_deepspeed_takes() -> None:
    names = [str(name) for member in runtime.DtypeEnum for name in member._all_values]
    assert choices(DsConfig, "communication_data_type") == {*filter(is_communication_format, names)}


def is_communication_format(name: str) -> bool:
    try:
        return runtime.get_communication_data_type({"communication_data_type": name}) is not None
    except ValueError:
        return False
