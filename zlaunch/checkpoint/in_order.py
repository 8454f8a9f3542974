"""Run DeepSpeed's conversion on a checkpoint that was saved with `round_robin_gradients`.

The checkpoint records the offset of each parameter in the order of the model, and the conversion uses it. But
the numbers are in round-robin order, which is that of `param_shapes`.
Source: `_link_all_hp_params` in deepspeed/runtime/zero/stage_1_and_2.py of 0.19.8.

A Python with DeepSpeed runs it: `zlaunch.checkpoint.in_order ARGS`, with the arguments of the conversion.
"""

from pathlib import Path
from typing import Any

from deepspeed.checkpoint import ds_to_universal
from deepspeed.utils.tensor_fragment import fragment_address

from zlaunch.checkpoint.engine_files import ModelFile, OptimFile, engine_files
from zlaunch.checkpoint.flat_groups import fragments


class InOrder(ds_to_universal.DeepSpeedCheckpoint):  # type: ignore[misc]
    """Says where the parameters are; its processes get it pickled."""

    def get_zero_checkpoint_state(self, pp_index: int, tp_index: int, dp_index: int, **_: Any) -> Any:
        """Return what a rank has saved, with other places."""
        state = super().get_zero_checkpoint_state(pp_index, tp_index, dp_index)
        engine = engine_files(Path(self.dir))
        assert engine is not None
        shard = OptimFile(engine.optim[dp_index, tp_index])
        shapes = ModelFile(engine.model[None, tp_index]).shapes
        paddings = shard.paddings or [[0] * len(group) for group in shapes]
        state["optimizer_state_dict"]["param_slice_mappings"] = [
            {
                name: fragment_address(count, start)
                for name, start, count in fragments(group, ends, dp_index, share)
            }
            for group, ends, share in zip(shapes, paddings, shard.shares, strict=True)
        ]
        return state


def main() -> None:
    """Convert, with the arguments of this process."""
    ds_to_universal.DeepSpeedCheckpoint = InOrder
    ds_to_universal.main(ds_to_universal.parse_arguments())


if __name__ == "__main__":
    main()
