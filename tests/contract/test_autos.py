"""Where a ds_config may say "auto": what somebody fills in, and what DeepSpeed reads itself."""

import re

import pytest

from tests.contract.deepspeed_side import deepspeed_reads
from tests.contract.planned_side import planned
from tests.contract.test_accelerate import NVME_PATHS, PLUGIN_FILLS
from tests.contract.trainer_side import all_auto
from tests.contract.zlaunch_side import Path, all_paths, can_be_auto, nested
from tests.making import WRITTEN
from zlaunch.config.resolve.values import Values
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_mapping
from zlaunch.errors import Finding, Severity
from zlaunch.job.script import ConfigInterface

READ_BY_DEEPSPEED: set[Path] = {
    ("data_types", "keep_in_fp32_modules"),
    ("expert_parallel", "combine_impl"),
    ("expert_parallel", "routed_scaling_factor"),
    ("expert_parallel", "row_weighting_impl"),
    ("expert_parallel", "score_apply"),
    ("expert_parallel", "score_func"),
    ("expert_parallel", "top_k"),
    ("zero_optimization", "zenflow", "select_interval"),
    ("zero_optimization", "zenflow", "select_strategy"),
    ("zero_optimization", "zenflow", "update_interval"),
}
"""Here "auto" is a word of DeepSpeed's own."""

FILLED_IN = {*Values.of(all_auto(3), WRITTEN).autos(), *PLUGIN_FILLS, *NVME_PATHS}


def test_auto_is_accepted_where_somebody_fills_it_in_or_deepspeed_reads_it() -> None:
    accepted = {path for path in all_paths() if can_be_auto(path)}
    in_fixed_places = {path for path in FILLED_IN if path[0] not in ("optimizer", "scheduler")}
    assert accepted == in_fixed_places | READ_BY_DEEPSPEED


@pytest.mark.parametrize("path", sorted(READ_BY_DEEPSPEED), ids=".".join)
def test_deepspeed_reads_an_auto_of_its_own(path: Path) -> None:
    assert deepspeed_reads({"train_batch_size": 1, **nested(path, "auto")})


@pytest.mark.parametrize("path", sorted(READ_BY_DEEPSPEED), ids=".".join)
def test_a_script_that_hands_its_ds_config_to_deepspeed_may_use_deepspeeds_own_autos(path: Path) -> None:
    """Accelerate refuses any "auto" that it does not know; DeepSpeed alone does not."""
    stage_2 = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    adamw = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
    config = Values.of({**stage_2, **adamw}, WRITTEN).put(path, "auto", WRITTEN).config()
    assert planned(config, "", ConfigInterface.DEEPSPEED)


def without_trainer(path: Path) -> list[Finding]:
    value = {"train_batch_size": 1, **nested(path, "auto")}
    found = validate_mapping(value, Context(interface=ConfigInterface.DEEPSPEED))
    # That of a section that is off is ignored as well, because nothing reads it.
    said = [one for one in found if one.message.startswith("without the Trainer")]
    return [one for one in said if one.code == "auto-not-here" and one.severity is Severity.IGNORED]


def test_deepspeed_alone_uses_its_default_where_zlaunch_says_so() -> None:
    paths = [path for path in all_paths() if len(path) > 1 and without_trainer(path)]
    assert len(paths) > 100
    for path in paths[::4]:
        with_auto, without = (
            {
                name: re.sub(" at 0x[0-9a-f]+", "", repr(one))
                for name, one in read.items()
                if name != "_param_dict"
            }
            for read in (
                vars(deepspeed_reads({"train_batch_size": 1, **nested(path, "auto")})),
                vars(deepspeed_reads({"train_batch_size": 1, **nested(path[:-1], {})})),
            )
        )
        assert with_auto == without, path
