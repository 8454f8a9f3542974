"""The models in `zlaunch/dsconfig` against the pydantic classes and the top level of DeepSpeed."""

import inspect
import re
from collections.abc import Iterable
from pkgutil import resolve_name
from typing import Any, get_args

from pydantic import BaseModel

from tests.contract.deepspeed_side import asked
from tests.contract.zlaunch_side import choices, default_of, plain, plain_defaults
from tests.each import each
from zlaunch.dsconfig.schema import compute, monitor, parallel, precision, zero
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import DtypeName, Section

SECTIONS: dict[str, tuple[str, type[Section]]] = {
    "zero_optimization": ("runtime.zero.config:DeepSpeedZeroConfig", zero.Zero),
    "zero_optimization.offload_param": (
        "runtime.zero.offload_config:DeepSpeedZeroOffloadParamConfig",
        zero.OffloadParam,
    ),
    "zero_optimization.offload_optimizer": (
        "runtime.zero.offload_config:DeepSpeedZeroOffloadOptimizerConfig",
        zero.OffloadOptimizer,
    ),
    "zero_optimization.zenflow": ("runtime.zenflow.zenflow_config:ZenFlowConfig", zero.ZenFlow),
    "zero_optimization.leaf_module": (
        "runtime.zero.leaf_module_config:DeepSpeedZeroLeafModuleConfig",
        zero.LeafModule,
    ),
    "fp16": ("runtime.precision_config:DeepSpeedFP16Config", precision.Fp16),
    "bf16": ("runtime.precision_config:DeepSpeedBF16Config", precision.Bf16),
    "hybrid_engine": ("runtime.config:HybridEngineConfig", compute.HybridEngine),
    "comms_logger": ("comm.config:CommsLoggerConfig", monitor.CommsLogger),
    "tensorboard": ("monitor.config:TensorBoardConfig", monitor.TensorBoard),
    "wandb": ("monitor.config:WandbConfig", monitor.Wandb),
    "csv_monitor": ("monitor.config:CSVConfig", monitor.CsvMonitor),
    "comet": ("monitor.config:CometConfig", monitor.Comet),
    "compile": ("compile.config:CompileConfig", compute.Compile),
    "timers.throughput": ("utils.config:DeepSpeedThroughputTimerConfig", monitor.ThroughputTimer),
    "tensor_parallel": ("runtime.tensor_parallel.config:TPTrainingConfig", parallel.TensorParallel),
    "tensor_parallel.tp": ("runtime.tensor_parallel.config:TPConfig", parallel.TensorParallelGroup),
    "weight_quantization": ("inference.config:WeightQuantConfig", compute.WeightQuantization),
}

NOT_FOR_JSON = {
    "tensor_parallel": {"dtype"},  # wants a `torch.dtype`, which no JSON value is
    "tensor_parallel.tp": {"mpu", "tp_group"},  # Python objects
}

SECTION = each("name", SECTIONS)


def classes(name: str) -> tuple[Any, type[Section]]:
    """Take DeepSpeed's class and ours."""
    theirs, ours = SECTIONS[name]
    return resolve_name(f"deepspeed.{theirs}"), ours


def json_keys(deepspeed_class: Any) -> dict[str, Any]:
    return {field.alias or name: field for name, field in deepspeed_class.model_fields.items()}


@SECTION
def test_a_section_has_the_keys_of_deepspeeds_class(name: str) -> None:
    deepspeed_class, model = classes(name)
    assert {*model.model_fields} == {*json_keys(deepspeed_class)} - NOT_FOR_JSON.get(name, set())


@SECTION
def test_a_section_has_the_defaults_of_deepspeeds_class(name: str) -> None:
    deepspeed_class, model = classes(name)
    fields = json_keys(deepspeed_class)
    ours = {key: value for key, value in plain_defaults(model).items() if key in fields}
    assert ours == {key: default_of(fields[key]) for key in ours}


@SECTION
def test_a_section_knows_both_names_of_a_key_that_has_two(name: str) -> None:
    deepspeed_class, model = classes(name)
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
    import deepspeed
    from deepspeed.runtime import config as runtime

    found = {*asked(train_batch_size=1).defaults, *asked(train_batch_size=1, zero_optimization=True).defaults}
    found |= set(re.findall(r'"(\w+)" in config\b', inspect.getsource(deepspeed.initialize)))
    return found - set(runtime._REMOVED_TOP_LEVEL_CONFIG_KEYS)


def test_the_top_level_has_the_defaults_that_deepspeed_falls_back_to() -> None:
    theirs = asked(train_batch_size=1).scalar_defaults()
    ours = {key: value for key, value in plain_defaults(DsConfig).items() if key in theirs}
    assert ours == {key: theirs[key] for key in ours}


def test_number_formats_are_spelled_as_deepspeed_spells_them() -> None:
    from deepspeed.runtime import config as runtime

    training = [runtime.DtypeEnum.fp16, runtime.DtypeEnum.bf16, runtime.DtypeEnum.fp32]
    assert {*get_args(DtypeName)} == {name for member in training for name in member._all_values[1:]}


def test_the_choices_of_a_key_are_deepspeeds() -> None:
    from deepspeed.inference.config import QuantTypeEnum
    from deepspeed.runtime import config as runtime
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum
    from deepspeed.utils.logging import log_levels

    theirs: dict[tuple[type[Section], str], Iterable[Any]] = {
        (zero.Zero, "stage"): ZeroStageEnum,
        (zero.OffloadParam, "device"): OffloadDeviceEnum,
        (zero.OffloadOptimizer, "device"): OffloadDeviceEnum,
        (compute.WeightQuantization, "q_type"): QuantTypeEnum,
        (DsConfig, "gradient_allreduce_op"): runtime.GRADIENT_ALLREDUCE_OP_SUPPORTED,
        (DsConfig, "log_level"): log_levels,
    }
    ours = {(model, key): choices(model, key) for model, key in theirs}
    assert ours == {place: {plain(one) for one in found} for place, found in theirs.items()}


def test_communication_formats_are_those_that_deepspeed_takes() -> None:
    from deepspeed.runtime import config as runtime

    names = [str(name) for member in runtime.DtypeEnum for name in member._all_values]
    assert choices(DsConfig, "communication_data_type") == {*filter(is_communication_format, names)}


def is_communication_format(name: str) -> bool:
    from deepspeed.runtime import config as runtime

    try:
        return runtime.get_communication_data_type({"communication_data_type": name}) is not None
    except ValueError:
        return False
