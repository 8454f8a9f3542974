"""The program of a check with a defect in its engine: `python -m tests.parity.seeded DEFECT`."""

import sys
from collections.abc import Callable
from typing import Any

from zlaunch.estimate.rehearsal.imports import import_packages
from zlaunch.parity.program.__main__ import main


def wrapped(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


def zero() -> Any:
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    return DeepSpeedZeroOptimizer


def scale_factor() -> None:
    """The sum over the ranks is not divided by their number."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def average(self: Any, tensor: Any, *others: Any) -> Any:
            tensor.mul_(2)
            return original(self, tensor, *others)

        return average

    wrapped(zero(), "average_tensor", wrap)


def accumulation_divided_twice() -> None:
    import deepspeed

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(self: Any, loss: Any, **options: Any) -> Any:
            return original(self, loss / self.gradient_accumulation_steps(), **options)

        return backward

    wrapped(deepspeed.DeepSpeedEngine, "backward", wrap)


def dropped_bucket() -> None:
    """The bucket with the first matrix of a model is not sent to the other rank."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def average(self: Any, tensor: Any, kind: Any) -> Any:
            for group, index, _ in self.ipg_buckets[kind].params:
                weight = self.bit16_groups[group][index]
                if self.param_names[weight].endswith(("layers.0.self_attn.q_proj.weight", "0.weight")):
                    return tensor
            return original(self, tensor, kind)

        return average

    wrapped(zero(), "average_tensor", wrap)


def unsynchronised_clipping() -> None:
    """Each rank clips by another norm."""
    from deepspeed import comm

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def norm(self: Any, **options: Any) -> Any:
            return original(self, **options) * (1 + 0.5 * comm.get_rank())

        return norm

    wrapped(zero(), "scaled_global_norm", wrap)


def missed_group() -> None:
    """The optimizer does not step the second group: biases and norms."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, number: int) -> None:
            if number == 0:
                original(self, number)

        return step

    wrapped(zero(), "_optimizer_step", wrap)


def stale_weights() -> None:
    """The new weights are not sent to the other rank."""
    from deepspeed.runtime.zero import stage_1_and_2

    stage_1_and_2.all_gather_dp_groups = lambda **_: None


def clipping_at_stage_3() -> None:
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(self: Any, number: int, norm: Any) -> Any:
            return original(self, number, norm * (1 + number))

        return clip

    wrapped(DeepSpeedZeroOptimizer_Stage3, "unscale_and_clip_grads", wrap)


if __name__ == "__main__":
    import_packages()
    globals()[sys.argv[1]]()
    main()
