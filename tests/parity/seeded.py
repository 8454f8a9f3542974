"""The program of a check with defects in its engine: `python -m tests.parity.seeded`."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zlaunch.estimate.rehearsal.imports import import_packages
from zlaunch.hosts.adapters import adapter_of
from zlaunch.parity.trial import Trial


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


def bucket_tail() -> None:
    """The second half of each bucket does not reach the other rank."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def average(self: Any, tensor: Any, kind: Any) -> Any:
            tensor[tensor.numel() // 2 :].zero_()
            return original(self, tensor, kind)

        return average

    wrapped(zero(), "average_tensor", wrap)


def only_the_last_micro_batch() -> None:
    import deepspeed

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(self: Any, loss: Any, **options: Any) -> Any:
            if not self.is_gradient_accumulation_boundary():
                loss = loss * 0
            return original(self, loss, **options)

        return backward

    wrapped(deepspeed.DeepSpeedEngine, "backward", wrap)


def stale_master_weights() -> None:
    """The second group, biases and norms, is stepped from the weights of one step ago."""
    before: dict[int, Any] = {}

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, number: int) -> None:
            masters = self.single_partition_of_fp32_groups[number]
            old, before[number] = before.get(number), masters.detach().clone()
            if number == 1 and old is not None:
                masters.data.copy_(old)
            original(self, number)

        return step

    wrapped(zero(), "_optimizer_step", wrap)


def second_use_of_a_module() -> None:
    """Of a module that is used twice, only the first use gives gradients."""
    import deepspeed
    from torch.func import functional_call

    def once(module: Any) -> Callable[..., Any]:
        plain, uses = module.forward, []

        def forward(*arguments: Any, **options: Any) -> Any:
            uses.append(module)
            if len(uses) % 2:
                return plain(*arguments, **options)
            module.forward = plain
            frozen = {name: weight.detach() for name, weight in module.named_parameters()}
            result = functional_call(module, frozen, arguments, options)
            module.forward = forward
            return result

        return forward

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(self: Any, *arguments: Any, **options: Any) -> None:
            original(self, *arguments, **options)
            for module in self.module.modules():
                if type(module).__name__ == "AlbertLayer":
                    module.forward = once(module)

        return initialize

    wrapped(deepspeed.DeepSpeedEngine, "__init__", wrap)


def forgotten_momentum() -> None:
    """A checkpoint is loaded without the states of the optimizer."""
    import deepspeed

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def load(self: Any, folder: str, **options: Any) -> Any:
            return original(self, folder, load_optimizer_states=False, **options)

        return load

    wrapped(deepspeed.DeepSpeedEngine, "load_checkpoint", wrap)


def serve() -> None:
    """Read a defect and a trial from each line, and check the trial in a fork that has the defect."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import_packages()
    from zlaunch.parity.program.trial_run import compare

    for line in sys.stdin:
        asked = json.loads(line)
        if pid := os.fork():
            os.waitpid(pid, 0)
            continue
        if asked["defect"] is not None:
            globals()[asked["defect"]]()
        with tempfile.TemporaryDirectory() as directory:
            result = compare(adapter_of(Trial).validate_python(asked["trial"]), Path(directory))
        print(json.dumps(result), file=out, flush=True)
        os._exit(0)


if __name__ == "__main__":
    serve()
