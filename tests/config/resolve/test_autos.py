from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from tests.making import SHAPE, WRITTEN
from zlaunch.config.resolve.autos import (
    ACCUMULATION,
    MICRO,
    TOTAL,
    OpenReason,
    ResolvedAutos,
    derive_batch,
    resolve_autos,
)
from zlaunch.config.resolve.compose import preset
from zlaunch.config.resolve.values import Values
from zlaunch.config.rules.rule import Context
from zlaunch.dsconfig.text.document import KeyPath
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface
from zlaunch.job.spec import STAGES, Device, Offload
from zlaunch.job.trainer_args import read_arguments

DEVICES: tuple[Device, ...] = ("none", "cpu", "nvme")
ZERO = "zero_optimization"
AT_STAGE_3 = {"stage": 3, "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}

counts = st.integers(1, 10_000)


def _known(*argv: str, **changes: Any) -> Context:
    known = Context(2, read_arguments(ScriptArgs.of(argv))[0], SHAPE)
    return replace(known, **changes)


def _resolved(config: dict[str, Any], *argv: str, **changes: Any) -> ResolvedAutos:
    return resolve_autos(Values.of(config, WRITTEN), _known(*argv, **changes))


def _nested(path: KeyPath, value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return dict(value)


def _derived(config: dict[str, Any], *argv: str, world_size: int = 2) -> dict[str, Any]:
    return derive_batch(
        Values.of(config, WRITTEN), read_arguments(ScriptArgs.of(argv))[0], Context(world_size)
    ).config()


def _autos(micro: Any = "auto", accumulation: Any = "auto") -> dict[str, Any]:
    return {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": accumulation}


FILLED: list[tuple[KeyPath, Any]] = [
    (MICRO, 3),
    (ACCUMULATION, 5),
    (("gradient_clipping",), 0.5),
    (("optimizer", "params", "lr"), 3e-4),
    (("optimizer", "params", "betas"), [0.8, 0.95]),
    (("optimizer", "params", "eps"), 1e-6),
    (("optimizer", "params", "weight_decay"), 0.1),
    (("scheduler", "params", "warmup_min_lr"), 0),
    (("scheduler", "params", "warmup_max_lr"), 3e-4),
    (("scheduler", "params", "warmup_num_steps"), 10),
    (("scheduler", "params", "total_num_steps"), 100),
    (("bf16", "enabled"), True),
    (("fp16", "enabled"), False),
    ((ZERO, "stage"), 2),
    ((ZERO, "reduce_bucket_size"), 64 * 64),
    ((ZERO, "stage3_gather_16bit_weights_on_model_save"), False),
    ((ZERO, "offload_optimizer", "device"), "none"),
    ((ZERO, "offload_param", "device"), "none"),
]

ARGV = [
    "--per_device_train_batch_size=3",
    "--gradient_accumulation_steps=5",
    "--max_grad_norm=0.5",
    "--learning_rate=3e-4",
    "--adam_beta1=0.8",
    "--adam_beta2=0.95",
    "--adam_epsilon=1e-6",
    "--weight_decay=0.1",
    "--warmup_steps=10",
    "--max_steps=100",
    "--bf16",
]


@each(("path", "value"), FILLED)
def test_an_auto_becomes_a_value(path: KeyPath, value: Any) -> None:
    assert _resolved(_nested(path, "auto"), *ARGV).values[path] == value


@each(("path", "value"), FILLED)
def test_a_value_that_was_an_auto_names_its_source(path: KeyPath, value: Any) -> None:
    assert _resolved(_nested(path, "auto"), *ARGV).values.leaves[path].source not in ("", WRITTEN)


@each(("stage", "device"), list(product(STAGES.values(), DEVICES)))
def test_every_auto_of_a_preset_becomes_a_value(stage: Any, device: Device) -> None:
    assert _resolved(preset(stage, Offload(optimizer=device), Path("/nvme"))).values.autos() == []


@each(("stage", "device"), list(product(STAGES.values(), DEVICES)))
def test_nothing_of_a_preset_is_left_open(stage: Any, device: Device) -> None:
    assert _resolved(preset(stage, Offload(optimizer=device), Path("/nvme"))).left == {}


def test_what_is_no_auto_stays() -> None:
    config = {"train_batch_size": 7, "bf16": {"enabled": False}, "steps_per_print": 3}
    assert _resolved(config, *ARGV).values == Values.of(config, WRITTEN)


def test_a_switch_names_the_argument_that_turned_it_on() -> None:
    resolved = _resolved({"bf16": {"enabled": "auto"}}, "--bf16_full_eval")
    assert resolved.values.leaves["bf16", "enabled"].source.text == "`--bf16_full_eval`"


def test_stage_3_sizes_follow_the_model() -> None:
    assert _resolved({ZERO: AT_STAGE_3}).values.config()[ZERO] == {
        "stage": 3,
        "stage3_prefetch_bucket_size": 3686,
        "stage3_param_persistence_threshold": 640,
    }


def test_stage_3_sizes_are_deepspeeds_own_below_stage_3() -> None:
    assert _resolved({ZERO: {**AT_STAGE_3, "stage": 2}}).values.config()[ZERO] == {
        "stage": 2,
        "stage3_prefetch_bucket_size": 50_000_000,
        "stage3_param_persistence_threshold": 100_000,
    }


@pytest.mark.parametrize("model", [None, replace(SHAPE, value={})])
def test_sizes_are_left_open_without_a_model(model: object) -> None:
    left = _resolved({ZERO: {**AT_STAGE_3, "reduce_bucket_size": "auto"}}, model=model).left
    assert len([who for who in left.values() if "the Trainer" in who]) == 3


@pytest.mark.parametrize("stage", [2, 3])
def test_sizes_are_deepspeeds_own_for_a_script_without_a_trainer(stage: int) -> None:
    sizes = {**AT_STAGE_3, "reduce_bucket_size": "auto", "stage": stage}
    resolved = _resolved({ZERO: sizes}, model=None, interface=ConfigInterface.DEEPSPEED)
    assert (resolved.left, resolved.values.config()[ZERO]) == (
        {},
        {
            "stage": stage,
            "reduce_bucket_size": 500_000_000,
            "stage3_prefetch_bucket_size": 50_000_000,
            "stage3_param_persistence_threshold": 100_000,
        },
    )


def test_the_trainer_is_the_source_of_nothing_for_a_script_without_it() -> None:
    schedule = {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_num_steps": "auto"}}
    resolved = _resolved({**_autos(), "scheduler": schedule}, interface=ConfigInterface.DEEPSPEED)
    assert resolved.values.leaves[MICRO].source.text == "zlaunch's default"
    told = {path: str(one.source) for path, one in resolved.values.leaves.items()}
    assert {path: source for path, source in told.items() if "--" in source or "Trainer" in source} == {}


def test_an_auto_that_is_never_filled_in_says_so() -> None:
    assert _resolved({"zero_optimization": {"sub_group_size": "auto"}}).left == {
        "zero_optimization.sub_group_size": OpenReason.NEVER_FILLED
    }


@pytest.mark.parametrize(
    ("argv", "steps"),
    [
        (["--warmup_steps", "10"], 10),
        (["--warmup_steps", "0"], 1),
        (["--warmup_steps", "1.5"], 1),
        (["--warmup_steps", "0.1", "--max_steps", "55"], 6),
        (["--warmup_steps", "0.001", "--max_steps", "55"], 1),
        (["--warmup_steps", "0.1"], None),
    ],
)
def test_a_warmup_is_a_number_of_steps_or_a_share_of_all(argv: list[str], steps: int | None) -> None:
    path = ("scheduler", "params", "warmup_num_steps")
    resolved = _resolved(_nested(path, "auto"), *argv)
    assert resolved.values[path] == ("auto" if steps is None else steps)


@given(st.floats(), st.integers())
def test_any_warmup_is_a_number_of_steps_or_left_open(warmup: float, steps: int) -> None:
    path = ("scheduler", "params", "warmup_num_steps")
    resolved = _resolved(_nested(path, "auto"), f"--warmup_steps={warmup}", f"--max_steps={steps}")
    assert resolved.values[path] == "auto" or resolved.values[path] >= 1


def test_steps_are_left_open_if_the_dataset_decides() -> None:
    left = _resolved(_nested(("scheduler", "params", "total_num_steps"), "auto")).left
    assert "--max_steps" in left["scheduler.params.total_num_steps"]


@given(counts, counts, counts)
def test_the_total_is_the_product_of_its_parts(micro: int, accumulation: int, world_size: int) -> None:
    argv = f"--per_device_train_batch_size={micro}", f"--gradient_accumulation_steps={accumulation}"
    resolved = _resolved({"train_batch_size": "auto", **_autos()}, *argv, world_size=world_size)
    assert resolved.values[TOTAL] == micro * accumulation * world_size


@given(counts, counts, counts)
def test_the_total_is_the_product_of_its_parts_in_the_config(
    micro: int, accumulation: int, world: int
) -> None:
    config = {"train_batch_size": "auto", **_autos(micro, accumulation)}
    assert _resolved(config, *ARGV, world_size=world).values[TOTAL] == micro * accumulation * world


def test_the_total_shows_how_it_was_worked_out() -> None:
    resolved = _resolved({"train_batch_size": "auto", **_autos(4, 3)})
    assert resolved.values.leaves[TOTAL].source.text == "4 per rank x 3 accumulated x 2 ranks"


def test_the_batch_of_an_accelerate_script_is_left_to_its_data_loader() -> None:
    config = {"train_batch_size": "auto", **_autos()}
    assert set(_resolved(config, interface=ConfigInterface.ACCELERATE).left) == set(config)


def test_the_steps_of_a_schedule_come_from_the_objects_of_an_accelerate_script() -> None:
    config = {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}}
    left = {
        kind: _resolved(config, interface=kind).left["scheduler.params.total_num_steps"]
        for kind in (ConfigInterface.ACCELERATE, ConfigInterface.TRAINER)
    }
    assert list(left.values()) == [OpenReason.OBJECTS, OpenReason.DATASET]


def test_the_batch_of_an_accelerate_script_is_known_from_its_arguments() -> None:
    config = {"train_batch_size": "auto", **_autos()}
    assert _resolved(config, *ARGV, interface=ConfigInterface.ACCELERATE).values[TOTAL] == 30


@given(counts, counts, counts)
def test_a_missing_micro_batch_is_derived(micro: int, accumulation: int, world: int) -> None:
    config = {"train_batch_size": micro * accumulation * world, **_autos(accumulation=accumulation)}
    assert _derived(config, world_size=world)["train_micro_batch_size_per_gpu"] == micro


@given(counts, counts, counts)
def test_a_missing_accumulation_is_derived(micro: int, accumulation: int, world: int) -> None:
    config = {"train_batch_size": micro * accumulation * world, **_autos(micro)}
    assert _derived(config, world_size=world)["gradient_accumulation_steps"] == accumulation


@pytest.mark.parametrize(
    ("config", "argv"),
    [
        ({"train_batch_size": 64, **_autos()}, []),
        ({"train_batch_size": "auto", **_autos(4)}, []),
        ({"train_batch_size": 65, **_autos(4)}, []),
        ({"train_batch_size": 64, **_autos(0)}, []),
        ({"train_batch_size": 64, **_autos(4, 8)}, []),
        ({"train_batch_size": 64, **_autos(4, 1)}, []),
        ({"train_batch_size": 64, **_autos(4)}, ["--gradient_accumulation_steps", "1"]),
        ({"train_batch_size": 64, **_autos(accumulation=4)}, ["--per_device_train_batch_size", "1"]),
        ({"train_batch_size": 64, **_autos("four", 8)}, []),
        ({"train_batch_size": 64, **_autos(4, 2.5)}, []),
    ],
)
def test_a_batch_that_cannot_be_derived_stays_as_it_is(config: dict[str, Any], argv: list[str]) -> None:
    assert _derived(config, *argv) == config
