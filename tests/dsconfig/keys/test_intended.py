from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.dsconfig.keys.intended import intended, other_names
from zlaunch.dsconfig.keys.lookup import field_at, fields, known_keys
from zlaunch.dsconfig.schema.scheduler import DEEPSPEED_SCHEDULERS
from zlaunch.dsconfig.text.document import KeyPath, value_at
from zlaunch.dsconfig.text.edit import fix_value
from zlaunch.errors import FixKind

COSINE: dict[str, object] = {"scheduler": {"type": "WarmupCosineLR", "params": {}}}
WARMUP: dict[str, object] = {"scheduler": {"type": "WarmupLR", "params": {}}}


def _whole(where: str, value: object = 1) -> tuple[dict[str, Any], KeyPath]:
    path = tuple(where.split("."))
    whole: dict[str, Any] = {}
    node = whole
    for part in path[:-1]:
        node = node.setdefault(part, {})
    node[path[-1]] = value
    return whole, path


def _hint(where: str, value: object = 1) -> str:
    return intended(*_whole(where, value)).hint


WANTED = {
    "load_universal_checkpoint": "checkpoint.load_universal",
    "aio.num_threads": "aio.intra_op_parallelism",
    "tensorboard.log_dir": "tensorboard.output_path",
    "wandb.entity": "wandb.team",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "param_persistence_threshold": "zero_optimization.stage3_param_persistence_threshold",
    "bf16_enabled": "bf16.enabled",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "grad_clip": "gradient_clipping",
    "adam_beta1": "optimizer.params.betas",
    "hysteresis": "fp16.hysteresis",
    "partition_activations": "activation_checkpointing.partition_activations",
    "bf16.grad_accum_dtype": "data_types.grad_accum_dtype",
    "zero_optimization.offload_optimizer.max_in_cpu": "zero_optimization.offload_param.max_in_cpu",
    "data_efficiency.random_ltd": "data_efficiency.data_routing.random_ltd",
    "zero_optimization.allow_untested_optimizer": "zero_allow_untested_optimizer",
}


@pytest.mark.parametrize(("where", "key"), WANTED.items())
def test_a_name_from_elsewhere_is_answered_with_the_key(where: str, key: str) -> None:
    assert _hint(where) == f"the key in a ds_config is `{key}`"


@pytest.mark.parametrize(
    ("where", "name"),
    [("zero_optimization.round_robin", "round_robin_gradients"), ("comms_logger.ops", "prof_ops"),
     ("python_gc", "disable_python_gc")],
)  # fmt: skip
def test_a_part_of_one_key_means_that_key(where: str, name: str) -> None:
    assert _hint(where) == f"did you mean `{name}`?"


def test_one_word_at_the_top_may_be_the_scripts_own_key() -> None:
    assert intended(*_whole("steps")).is_key is False


@pytest.mark.parametrize("key", ["_comment", "//", "comment", "#", "note"])
def test_a_comment_is_no_misspelled_key(key: str) -> None:
    found = intended(*_whole(key, "for the big model"))
    assert (found.hint, found.is_key) == ("delete it: JSON has no comments", False)


@pytest.mark.parametrize("where", ["foo", "bf16.favourite", "zero_optimization.offload_param.foo"])
def test_a_key_that_nothing_is_known_of_is_not_called_superfluous(where: str) -> None:
    assert _hint(where).endswith("lists the keys")


@pytest.mark.parametrize(
    ("where", "option"),
    [("num_gpus", "`--gpus`"), ("num_train_epochs", "`--num_train_epochs`"), ("wandb.name", "`WANDB_NAME`")],
)
def test_a_setting_of_another_program_is_sent_there(where: str, option: str) -> None:
    found = intended(*_whole(where))
    assert (option in found.hint, found.is_key) == (True, False)


def test_an_argument_of_other_schedulers_names_them() -> None:
    found = intended(WARMUP, ("scheduler", "params", "total_num_steps"))
    assert found.hint == "use `WarmupDecayLR` or `WarmupCosineLR`, which take it, or delete it"


def test_a_word_for_an_argument_is_only_answered_where_the_class_has_it() -> None:
    path = ("scheduler", "params", "max_steps")
    assert (intended(COSINE, path).path, intended(WARMUP, path).path) == (
        (*path[:2], "total_num_steps"),
        None,
    )


def test_an_optimizers_arguments_are_listed() -> None:
    whole: dict[str, object] = {"optimizer": {"type": "Lion", "params": {"momentum": 0.9}}}
    assert intended(whole, ("optimizer", "params", "momentum")).hint.startswith(
        "Lion takes lr, weight_decay, "
    )


@pytest.mark.parametrize("where", ["bf16.loss_scale", "bf16.hysteresis"])
def test_bf16_without_a_loss_scale_is_mended(where: str) -> None:
    fix = intended(*_whole(where)).fix
    assert fix is not None
    assert fix.kind is FixKind.DELETE


@pytest.mark.parametrize("where", ["zero_optimization.cpu_offload_optimizer", "zero_optimization.pipeline"])
def test_a_switch_is_not_made_a_section(where: str) -> None:
    assert intended(*_whole(where, True)).fix is None


def test_another_format_is_not_taken_for_a_misspelling() -> None:
    assert intended(*_whole("float16", {"enabled": True})).path == ("fp16",)


def test_every_key_in_the_tables_exists() -> None:
    named = [*other_names().keys_elsewhere.values(), *other_names().words_of_others.values()]
    keys = [".".join(map(str, path)) for paths in named for path in paths]
    known = {".".join(map(str, path)) for path, _ in fields()}
    kinds = [{"optimizer": {"type": "AdamW"}, "scheduler": {"type": kind}} for kind in DEEPSPEED_SCHEDULERS]
    lost = [key for key in keys if key not in known
            and not any(field_at(whole, tuple(key.split("."))) for whole in kinds)]  # fmt: skip
    assert lost == []


def test_no_entry_in_the_tables_is_a_key_itself() -> None:
    names = other_names()
    known = {".".join(map(str, path)) for path, _ in fields()} - {"scheduler.params.warmup_min_lr"}
    assert known & {*names.keys_elsewhere, *names.not_in_a_ds_config, *names.superfluous} == set()


@given(st.sampled_from([path for path, _ in fields()]), st.sampled_from([path for path, _ in fields()]))
def test_a_guess_names_a_key_that_exists_and_is_another(section: KeyPath, key: KeyPath) -> None:
    path = (*section[:-1], str(key[-1]))
    whole, _ = _whole(".".join(map(str, path)))
    if path[-1] in known_keys(whole, path[:-1]):
        return
    found = intended(whole, path)
    if found.path is not None:
        assert found.path != path
        assert found.path[-1] in (known_keys(whole, found.path[:-1]) or found.path[-1:])
    if found.fix is not None and found.path is not None:
        fix_value(whole, path, found.fix)
        assert value_at(whole, found.path) == 1
