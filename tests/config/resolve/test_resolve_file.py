"""A ds_config with every "auto" filled in, and its batch."""

from typing import Any

import pytest

from tests.making import SHAPE
from zlaunch.config.resolve.autos import OpenReason
from zlaunch.config.resolve.compose import to_json
from zlaunch.config.resolve.resolve import ResolvedValues, batch_equation, resolve_file
from zlaunch.config.rules.rule import Context
from zlaunch.dsconfig.text.document import dotted
from zlaunch.dsconfig.text.parser import parse
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_args import read_arguments

BATCH: dict[str, Any] = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
)


def asked(
    line: str = "", world_size: int | None = 2, interface: ConfigInterface = ConfigInterface.TRAINER
) -> Context:
    return Context(world_size, read_arguments(ScriptArgs.of(line.split()))[0], SHAPE, interface)


def resolved(line: str = "", world_size: int | None = 2, **config: Any) -> ResolvedValues:
    return resolve_file(parse(to_json(config), "ds_config.json"), asked(line, world_size))


def batch_of(config: dict[str, Any], context: Context) -> str:
    return batch_equation(resolve_file(parse(to_json(config), "ds.json"), context).values, context)


def sources(resolved: ResolvedValues) -> dict[str, str]:
    return {dotted(path): str(leaf.source) for path, leaf in resolved.filled.items()}


def test_an_argument_is_named_as_the_source() -> None:
    assert sources(resolved("--max_grad_norm 2", gradient_clipping="auto")) == {
        "gradient_clipping": "`--max_grad_norm`"
    }


def test_a_default_is_named_as_the_source() -> None:
    assert sources(resolved(gradient_clipping="auto")) == {
        "gradient_clipping": "default of `--max_grad_norm`"
    }


def test_the_width_of_the_model_is_named_as_the_source() -> None:
    zero = {"stage": 2, "reduce_bucket_size": "auto"}
    told = "hidden_size 64 squared, model/config.json"
    assert sources(resolved(zero_optimization=zero)) == {"zero_optimization.reduce_bucket_size": told}


def test_a_number_of_the_config_is_what_its_argument_must_be() -> None:
    config: dict[str, Any] = {
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}},
    }
    told = "`optimizer.params.lr` in the ds_config"
    assert sources(resolved(**config)) == {"scheduler.params.warmup_max_lr": told}


def test_a_format_that_an_argument_switches_off_is_not_switched_on_by_the_config() -> None:
    found = resolved("--bf16 False", bf16={"enabled": True}).agreement.findings
    assert [(one.code, one.where) for one in found] == [("differs-from-argument", "bf16.enabled")]


def test_a_format_that_the_trainer_adds_is_told() -> None:
    assert sources(resolved("--bf16", gradient_clipping=1.0)) == {"bf16.enabled": "`--bf16`"}


def test_what_was_written_is_not_told() -> None:
    assert sources(resolved(gradient_clipping=1.0)) == {}


def test_what_only_the_dataset_decides_is_left() -> None:
    scheduler = {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}
    assert list(resolved(scheduler=scheduler).left) == ["scheduler.params.total_num_steps"]


def test_an_auto_that_is_never_filled_in_says_so() -> None:
    left = resolved(zero_optimization={"overlap_comm": "auto"}).left
    assert left == {"zero_optimization.overlap_comm": OpenReason.NEVER_FILLED}


def test_without_the_number_of_ranks_the_global_batch_is_left() -> None:
    assert resolved(world_size=None, **BATCH).left == {
        "train_batch_size": "depends on the number of ranks; give `--world-size`"
    }


@pytest.mark.parametrize(
    ("line", "config", "batch"),
    [
        ("", BATCH, "16 = 8 per rank x 1 accumulated x 2 ranks"),
        ("", {**BATCH, "train_batch_size": 64, "gradient_accumulation_steps": 2},
         "64 = 16 per rank x 2 accumulated x 2 ranks"),
        ("", {"train_micro_batch_size_per_gpu": 4}, "8 = 4 per rank x 1 accumulated x 2 ranks"),
        ("--gradient_accumulation_steps 3", BATCH,
         "48 = 8 per rank x 3 accumulated x 2 ranks"),
    ],
)  # fmt: skip
def test_the_batch_is_spelled_out(line: str, config: dict[str, Any], batch: str) -> None:
    assert batch_of(config, asked(line)) == batch


def test_a_batch_over_unknown_ranks_is_spelled_out_as_far_as_it_is_known() -> None:
    told = batch_of(BATCH, asked(world_size=None))
    assert told == "8 per rank x 1 accumulated x the number of ranks"


def test_deepspeed_alone_works_out_the_accumulation() -> None:
    config: dict[str, Any] = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}
    told = batch_of(config, asked(interface=ConfigInterface.DEEPSPEED))
    assert told == "64 = 4 per rank x 8 accumulated x 2 ranks"


def test_a_size_that_is_worked_out_is_passed_on_to_the_trainer() -> None:
    config = {**BATCH, "train_batch_size": 64, "gradient_accumulation_steps": 2}
    assert (
        resolved("--learning_rate 1e-4", **config).agreement.args["per_device_train_batch_size"].value == 16
    )


def test_a_precision_that_the_config_turns_on_is_passed_on_to_the_trainer() -> None:
    assert resolved("--learning_rate 1e-4", bf16={"enabled": True}).agreement.args["bf16"].value is True


def test_ranks_that_share_layers_train_on_the_same_samples() -> None:
    config = {"train_micro_batch_size_per_gpu": 4, "tensor_parallel": {"autotp_size": 2}}
    told = batch_of(config, asked(world_size=8, interface=ConfigInterface.DEEPSPEED))
    assert (
        told == "32 = 4 per rank x 1 accumulated x 8 ranks; 16 of them differ, since 2 ranks share each layer"
    )
