"""GPU memory of DeepSpeed's optimizers: persistent states, and the peaks of initialization and step.

Derived from the source of DeepSpeed 0.19.8 (files are relative to deepspeed/runtime) and checked by
rehearsals. All sizes in bytes.
"""

from collections.abc import Callable, Mapping
from typing import Final

from zlaunch.estimate.memory.model_states import MASTER_BYTES
from zlaunch.estimate.memory.settings import Settings
from zlaunch.estimate.memory.weights import Weights
from zlaunch.frozen import dataclass

Breakdown = Mapping[str, int]
"""Bytes by category, as a rehearsal names them."""

_NORM_BYTES: Final = 8
"""Gradient norms are computed in fp64 (zero/utils.py, get_norm_with_moe_layers)."""


@dataclass(frozen=True, slots=True)
class OptimizerMemory:
    """GPU memory without activations, and without gradients before they are reduced."""

    initialize: tuple[Breakdown, ...]
    """Peaks within `deepspeed.initialize`."""
    ready: Breakdown
    """After `deepspeed.initialize`."""
    trained: Breakdown
    """After the first step, which creates the optimizer states."""
    first_step: tuple[Breakdown, ...]
    later_step: tuple[Breakdown, ...]
    load: tuple[Breakdown, ...] = ({},)
    """While the model is loaded, and after that; nothing if it is loaded on the host."""


def add(*breakdowns: Breakdown) -> dict[str, int]:
    """Add breakdowns by category."""
    total: dict[str, int] = {}
    for breakdown in breakdowns:
        for category, nbytes in breakdown.items():
            total[category] = total.get(category, 0) + nbytes
    return total


def optimizer_memory(settings: Settings, weights: Weights) -> OptimizerMemory:
    """Return the memory of the optimizer that DeepSpeed chooses (engine.py, _do_optimizer_sanity_check)."""
    return _OPTIMIZERS[optimizer_class(settings)](settings, weights)


def optimizer_class(settings: Settings) -> str:
    """Return the class that DeepSpeed wraps the optimizer in; empty if it does not."""
    if settings.stage == 3:
        return "DeepSpeedZeroOptimizer_Stage3"
    if settings.stage == 0 and settings.is_half:
        return "FP16_Optimizer"
    if settings.stage == 0:
        return ""
    if settings.widens_all:
        return "BF16_Optimizer"
    return "DeepSpeedZeroOptimizer"


def reduced_gradients(settings: Settings, weights: Weights) -> int:
    """Return the reduced gradients that stages 1 and 2 keep until the step.

    Both ranks keep the whole gradient of a parameter that spans two partitions. With another
    accumulation dtype, there is a buffer of the partition's size instead.
    """
    share = settings.share(weights.total)
    if settings.gradient_item != settings.item:
        return settings.gradient_item * share
    return settings.item * weights.owned(share, settings.rank)


def _without_wrapper(settings: Settings, weights: Weights) -> OptimizerMemory:
    ready = {"parameters": settings.item * weights.parameters}
    trained = add(ready, {"optimizer states": settings.state_bytes * weights.total})
    gradients = {"gradients": settings.item * weights.total}
    step = (add(trained, gradients),)
    return OptimizerMemory((ready,), ready, trained, step, step)


def _fused(settings: Settings, weights: Weights) -> OptimizerMemory:
    """fp16/fused_optimizer.py: states exist from initialization on; the step flattens gradients."""
    parameters = {"parameters": settings.item * weights.parameters}
    trained = add(
        parameters,
        {
            "master weights": MASTER_BYTES * weights.total,
            "optimizer states": settings.state_bytes * weights.total,
        },
    )
    start = add(trained, {"optimizer step": 4 * weights.total})
    step = add(trained, {"gradients": 2 * weights.total, "optimizer step": 8 * weights.total})
    return OptimizerMemory((start,), trained, trained, (step,), (step,))


