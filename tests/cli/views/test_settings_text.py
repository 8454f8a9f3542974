"""What a plan says about the stage and the offload of a ds_config."""

import pytest

from zlaunch.cli.views.settings_text import batch_rows, zero_words
from zlaunch.config.resolve.values import Values
from zlaunch.job.source import Source, SourceKind

WRITTEN = Source(SourceKind.CONFIG_FILE, "ds.json:1")
CPU = {"device": "cpu"}


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (0, "nothing offloaded"),
        (2, "optimizer on the CPU"),
        (3, "optimizer on the CPU, parameters on the CPU"),
    ],
)
def test_what_a_stage_does_not_offload_is_not_said_to_be(stage: int, said: str) -> None:
    zero = {"stage": stage, "offload_optimizer": CPU, "offload_param": CPU}
    assert zero_words(Values.of({"zero_optimization": zero}, WRITTEN)) == f"ZeRO stage {stage}, {said}"


@pytest.mark.parametrize(
    ("kind", "is_asked"), [(SourceKind.ZLAUNCH_DEFAULT, True), (SourceKind.TRAINER_DEFAULT, False)]
)
def test_a_batch_that_only_zlaunch_assumes_says_how_to_give_the_real_one(
    kind: SourceKind, is_asked: bool
) -> None:
    values = Values.of({"train_batch_size": 16}, Source.computed("8 per rank x 1 accumulated x 2 ranks"))
    values = values.put(("train_micro_batch_size_per_gpu",), 8, Source(kind, "a default"))
    ((_, words),) = batch_rows(values)
    assert ("`--set train_micro_batch_size_per_gpu=N`" in words) == is_asked
