"""What DeepSpeed's checkpoint writers do, as the rules say it."""

import inspect

import pytest


@pytest.mark.parametrize("kind", ["Fast", "Decoupled"])
def test_an_engine_with_a_writer_leaves_to_torch_which_classes_it_loads(kind: str) -> None:
    from deepspeed.runtime.checkpoint_engine import decoupled_checkpoint_engine, fast_checkpoint_engine

    module = {"Fast": fast_checkpoint_engine, "Decoupled": decoupled_checkpoint_engine}[kind]
    load = inspect.getsource(getattr(module, f"{kind}CheckpointEngine").load)
    assert "torch.load(" in load
    assert "weights_only" not in load


def test_a_writer_asks_for_the_host_by_names_that_a_rank_of_zlaunch_has() -> None:
    from deepspeed.constants import CROSS_RANK, CROSS_SIZE

    assert (CROSS_SIZE, CROSS_RANK) == ("CROSS_SIZE", "CROSS_RANK")