def _bf16(settings: Settings, weights: Weights) -> OptimizerMemory:
    """bf16_optimizer.py: gradients of all parameters in fp32 and in bf16, both persistent."""
    share = settings.share(weights.total)
    bf16_gradients = {"gradients": 2 * weights.total}
    ready = {
        "parameters": 2 * weights.parameters,
        "gradients": 4 * weights.total,
        "master weights": MASTER_BYTES * share,
    }
    trained = add(ready, bf16_gradients, {"optimizer states": settings.state_bytes * share})
    start = add(ready, {"workspace": 2 * weights.total})
    return OptimizerMemory((start,), ready, trained, (trained,), (trained,))


def _sharded_optimizer(settings: Settings, weights: Weights) -> OptimizerMemory:
    """zero/stage_1_and_2.py: initialization flattens the model, so it exists twice."""
    item, share = settings.item, settings.share(weights.total)
    parameters = {"parameters": item * weights.parameters}
    start = add(parameters, {"workspace": item * weights.total})
    if settings.optimizer_on != "gpu":
        # temp_grad_buffer_for_gpu_offload holds one gradient.
        ready = add(parameters, {"buckets": item * weights.largest})
        return OptimizerMemory((start,), ready, ready, (ready,), (ready,))
    ready = add(parameters, {"master weights": MASTER_BYTES * share})
    trained = add(ready, {"optimizer states": settings.state_bytes * share})
    gradients = {"gradients": reduced_gradients(settings, weights)}
    norm = {"optimizer step": _NORM_BYTES * min(weights.largest, share)}
    first = add(trained, {"optimizer step": 4 * share})
    later = add(trained, gradients)
    if settings.gradient_item == item:  # in another dtype, gradients are already flat and in fp32
        later = add(later, {"optimizer step": (item + 4) * share})
    return OptimizerMemory(
        initialize=(start, ready),
        ready=ready,
        trained=trained,
        first_step=(first, add(ready, gradients, norm)),
        later_step=(later, add(trained, gradients, norm)),
    )


def _sharded_parameters(settings: Settings, weights: Weights) -> OptimizerMemory:
    """zero/stage3.py: without zero.Init the whole model is on the GPU before it is partitioned."""
    item, share = settings.item, settings.share(weights.total)
    piece = item * settings.share(weights.largest)
    shares: Breakdown = {}
    if settings.parameters_on == "gpu":
        shares = {"parameters": item * settings.share(weights.parameters)}
        if settings.groups.secondary > 1:
            second = -(-weights.parameters // settings.groups.secondary)
            shares = {"parameters": shares["parameters"] + item * second}
    ready = add(shares, {"buckets": item * settings.reduce_bucket})
    trained, first, later = ready, ready, ready
    if settings.optimizer_on == "gpu":
        master = {"master weights": MASTER_BYTES * share, "gradients": settings.gradient_item * share}
        ready = add(ready, master)
        trained = add(ready, {"optimizer states": settings.state_bytes * share})
        group = min(settings.sub_group + settings.share(weights.largest), share)
        first = later = add(trained, {"optimizer step": 4 * group})
        if settings.gradient_item == item:
            later = add(later, {"optimizer step": item * group})
    largest = {"gathered parameters": item * weights.largest}
    start: Breakdown = {"parameters": item * weights.parameters, "gathered parameters": piece}
    load: tuple[Breakdown, ...] = ({},)
    if settings.zero_init:
        created = {"gathered parameters": item * max(weights.all)}
        start, load = shares, (add(shares, created), shares)
    return OptimizerMemory(
        initialize=(start, add(ready, largest, {"workspace": piece})),
        ready=ready,
        trained=trained,
        first_step=(first,),
        later_step=(later,),
        load=load,
    )


_OPTIMIZERS: Final[dict[str, Callable[[Settings, Weights], OptimizerMemory]]] = {
    "": _without_wrapper,
    "FP16_Optimizer": _fused,
    "BF16_Optimizer": _bf16,
    "DeepSpeedZeroOptimizer": _sharded_optimizer,
    "DeepSpeedZeroOptimizer_Stage3": _sharded_parameters,
}
