from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_document, validate_mapping
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Refused, Severity
from zlaunch.job.script import ConfigInterface

RAW = Context(interface=ConfigInterface.DEEPSPEED, world_size=1)

NUMBER = '{"aio": {"block_size": %s\n}}'

numbers = st.text("0123456789_.+-eExabINFnaty", min_size=1, max_size=12) | st.integers().map(str)


@pytest.mark.parametrize("written", ["abc1", "0x10", "1_" + "0" * 5000, "9" * 5000, "1e999", "-1_0"])
def test_what_is_nearly_a_number_is_a_finding(written: str) -> None:
    with suppress(Refused):
        assert validate_document(parse(NUMBER % written, "ds.json"))


@given(numbers)
def test_anything_in_the_place_of_a_number_is_judged(written: str) -> None:
    with suppress(Refused):
        validate_document(parse(NUMBER % written, "ds.json"))


def test_what_a_misspelled_key_brings_about_is_told_of_the_key_alone() -> None:
    config = '{"zero_optimisation": {"stage": 2}, "train_batch_size": "auto"}'
    (found,) = validate_document(parse(config, "ds.json"))
    assert (found.code, found.severity) == ("unknown-key", Severity.ERROR)
    assert (found.where, found.hint) == ("zero_optimisation", "did you mean `zero_optimization`?")
    assert "the Trainer requires `zero_optimization`" in found.message


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ('"zero_optimization": {},\n"zero_optimisation": {}', "merge the two: `zero_optimization`"),
        ('"zero_optimization": {"aio": {}},\n"aio": {}', "merge the two: `aio`"),
        ('"gradient_clipping": 1,\n"gradient_cliping": 2', "keep one of them: `gradient_clipping`"),
    ],
)
def test_a_key_whose_right_place_is_taken_is_not_put_there(keys: str, hint: str) -> None:
    found = validate_document(parse(f'{{"train_batch_size": 8,\n{keys}}}', "ds.json"))
    (told,) = (one.hint or "" for one in found if one.code == "unknown-key")
    assert told.startswith(f"{hint} is already on line ")


def test_what_another_misspelled_key_brings_about_is_not_blamed_on_it() -> None:
    config = '{"zero_optimisation": {"stage": 2}, "wall_clock_brakdown": true, "train_batch_size": "auto"}'
    found = {one.where: one.severity for one in validate_document(parse(config, "ds.json"))}
    assert found == {"zero_optimisation": Severity.ERROR, "wall_clock_brakdown": Severity.IGNORED}


def seen(config: str, **context: Any) -> dict[str, tuple[str, Severity]]:
    found = validate_document(parse(config, "ds.json"), Context(**context))
    return {one.where: (one.code, one.severity) for one in found}


@pytest.mark.parametrize(
    ("accelerator", "severity"), [("cuda", Severity.FAILS_LATER), ("cpu", None), (None, Severity.WARNING)]
)
def test_offload_at_stage_0_is_refused_only_for_a_gpu(
    accelerator: str | None, severity: Severity | None
) -> None:
    config = (
        '{"train_batch_size": 8, "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}'
    )
    _, found = seen(config, accelerator=accelerator).get("zero_optimization.offload_optimizer", ("", None))
    assert found is severity


@pytest.mark.parametrize("key", ["train_batch_size", "train_micro_batch_size_per_gpu"])
@pytest.mark.parametrize("written", ["false", '"8"', "[]"])
def test_a_batch_size_that_is_no_number_is_one_error(key: str, written: str) -> None:
    assert seen(f'{{"{key}": {written}}}') == {key: ("bad-type", Severity.ERROR)}


def test_a_section_in_the_wrong_place_is_one_finding() -> None:
    found = seen('{"train_batch_size": 8, "offload_optimizer": {"device": "cpu"}}')
    assert found == {"offload_optimizer": ("unknown-key", Severity.IGNORED)}


