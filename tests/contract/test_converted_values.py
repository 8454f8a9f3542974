"""Values of another type: judged for DeepSpeed by what it does with them, for the Trainer by what that does."""

from typing import Any

from tests.contract.deepspeed_side import as_rank, rank_of
from tests.contract.trainer_side import trainer_fills
from tests.each import each
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_mapping
from zlaunch.errors import FATAL
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_args import read_arguments

STAGE_2 = {"stage": 2}
CASES: dict[str, dict[str, Any]] = {
    "switch that both read": {"bf16": {"enabled": "true"}},
    "number for a switch": {"bf16": {"enabled": 1}},
    "switch of DeepSpeed": {"zero_optimization": {**STAGE_2, "overlap_comm": "true"}},
    "number of DeepSpeed": {"zero_optimization": {**STAGE_2, "reduce_bucket_size": "500000000"}},
    "true for one step": {"gradient_accumulation_steps": True},
    "no section": {"zero_optimization": False},
    "section of an old kind": {"zero_optimization": True},
    "class without a list": {"zero_optimization": {"stage": 3, "leaf_module": {"classes": "X"}}},
    "scale that fp16 would not take": {"fp16": {"enabled": False, "min_loss_scale": 0}},
    "scale that a fixed one hides": {"fp16": {"enabled": True, "loss_scale": 128, "min_loss_scale": 0}},
    "scale that is not positive": {"fp16": {"enabled": True, "min_loss_scale": 0}},
    "window that is not positive": {"fp16": {"enabled": True, "loss_scale_window": -1}},
    "section that no pipeline reads": {"pipeline": {"activation_checkpoint_interval": 1}},
}


def is_refused(config: dict[str, Any], context: Context) -> bool:
    return any(finding.severity in FATAL for finding in validate_mapping(config, context))


@each("name", CASES)
def test_a_value_is_refused_exactly_if_deepspeed_refuses_it(name: str) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": STAGE_2, **CASES[name]}
    with rank_of(1, 0):
        try:
            as_rank(config, None)
            refuses = False
        except Exception:  # noqa: BLE001 - whatever it raises is a refusal
            refuses = True
    assert is_refused(config, Context(interface=ConfigInterface.DEEPSPEED)) == refuses


@each("name", [name for name in CASES if "scale" not in name and "window" not in name])
def test_a_value_is_refused_for_the_trainer_exactly_if_the_trainer_refuses_it(name: str) -> None:
    config = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": STAGE_2, **CASES[name]}
    argv = ["--bf16"] if "bf16" in config else []
    try:
        refuses = bool(trainer_fills(config, argv).mismatched)
    except (ValueError, AttributeError):
        refuses = True
    args, _ = read_arguments(ScriptArgs.of(argv))
    assert is_refused(config, Context(args=args)) == refuses
