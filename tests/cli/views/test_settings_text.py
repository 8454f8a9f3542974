"""What a plan says about the stage and the offload of a ds_config."""

import pytest

from zlaunch.cli.views.settings_text import zero_words
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
