"""Every key by its name, and how a name that somebody types is found."""

import pytest

from tests.contract.zlaunch_side import all_paths
from zlaunch.dsconfig.json_schema import catalog
from zlaunch.dsconfig.keys.search import find, near, older_keys

CHOSEN = ("optimizer.", "scheduler.")
"""What stands below these, `type` decides."""


def test_every_key_at_a_fixed_place_is_in_the_catalogue() -> None:
    assert {".".join(path) for path in all_paths() if not ".".join(path).startswith(CHOSEN)} == {
        name.replace(".*", "") for name in catalog().keys if not name.startswith(CHOSEN)
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("zero_optimization.stage", "zero_optimization.stage"),
        ("stage", "zero_optimization.stage"),
        ("zero-optimization.stage", "zero_optimization.stage"),
        ("buffer_size", "zero_optimization.offload_param.buffer_size"),
        ("offload_param.buffer_count", "zero_optimization.offload_param.buffer_count"),
        ("prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"),
        ("optimizer", "optimizer"),
        ("betas", "optimizer.params.betas"),
        ("min_difficulty", "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.min_difficulty"),
        ("mics_shard_size", "zero_optimization.mics_shard_size"),
    ],
)  # fmt: skip
def test_a_key_is_found_by_its_path_or_by_how_it_ends(text: str, name: str) -> None:
    assert find(text) == [name]


def test_a_name_that_many_sections_have_finds_them_all() -> None:
    assert find("buffer_count") == [
        "zero_optimization.offload_param.buffer_count",
        "zero_optimization.offload_optimizer.buffer_count",
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("zero_stage", ["zero_optimization.stage"]),
        ("clip", ["gradient_clipping"]),
        ("nvme", [f"zero_optimization.offload_{what}.nvme_path" for what in ("param", "optimizer")]),
        ("batch", ["train_batch_size", "train_micro_batch_size_per_gpu"]),
    ],
)
def test_words_of_a_path_find_the_least_nested_keys_with_them(text: str, names: list[str]) -> None:
    assert sorted(find(text)) == sorted(names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("hpZ", ["zero_optimization.zero_hpz_partition_size"]),
        ("Ulysses", ["sequence_parallel_size"]),
        ("grad_accum", ["gradient_accumulation_steps"]),
        ("mixed_precision", ["bf16.enabled", "fp16.enabled"]),
    ],
)
def test_a_word_of_papers_and_other_tools_finds_the_keys_for_it(text: str, names: list[str]) -> None:
    assert find(text) == names


def test_the_keys_that_a_word_stands_for_come_first() -> None:
    assert find("offload")[:2] == ["zero_optimization.offload_optimizer", "zero_optimization.offload_param"]


@pytest.mark.parametrize("text", ["", ".", "nothing", "age", "zero_optimization.stages"])
def test_what_is_no_key_is_not_found(text: str) -> None:
    assert find(text) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("zero_optimisation", "zero_optimization"),
        ("reduce_bucketsize", "zero_optimization.reduce_bucket_size"),
        ("offload_param.bufer_size", "zero_optimization.offload_param.buffer_size"),
        ("Stage", "zero_optimization.stage"),
    ],
)
def test_a_misspelled_key_is_near_what_was_meant(text: str, name: str) -> None:
    assert name in near(text)


def test_what_is_much_less_alike_than_the_best_name_is_not_near() -> None:
    assert near("zero_optimisation") == ["zero_optimization"]


def test_nothing_is_near_to_noise() -> None:
    assert near("qqqqqqqq") == []


def test_a_key_that_only_older_releases_read_is_a_former_one() -> None:
    assert {"elasticity", "sparse_gradients"} <= older_keys()


def test_no_key_of_today_is_a_former_one() -> None:
    assert older_keys().isdisjoint(catalog().keys)