def test_what_is_wrong_beside_a_misplaced_section_is_still_told() -> None:
    misplaced = '"offload_optimizer": {"device": "cpu"}'
    found = seen(
        f'{{"train_batch_size": 8, {misplaced}, "fp16": {{"enabled": true}}, "bf16": {{"enabled": true}}}}'
    )
    assert {code for code, _ in found.values()} == {"unknown-key", "both-formats"}


@pytest.mark.parametrize("is_named", [True, False])
def test_a_file_without_an_auto_is_for_the_trainer_if_that_is_named(is_named: bool) -> None:
    found = seen('{"train_batch_size": 8}', is_named=is_named)
    assert found == ({"": ("no-zero-section", Severity.ERROR)} if is_named else {})


@pytest.mark.parametrize(
    ("interface", "severity"),
    [(ConfigInterface.DEEPSPEED, Severity.IGNORED), (ConfigInterface.TRAINER, Severity.FAILS_LATER)],
)
def test_an_auto_without_the_trainer_is_the_default_where_deepspeed_has_one(
    interface: ConfigInterface, severity: Severity
) -> None:
    config = '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "contiguous_gradients": "auto"}}'
    found = seen(config, interface=interface)
    assert found["zero_optimization.contiguous_gradients"] == ("auto-not-here", severity)


def test_contiguous_checkpoints_may_get_their_number_from_the_script() -> None:
    config = '{"train_batch_size": 8, "activation_checkpointing": {"contiguous_memory_optimization": true}}'
    ((code, severity),) = seen(config, interface=ConfigInterface.DEEPSPEED).values()
    assert (code, severity) == ("contiguous-checkpoints", Severity.ADVICE)


ERROR, LATER, IGNORED = Severity.ERROR, Severity.FAILS_LATER, Severity.IGNORED
METRICS: dict[str, Any] = {
    "data_sampling": {"curriculum_learning": {"enabled": True, "curriculum_metrics": 3}}
}
JUDGED: list[tuple[dict[str, Any], dict[str, Severity]]] = [
    ({"zero_optimizations": {"overlap_comm": 3}}, {"zero_optimizations": IGNORED, "zero_optimizations.overlap_comm": IGNORED}),
    ({"bf16": {}, "bfloat16": {"enabled": 16}}, {"bfloat16.enabled": IGNORED}),
    ({"zero_optimization": {"reduce_bucket_size": 1e30}}, {"zero_optimization.reduce_bucket_size": ERROR}),
    ({"fp16": {"loss_scale": True}}, {"fp16.loss_scale": ERROR}),
    ({"tensor_parallel": {"autotp_size": "3"}}, {"tensor_parallel.autotp_size": ERROR}),
    ({"scheduler": {"type": "WarmupLR", "params": "x"}}, {"scheduler.params": LATER}),
    ({"dump_state": "false"}, {"dump_state": IGNORED}),
    ({"aio": {"single_submit": "false"}}, {"aio.single_submit": LATER}),
    ({"expert_parallel": {"score_func": "x"}}, {"expert_parallel.score_func": IGNORED}),
    ({"expert_parallel": {"enabled": True, "score_func": "x"}}, {"expert_parallel.score_func": LATER}),
    ({"data_efficiency": METRICS}, {"data_efficiency.data_sampling.curriculum_learning.curriculum_metrics": IGNORED}),
    ({"zero_optimization": True}, {"zero_optimization": IGNORED}),
    ({"autotuning": {"results_dir": ""}}, {"autotuning.results_dir": ERROR}),
    ({"gradient_accumulation_steps": 1.5}, {"gradient_accumulation_steps": LATER}),
]  # fmt: skip


@each(("config", "severities"), JUDGED)
def test_a_wrong_value_is_as_bad_as_what_deepspeed_does_with_it(
    config: dict[str, Any], severities: dict[str, Severity]
) -> None:
    found = validate_mapping({"train_micro_batch_size_per_gpu": 1, **config}, RAW)
    judged = {one.where: one.severity for one in found}
    assert judged.items() >= severities.items()


