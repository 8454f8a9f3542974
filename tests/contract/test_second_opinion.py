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
AUTO = 'zlaunch says of a wrong "auto" that it fails later; DeepSpeed asks whether it counts as true, or compares it'
FRACTION = "zlaunch says that a fraction fails later; DeepSpeed lets it pass or not as the other sizes allow"

DISAGREEMENTS: Mapping[str, str] = {
    "train_batch_size": FRACTION,
    "sequence_parallel_size": FRACTION,
    "gradient_accumulation_steps": "without a batch size beside it DeepSpeed refuses the whole config",
    "data_efficiency.data_sampling.curriculum_learning.enabled": AUTO,
    "data_efficiency.data_sampling.dynamic_batching.enabled": AUTO,
    "vocabulary_size": SOME,
    "aio.use_gds": "DeepSpeed refuses it without CUDA, and contract tests run without",
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
