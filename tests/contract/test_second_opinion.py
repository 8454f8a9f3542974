"""zlaunch calls a ds_config an error exactly if the installed DeepSpeed refuses to read it."""

import copy
import functools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.contract.deepspeed_side import deepspeed_reads
from tests.contract.zlaunch_side import Path, all_paths, nested
from tests.each import each
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_mapping
from zlaunch.dsconfig.releases import REMOVED
from zlaunch.errors import Severity
from zlaunch.job.script import ConfigInterface

BATCH = {"train_batch_size": 1, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
VALUES: list[Any] = [None, True, "auto", "3", "true", "x", 1.5, -1, 0, 3, [], {}, {"enabled": True}]

SOME = "DeepSpeed trips over some of the wrong values at once and over the others later; zlaunch says fails later"
AS_TRUTH = "DeepSpeed only asks whether a value counts as true; zlaunch wants true or false"
FROM_TEXT = "zlaunch says ignored: elsewhere pydantic takes such a value, here a check behind it does not"
NOTHING_YET = "DeepSpeed looks at it only when the section is on, and would refuse it then"
NULL_IS_ABSENT = "DeepSpeed takes null for an absent key here; zlaunch wants it left out, as elsewhere"
FRACTION = "zlaunch says that a fraction fails later; DeepSpeed lets it pass or not as the other sizes allow"
ONE_WORD = "DeepSpeed makes a list of one word; zlaunch wants the list"
NO_SECTION = (
    "DeepSpeed takes what is no object for an empty one, and so ignores it; zlaunch calls it an error"
)

DISAGREEMENTS: Mapping[str, str] = {
    "train_batch_size": FRACTION,
    "sequence_parallel_size": FRACTION,
    "gradient_accumulation_steps": "without a batch size beside it DeepSpeed refuses the whole config",
    "zero_optimization": "DeepSpeed still takes `true` for stage 1; zlaunch wants the section written out",
    "zero_optimization.compute_grad_norm": FROM_TEXT,
    "zero_optimization.zenflow.select_interval": FROM_TEXT,
    "zero_optimization.zenflow.update_interval": FROM_TEXT,
    "zero_optimization.leaf_module": NULL_IS_ABSENT,
    "zero_optimization.leaf_module.classes": ONE_WORD,
    "zero_optimization.leaf_module.names": ONE_WORD,
    "zero_optimization.leaf_module.name_suffixes": ONE_WORD,
    "fp16.loss_scale": FROM_TEXT,
    "fp16.loss_scale_window": NOTHING_YET,
    "fp16.min_loss_scale": NOTHING_YET,
    "torch_autocast.lower_precision_safe_modules": "DeepSpeed makes a set of the letters of one word",
    "wall_clock_breakdown": AS_TRUTH,
    "flops_profiler.enabled": AS_TRUTH,
    "checkpoint.parallel_write.pipeline_stage": AS_TRUTH,
    "data_efficiency.data_sampling.curriculum_learning.enabled": AS_TRUTH,
    "data_efficiency.data_sampling.dynamic_batching.enabled": AS_TRUTH,
    "seq_parallel_communication_data_type": NULL_IS_ABSENT,
    "checkpoint.writer.type": NULL_IS_ABSENT,
    "vocabulary_size": SOME,
    "aio.use_gds": "DeepSpeed refuses it without CUDA, and contract tests run without",
    "data_efficiency.data_sampling.dynamic_batching.min_batch_size": SOME,
    "data_efficiency.data_sampling.dynamic_batching.max_batch_size": SOME,
    "autotuning.results_dir": SOME,
    "autotuning.exps_dir": SOME,
    "autotuning.arg_mappings": NO_SECTION,
    "datastates_ckpt": "any value but false turns it on; zlaunch wants the settings, or true or false",
    "tensorboard": "DeepSpeed drops the word auto, and takes the section for absent",
    "wandb": "DeepSpeed drops the word auto, and takes the section for absent",
    "csv_monitor": "DeepSpeed drops the word auto, and takes the section for absent",
    "comet": "DeepSpeed drops the word auto, and takes the section for absent",
    "timers": NO_SECTION,
    "expert_parallel": NO_SECTION,
}
"""Key → why the two differ about some value. In none of these is zlaunch silent where DeepSpeed refuses."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _config(path: Path, value: Any) -> dict[str, Any]:
    return {**({} if path[0] in BATCH else BATCH), **nested(path, copy.deepcopy(value))}


def _refused(config: dict[str, Any]) -> bool:
    try:
        deepspeed_reads(copy.deepcopy(config))
    except Exception:  # noqa: BLE001 - whatever it raises is a refusal
        return True
    return False


def _severities(config: dict[str, Any]) -> set[Severity]:
    found = validate_mapping(config, Context(world_size=1, interface=ConfigInterface.DEEPSPEED))
    return {finding.severity for finding in found} - {Severity.ADVICE}


ON_A_CPU_ONLY = [("aio", "use_gds")]
"""Keys that DeepSpeed refuses only because these tests run without CUDA."""


@dataclass(frozen=True)
class Opinions:
    """What both say about one value of a key."""

    config: dict[str, Any]
    refused: bool
    severities: set[Severity]


@functools.cache
def _opinions(path: Path) -> tuple[Opinions, ...]:
    configs = [_config(path, value) for value in VALUES]
    return tuple(Opinions(config, _refused(config), _severities(config)) for config in configs)


@each("path", [path for path in all_paths() if path not in ON_A_CPU_ONLY], ids=".".join)
def test_what_deepspeed_refuses_is_never_valid(path: Path) -> None:
    assert [one.config for one in _opinions(path) if one.refused and not one.severities] == []


def _disagrees(path: Path) -> bool:
    return any(one.refused != (Severity.ERROR in one.severities) for one in _opinions(path))


@each("path", [*all_paths()], ids=".".join)
def test_an_error_is_what_deepspeed_refuses_to_read(path: Path) -> None:
    assert _disagrees(path) == (".".join(path) in DISAGREEMENTS)


@each("key", REMOVED)
def test_a_removed_key_is_an_error_for_both(key: str) -> None:
    config = _config(tuple(key.split(".")), False)
    assert (_refused(config), Severity.ERROR in _severities(config)) == (True, True)
