"""The models of sections that DeepSpeed reads key by key, against the keys it asks for."""

import inspect
import re
from collections.abc import Iterable
from typing import Any, get_type_hints

from tests.contract.deepspeed_side import asked
from tests.contract.zlaunch_side import choices, plain, plain_defaults
from tests.each import each
from tools.asked import Asked
from zlaunch.dsconfig.schema import autotuning, compute, data, monitor, parallel, precision, storage
from zlaunch.dsconfig.schema.optimizer import AdamOptimizer
from zlaunch.dsconfig.schema.scheduler import WarmupLR
from zlaunch.dsconfig.schema.section import Section

Block = tuple[tuple[str, ...], dict[str, Any], type[Section]]

SAMPLING = ("data_efficiency", "data_sampling")
CURRICULUM = {"enabled": True, "curriculum_metrics": {}}
BATCHING = {"enabled": True, "max_tokens": 1, "max_batch_size": 1}

BLOCKS: dict[str, Block] = {
    "aio": (("aio",), {}, storage.Aio),
    "checkpoint": (("checkpoint",), {}, storage.Checkpoint),
    "checkpoint.writer": (("checkpoint", "writer"), {}, storage.Writer),
    "checkpoint.parallel_write": (("checkpoint", "parallel_write"), {}, storage.ParallelWrite),
    "activation_checkpointing": (("activation_checkpointing",), {}, compute.ActivationCheckpointing),
    "flops_profiler": (("flops_profiler",), {}, monitor.FlopsProfiler),
    "timers": (("timers",), {}, monitor.Timers),
    "data_types": (("data_types",), {}, precision.DataTypes),
    "torch_autocast": (("torch_autocast",), {}, precision.TorchAutocast),
    "autotuning": (("autotuning",), {}, autotuning.Autotuning),
    "autotuning.model_info": (("autotuning", "model_info"), {}, autotuning.ModelInfo),
    "data_efficiency": (("data_efficiency",), {}, data.DataEfficiency),
    "data_sampling": (SAMPLING, {}, data.DataSampling),
    "curriculum_learning": ((*SAMPLING, "curriculum_learning"), CURRICULUM, data.CurriculumLearning),
    "dynamic_batching": ((*SAMPLING, "dynamic_batching"), BATCHING, data.DynamicBatching),
    "data_routing": (("data_efficiency", "data_routing"), {}, data.DataRouting),
    "random_ltd": (("data_efficiency", "data_routing", "random_ltd"), {"enabled": True}, data.RandomLtd),
    "expert_parallel": (("expert_parallel",), {}, parallel.ExpertParallel),
}

READ_LATER = {
    "curriculum_learning": {"CURRICULUM_LEARNING_CLUSTER_PATH"},
    "dynamic_batching": {"DYNAMIC_BATCHING_METRICS_PATH"},
    "random_ltd": {
        "RANDOM_LTD_GLOBAL_BATCH_SIZE",
        "RANDOM_LTD_HIDDEN_STATE_ORDER",
        "RANDOM_LTD_LAYER_ID",
        "RANDOM_LTD_LAYER_NUM",
        "RANDOM_LTD_LAYER_TOKEN_LR_SCHEDULE",
        "RANDOM_LTD_MICRO_BATCH_SIZE",
        "RANDOM_LTD_MODEL_MASK_NAME",
        "RANDOM_LTD_MODEL_TYPE",
        "RANDOM_LTD_SCHEDULER",
        "RANDOM_LTD_TOTAL_LAYER_NUM",
    },
}
"""Keys that the config class hands on whole, to be read by the data sampler or the layers: their constants."""

METRIC_KEYS = {
    "CURRICULUM_LEARNING_CLUSTERING_TYPE",
    "CURRICULUM_LEARNING_DIFFICULTY_TYPE",
    "CURRICULUM_LEARNING_MAX_DIFFICULTY",
    "CURRICULUM_LEARNING_METRIC_PATH",
    "CURRICULUM_LEARNING_MIN_DIFFICULTY",
    "CURRICULUM_LEARNING_SAMPLE_PATH",
    "CURRICULUM_LEARNING_SCHEDULE_CONFIG",
    "CURRICULUM_LEARNING_SCHEDULE_TYPE",
}

BLOCK = each("name", BLOCKS)


def data_keys(constants: Iterable[str]) -> set[str]:
    """Look up keys of the data pipeline by the names of their constants."""
    from deepspeed.runtime.data_pipeline import constants as theirs

    return {getattr(theirs, name) for name in constants}


@BLOCK
def test_a_section_has_the_keys_that_deepspeed_asks_for(name: str) -> None:
    path, content, model = BLOCKS[name]
    assert {*model.model_fields} == {*asked(*path, **content).defaults} | data_keys(READ_LATER.get(name, ()))


