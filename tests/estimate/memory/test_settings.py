from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.estimate.memory.jobs import CPU, job
from zlaunch.dsconfig.batch import RankGroups
from zlaunch.estimate.memory.settings import Settings, read_settings

NVME = {"device": "nvme", "nvme_path": "/nvme"}


def read(stage: int = 2, **rest: Any) -> Settings:
    return read_settings(job("gpt2", stage, **rest))


def test_what_is_not_written_is_deepspeeds_default() -> None:
    found = read(3)
    assert (found.reduce_bucket, found.sub_group, found.reuse_distance) == (500_000_000, 10**9, 10**9)
    assert (found.num_buckets, found.optimizer_on, found.parameters_on) == (1, "gpu", "gpu")


def test_an_amount_may_be_written_with_an_exponent() -> None:
    assert read(reduce_bucket_size=2e8).reduce_bucket == 200_000_000


@pytest.mark.parametrize(
    ("precision", "item", "bf16"), [("fp32", 4, False), ("fp16", 2, False), ("bf16", 2, True)]
)
def test_the_precision_is_the_ds_configs(precision: str, item: int, bf16: bool) -> None:
    found = read(precision=precision)
    assert (found.item, found.gradient_item, found.is_bf16) == (item, item, bf16)


def test_gradients_may_be_accumulated_in_another_format() -> None:
    assert read(top={"data_types": {"grad_accum_dtype": "fp32"}}).gradient_item == 4


@pytest.mark.parametrize(
    ("stage", "optimizer", "parameters"),
    [(0, "gpu", "gpu"), (1, "cpu", "gpu"), (2, "cpu", "gpu"), (3, "nvme", "nvme")],
)
def test_below_stage_3_nvme_means_the_cpu(stage: int, optimizer: str, parameters: str) -> None:
    found = read(stage, offload_optimizer=NVME, offload_param=NVME)
    assert (found.optimizer_on, found.parameters_on) == (optimizer, parameters)


@pytest.mark.parametrize("stage", [1, 2])
def test_overlap_doubles_the_buckets_of_stages_1_and_2_alone(stage: int) -> None:
    assert read(stage, overlap_comm=True).num_buckets == 2
    assert read(3, overlap_comm=True).num_buckets == 1


@pytest.mark.parametrize(
    ("section", "nbytes"),
    [
        ({"type": "AdamW"}, 8),
        ({"type": "Lion"}, 4),
        ({"type": "SGD"}, 0),
        ({"type": "SGD", "params": {"momentum": 0.9}}, 4),
        ({"type": "OneBitAdam"}, 8),
        ({"type": "something new"}, 8),
    ],
)
def test_the_optimizer_decides_how_much_is_kept(section: dict[str, Any], nbytes: int) -> None:
    assert read(top={"optimizer": section}).state_bytes == nbytes


@pytest.mark.parametrize(("name", "nbytes"), [("adamw_torch_fused", 8), ("adamw_bnb_8bit", 2), ("sgd", 0)])
def test_without_an_optimizer_the_trainers_decides(name: str, nbytes: int) -> None:
    workload = job("gpt2", 2, optimizer=name)
    config = {key: value for key, value in workload.ds_config.items() if key != "optimizer"}
    assert read_settings(replace(workload, ds_config=config)).state_bytes == nbytes


junk: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
)
KEYS = ["bf16", "data_types", "optimizer", "gradient_accumulation_steps", "train_micro_batch_size_per_gpu"]
ZERO = ["reduce_bucket_size", "offload_optimizer", "offload_param", "overlap_comm", "sub_group_size"]


@given(
    st.dictionaries(st.sampled_from(KEYS), junk, max_size=3),
    st.dictionaries(st.sampled_from(ZERO), junk, max_size=3),
)
def test_no_value_of_the_wrong_kind_makes_a_traceback(top: dict[str, Any], zero: dict[str, Any]) -> None:
    assert read(3, top=top, **zero).stage == 3


def test_a_share_is_filled_up() -> None:
    assert replace(read(offload_optimizer=CPU), groups=RankGroups(3)).share(10) == 4
