"""What a plan says about the stage and the offload of a ds_config."""

from typing import Any

import pytest

from zlaunch.cli.views.settings_text import batch_rows, zero_words
from zlaunch.config.resolve.values import Values
from zlaunch.job.source import Source, SourceKind

WRITTEN = Source(SourceKind.CONFIG_FILE, "ds.json:1")
CPU = {"device": "cpu"}
_MICRO, _STEPS = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_SIZES = ("train_batch_size", _MICRO, _STEPS)


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


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        (dict.fromkeys(_SIZES, "auto"), "the script's batch size per rank x its accumulation x 2 ranks"),
        ({_MICRO: 4, "train_batch_size": "auto"}, "4 per rank x the script's accumulation x 2 ranks"),
        ({_MICRO: 4, _STEPS: 3}, "24 = 4 per rank x 3 accumulated x 2 ranks"),
        (
            {_MICRO: 4, _STEPS: 3, "train_batch_size": 24},
            "24 = 4 per rank x 3 accumulated x 2 ranks (ds.json:1)",
        ),
        ({"train_batch_size": 24}, "24 (ds.json:1)"),
    ],
)
def test_a_batch_is_shown_by_its_factors_as_far_as_they_are_known(config: dict[str, Any], shown: str) -> None:
    assert list(batch_rows(Values.of(config, WRITTEN), 2)) == [("batch", shown)]


def test_a_batch_of_unknown_ranks_is_not_shown() -> None:
    assert list(batch_rows(Values.of({_MICRO: 4}, WRITTEN))) == []