@BLOCK
def test_a_section_has_the_defaults_that_deepspeed_falls_back_to(name: str) -> None:
    path, content, model = BLOCKS[name]
    theirs = asked(*path, **content).scalar_defaults()
    ours = {key: value for key, value in lowered(plain_defaults(model)).items() if key in theirs}
    assert ours == {key: value for key, value in lowered(theirs).items() if key in ours}


def lowered(values: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed has some words in capitals and reads them in any case; zlaunch writes them small."""
    return {key: value.lower() if isinstance(value, str) else value for key, value in values.items()}


def test_a_curriculum_metric_has_deepspeeds_keys() -> None:
    assert {*data.CurriculumMetric.model_fields} == data_keys(METRIC_KEYS)


def test_the_pipeline_section_has_the_keys_that_its_engine_reads() -> None:
    from deepspeed.runtime import config as runtime
    from deepspeed.runtime.pipe.engine import PipelineEngine

    read = set(re.findall(r"_config\.pipeline(?:\.get\(|\[)'(\w+)'", inspect.getsource(PipelineEngine)))
    assert {*compute.Pipeline.model_fields} == {*runtime.get_pipeline_config({})} | read


def test_the_pipeline_section_has_deepspeeds_defaults() -> None:
    from deepspeed.runtime import config as runtime

    theirs = runtime.get_pipeline_config({})
    ours = plain_defaults(compute.Pipeline)
    assert {key: ours.get(key) for key in theirs} == theirs


def partition_asked() -> tuple[Asked, Asked]:
    from deepspeed.module_inject.autotp_config import AutoTPConfig

    spec = Asked({})
    partition = Asked({"layer_specs": [spec]})
    AutoTPConfig.from_dict(partition)
    return partition, spec


def test_the_partition_section_has_the_keys_that_deepspeed_asks_for() -> None:
    assert {*parallel.PartitionConfig.model_fields} == {*partition_asked()[0].defaults}


def test_the_partition_section_has_deepspeeds_defaults() -> None:
    theirs = partition_asked()[0].defaults
    assert plain_defaults(parallel.PartitionConfig) == theirs


def test_a_layer_spec_has_the_keys_that_deepspeed_asks_for() -> None:
    assert {*parallel.LayerSpec.model_fields} == {*partition_asked()[1].defaults}


def test_a_layer_spec_has_deepspeeds_defaults() -> None:
    assert plain_defaults(parallel.LayerSpec) == partition_asked()[1].defaults


ENUMERATED = (
    "score_apply",
    "combine_impl",
    "row_weighting_impl",
    "gate_up_impl",
    "comm_backend",
    "score_func",
)


def test_expert_parallel_has_the_choices_of_deepspeeds_dataclass() -> None:
    from deepspeed.module_inject.auto_ep_config import AutoEPConfig

    hints = get_type_hints(AutoEPConfig)
    theirs = {key: {*getattr(hints[key], "__args__", ())} - {"auto"} for key in ENUMERATED}
    assert {key: choices(parallel.ExpertParallel, key) for key in ENUMERATED} == theirs


def test_optimizers_have_the_keys_that_deepspeed_asks_for() -> None:
    assert {*AdamOptimizer.model_fields} == {*asked("optimizer", type="Adam").defaults}


def test_schedulers_have_the_keys_that_deepspeed_asks_for() -> None:
    assert {*WarmupLR.model_fields} == {*asked("scheduler", type="WarmupLR").defaults}


def test_the_choices_of_a_key_are_deepspeeds() -> None:
    from deepspeed.autotuning import constants as tuning
    from deepspeed.module_inject.autotp_config import PartitionType
    from deepspeed.runtime.model_checkpointing import constants as checkpoint

    tuners = (getattr(tuning, f"AUTOTUNING_TUNER_{name}") for name in ("GRIDSEARCH", "RANDOM", "MODELBASED"))
    schedules = (f"SCHEDULE_{name}" for name in ("FIXED_DISCRETE", "FIXED_ROOT", "FIXED_LINEAR", "CUSTOM"))
    difficulties = ("VALUE_BASED", "PERCENTILE_BASED")
    theirs: dict[tuple[type[Section], str], Iterable[str]] = {
        (storage.Checkpoint, "tag_validation"): checkpoint.CHECKPOINT_TAG_VALIDATION_MODES,
        (storage.Writer, "type"): checkpoint.CHECKPOINT_WRITER_TYPES,
        (storage.Writer, "data_parallel"): checkpoint.CHECKPOINT_DATA_PARALLEL_UNITS,
        (parallel.LayerSpec, "partition_type"): [plain(kind) for kind in PartitionType],
        (autotuning.Autotuning, "tuner_type"): tuners,
        (data.CurriculumMetric, "schedule_type"): data_keys(
            f"CURRICULUM_LEARNING_{name}" for name in schedules
        ),
        (data.CurriculumMetric, "difficulty_type"): data_keys(
            f"CURRICULUM_LEARNING_{name}" for name in difficulties
        ),
    }
    ours = {(model, key): choices(model, key) for model, key in theirs}
    assert ours == {place: {word.lower() for word in words} for place, words in theirs.items()}