def test_a_value_that_deepspeed_converts_counts_in_rules() -> None:
    """It says 1 for true, and zlaunch called only the type unusual."""
    masters: dict[str, Any] = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": 1}}
    found = validate_mapping({"train_batch_size": 1, **masters}, RAW)
    assert ("masters-need-partitioning", ERROR) in [(one.code, one.severity) for one in found]


def test_a_batch_that_would_be_wrong_once_a_key_is_mended_is_no_error_yet() -> None:
    config: dict[str, object] = {"train_micro_batch_size_per_gpu": 3, "trian_batch_size": 16}
    assert ERROR not in {one.severity for one in validate_mapping(config, RAW)}


def test_a_required_key_with_a_wrong_value_is_not_called_missing() -> None:
    on = {"enabled": True, "data_sampling": {"enabled": True, **METRICS["data_sampling"]}}
    codes = {one.code for one in validate_mapping({"train_batch_size": 1, "data_efficiency": on}, RAW)}
    assert "curriculum-needs-metrics" not in codes


def test_a_stage_that_is_auto_is_none_for_deepspeed_itself() -> None:
    bf16 = {"enabled": True, "bf16_master_weights_and_grads": True}
    config = {"train_batch_size": 1, "zero_optimization": {"stage": "auto"}, "bf16": bf16}
    assert "masters-need-partitioning" in {one.code for one in validate_mapping(config, RAW)}


LATER_JSON = '{"train_micro_batch_size_per_gpu": %s, "zero_optimization": {"stage": 2},}'


@each(
    ("size", "interface", "severity"),
    [
        ('"auto"', ConfigInterface.TRAINER, Severity.FAILS_LATER),
        ('"auto"', ConfigInterface.ACCELERATE, Severity.FAILS_LATER),
        ('"auto"', ConfigInterface.DEEPSPEED, Severity.ADVICE),
        ("4", ConfigInterface.TRAINER, Severity.ADVICE),
    ],
)
def test_a_trailing_comma_beside_an_auto_is_read_by_a_reader_of_strict_json(
    size: str, interface: ConfigInterface, severity: Severity
) -> None:
    found = validate_document(parse(LATER_JSON % size, "ds.json"), Context(interface=interface))
    assert [one.severity for one in found if one.code == "trailing-comma"] == [severity]


@each(
    ("config", "is_named"),
    [
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "$TMP/x"}}},
            True,
        ),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "nvme_path": "~/x"}}}, False),
        ({"csv_monitor": {"enabled": True, "output_path": "${HOME}/logs"}}, True),
        ({"csv_monitor": {"enabled": False, "output_path": "~/logs"}}, False),
        ({"tensorboard": {"enabled": True, "output_path": "logs~1"}}, False),
    ],
)
def test_a_path_that_only_a_shell_would_expand_is_named_where_it_is_read(
    config: dict[str, Any], is_named: bool
) -> None:
    codes = {one.code for one in validate_mapping({"train_micro_batch_size_per_gpu": 1, **config}, RAW)}
    assert ("path-is-taken-literally" in codes) == is_named


@each(
    ("key", "written", "meant"),
    [
        ("optimizer", "FusedAdam", "AdamW"),
        ("optimizer", "DeepSpeedCPUAdam", "AdamW"),
        ("optimizer", "fusedlamb", "Lamb"),
        ("scheduler", "cosine", "WarmupCosineLR"),
    ],
)
def test_a_class_of_another_tool_is_answered_with_the_nearest_type(
    key: str, written: str, meant: str
) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, key: {"type": written, "params": {}}}
    hints = [one.hint for one in validate_mapping(config, RAW) if one.where == f"{key}.type"]
    assert hints == [f'write `"{meant}"`, the nearest that DeepSpeed has']


def test_a_missing_directory_on_nvme_is_given_by_an_option_of_train_and_of_config_write() -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "nvme"}}
    (found,) = (
        one for one in validate_mapping({"zero_optimization": zero}) if one.code == "nvme-needs-a-path"
    )
    assert "`--nvme DIR` of `train` and `config write`" in str(found.hint)
