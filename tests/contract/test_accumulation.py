"""A ds_config without an accumulation, as the Trainer, accelerate and DeepSpeed together read it."""

import itertools
from typing import Any

from tests.contract.deepspeed_side import as_rank, rank_of
from tests.contract.trainer_side import trainer_fills
from tests.each import each
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_mapping
from zlaunch.errors import FATAL
from zlaunch.job.args import ScriptArgs
from zlaunch.job.trainer_args import read_arguments

TOTALS, MICROS = (None, "auto", 4, 8, 16), (None, "auto", 2)
WORLD = 2


def batches() -> list[dict[str, Any]]:
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu")
    pairs = [dict(zip(keys, sizes, strict=True)) for sizes in itertools.product(TOTALS, MICROS)]
    given = [{key: size for key, size in pair.items() if size is not None} for pair in pairs]
    return [batch for batch in given if batch]


@each(("micro", "steps"), itertools.product((2, 4), (1, 2, 4)))
def test_a_batch_without_an_accumulation_is_refused_exactly_if_the_job_would_die(
    micro: int, steps: int
) -> None:
    from accelerate.utils import DeepSpeedPlugin

    argv = f"--per_device_train_batch_size {micro} --gradient_accumulation_steps {steps}".split()
    args, _ = read_arguments(ScriptArgs.of(argv))
    wrong = []
    for batch in batches():
        config = {**batch, "zero_optimization": {"stage": 2}}
        filled = trainer_fills(config, argv, world_size=WORLD)
        dies = bool(filled.mismatched)
        with rank_of(WORLD):
            try:
                as_rank(DeepSpeedPlugin(hf_ds_config=filled.config).deepspeed_config)
            except Exception:  # noqa: BLE001 - whatever it raises ends the job
                dies = True
        found = validate_mapping(config, Context(WORLD, args))
        if any(finding.severity in FATAL for finding in found) != dies:
            wrong.append((batch, dies, [finding.code for finding in found]))
    assert wrong == []
