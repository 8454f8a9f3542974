"""What is known about a key."""

import pytest

from tests.each import each
from zlaunch.config.explain import explain, keys_below
from zlaunch.dsconfig.json_schema import catalog
from zlaunch.dsconfig.keys.effects import effects
from zlaunch.dsconfig.keys.search import older_keys
from zlaunch.dsconfig.releases import release
from zlaunch.dsconfig.schema_check import check
from zlaunch.errors import Severity

ZERO = "zero_optimization"


@each("key", lambda: sorted(catalog().keys))
def test_every_key_has_a_meaning(key: str) -> None:
    assert explain(key).meaning


@each("key", lambda: sorted(catalog().keys))
def test_every_key_has_a_type(key: str) -> None:
    assert explain(key).type


@each("key", lambda: sorted(key for key in catalog().keys if explain(key).example is not None))
def test_every_example_is_valid(key: str) -> None:
    example = explain(key).example
    assert example is not None
    wrong = [finding for finding in check(dict(example)).findings if finding.where.startswith(key)]
    assert wrong == []


@each("key", lambda: sorted(older_keys()))
def test_a_key_of_the_past_says_who_read_it(key: str) -> None:
    assert explain(key).releases


@each("key", lambda: sorted(effects()))
def test_every_effect_is_one_of_a_key(key: str) -> None:
    assert key in catalog().keys


@each("key", lambda: sorted(effects()))
def test_every_related_key_is_one(key: str) -> None:
    assert [other for other in effects()[key].related if other not in catalog().keys] == []


def test_no_key_is_related_to_itself() -> None:
    assert [key for key, effect in effects().items() if key in effect.related] == []


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (f"{ZERO}.stage", '0, 1, 2, 3 or "auto"'),
        (f"{ZERO}.reduce_bucket_size", 'whole number above 0 or "auto"'),
        (f"{ZERO}.offload_optimizer.ratio", "number at least 0.0 and at most 1.0"),
        (f"{ZERO}.overlap_comm", "true or false or null"),
        (f"{ZERO}.leaf_module.names", "a list of text"),
        (f"{ZERO}.offload_param", "a section or null"),
        ("optimizer.params.betas", 'a list of numbers or "auto"'),
        ("checkpoint.tag_validation", '"warn", "ignore", "fail" in any case'),
    ],
)
def test_a_type_is_put_in_words(key: str, words: str) -> None:
    assert explain(key).type == words


def test_names_in_any_case_come_before_those_that_are_exact() -> None:
    assert '"MuSGD" in any case or "ASGD", ' in explain("optimizer.type").type


def test_the_severest_rules_come_first() -> None:
    words = [rule.words.partition(":")[0] for rule in explain(f"{ZERO}.stage").rules]
    order = [severity.value for severity in Severity]
    assert words == sorted(words, key=order.index)


def test_a_default_that_depends_on_the_stage_says_whose_it_is() -> None:
    assert explain(f"{ZERO}.overlap_comm").default.startswith("DeepSpeed: true at stage 3")


def test_a_default_that_changed_tells_when() -> None:
    assert explain("gradient_clipping").default == "1.0 in 0.19 (0.0 at first, 1.0 since 0.19)"


def test_a_default_is_that_of_the_release_that_was_asked_about() -> None:
    assert explain("gradient_clipping", release("0.16")).default.startswith("0.0 in 0.16")


def test_a_key_tells_which_release_brought_it() -> None:
    assert explain(f"{ZERO}.zenflow").releases == "since 0.17"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (f"{ZERO}.stage", "at every stage"),
        (f"{ZERO}.sub_group_size", "at stage 3; ignored at other stages"),
        (f"{ZERO}.round_robin_gradients", "at stages 1 and 2; ignored at other stages"),
        (f"{ZERO}.allgather_partitions", "at no stage: DeepSpeed ignores it"),
        ("fp16.loss_scale", "while `fp16.enabled` is true"),
        ("compile.passes", "while `compile.deepcompile` is true"),
        ("compile.deepcompile", ""),
        (
            "data_efficiency.data_sampling.num_workers",
            "while `data_efficiency.enabled` and `data_efficiency.data_sampling.enabled` are true",
        ),
        ("train_batch_size", ""),
    ],
)
def test_a_key_tells_when_it_is_read(key: str, words: str) -> None:
    assert explain(key).read == words


@pytest.mark.parametrize(
    "key", ["bfloat16", "pipeline.stages", f"{ZERO}.cpu_offload", "optimizer.params.amsgrad"]
)
def test_a_key_that_nobody_should_write_has_no_example(key: str) -> None:
    assert explain(key).example is None


def test_the_rules_about_a_key_are_named() -> None:
    codes = [rule.name for rule in explain(f"{ZERO}.offload_param").rules]
    assert "offload-param-needs-stage-3" in codes


def test_a_section_names_its_keys() -> None:
    assert "buffer_size" in [below.name for below in explain(f"{ZERO}.offload_param").keys]


def test_without_a_key_there_are_the_sections() -> None:
    assert ZERO in [about.name for about in keys_below("") if about.is_section]
