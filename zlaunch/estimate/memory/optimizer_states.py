"""What DeepSpeed's optimizers keep on a GPU, and what their start and their step take besides.

Read in DeepSpeed 0.19.8 and measured by rehearsal; files are named within deepspeed/runtime. Of a
model with P parameters, T of them trained, a rank has p = P/N and t = T/N. All sizes in bytes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from zlaunch.estimate.memory.model_states import MASTER_BYTES
from zlaunch.estimate.memory.settings import Settings

Parts = Mapping[str, int]
"""Bytes by what they are for, as `forecast.PARTS` names it."""

_NORM_BYTES: Final = 8
"""The norm of a gradient is computed in fp64 (zero/utils.py, get_norm_with_moe_layers)."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Elements of a model."""

    parameters: int
    trainable: int
    largest: int
    """In the largest trained parameter."""
    owned: int
    """In all parameters that the rank updates a part of: their gradients are kept whole."""


@dataclass(frozen=True, slots=True)
class OptimizerMemory:
    """What is on the GPU beside activations and gradients in their first form."""

    optimizer: str
    """The class that DeepSpeed trains with."""
    initialize: tuple[Parts, ...]
    """Moments of `deepspeed.initialize` at which much is there."""
    ready: Parts
    """After it."""
    trained: Parts
    """After the first step, which makes the optimizer's states."""
    first_step: tuple[Parts, ...]
    later_step: tuple[Parts, ...]
    load: tuple[Parts, ...] = ({},)
    """While the model is made, and after that; nothing where it is made on the host."""


def add_by_name(*parts: Parts) -> dict[str, int]:
    """Add parts up by name."""
    total: dict[str, int] = {}
    for part in parts:
        for name, nbytes in part.items():
            total[name] = total.get(name, 0) + nbytes
    return total


def optimizer_memory(settings: Settings, sizes: Sizes) -> OptimizerMemory:
    """Say what the optimizer that DeepSpeed chooses keeps (engine.py, _do_optimizer_sanity_check)."""
    return _KEEPERS[optimizer_class(settings)](settings, sizes)


def optimizer_class(settings: Settings) -> str:
    """Name the class that DeepSpeed wraps the optimizer in; empty where it wraps nothing."""
    if settings.stage == 3:
        return "DeepSpeedZeroOptimizer_Stage3"
    if settings.stage == 0:
        return "FP16_Optimizer" if settings.is_half else ""
    return "BF16_Optimizer" if settings.widens_all else "DeepSpeedZeroOptimizer"


def gradients_kept(settings: Settings, sizes: Sizes) -> int:
    """Say what stages 1 and 2 keep of the reduced gradients until the step.

    A parameter that lies across two ranks' shares is kept whole by both, unless gradients are
    accumulated in another format, for which there is a buffer of the share's size.
    """
    if settings.gradient_item != settings.item:
        return settings.gradient_item * settings.share(sizes.trainable)
    return settings.item * sizes.owned


def _plain(settings: Settings, sizes: Sizes) -> OptimizerMemory:
    ready = {"parameters": settings.item * sizes.parameters}
    trained = add_by_name(ready, {"optimizer states": settings.state_bytes * sizes.trainable})
    gradients = {"gradients": settings.item * sizes.trainable}
    step = (add_by_name(trained, gradients),)
    return OptimizerMemory("", (ready,), ready, trained, step, step)


def _fused(settings: Settings, sizes: Sizes) -> OptimizerMemory:
    """fp16/fused_optimizer.py: flat weights, an fp32 copy, states at once; the step flattens gradients."""
    parameters = {"parameters": settings.item * sizes.parameters}
    trained = add_by_name(
        parameters,
        {
            "master weights": MASTER_BYTES * sizes.trainable,
            "optimizer states": settings.state_bytes * sizes.trainable,
        },
    )
    start = add_by_name(trained, {"optimizer step": 4 * sizes.trainable})
    step = add_by_name(trained, {"gradients": 2 * sizes.trainable, "optimizer step": 8 * sizes.trainable})
    return OptimizerMemory("FP16_Optimizer", (start,), trained, trained, (step,), (step,))


def _bf16(settings: Settings, sizes: Sizes) -> OptimizerMemory:
    """bf16_optimizer.py: gradients of all parameters in fp32, beside those in bf16, which stay."""
    share = settings.share(sizes.trainable)
    narrow = {"gradients": 2 * sizes.trainable}
    ready = {
        "parameters": 2 * sizes.parameters,
        "gradients": 4 * sizes.trainable,
        "master weights": MASTER_BYTES * share,
    }
    trained = add_by_name(ready, narrow, {"optimizer states": settings.state_bytes * share})
    start = add_by_name(ready, {"workspace": 2 * sizes.trainable})
    return OptimizerMemory("BF16_Optimizer", (start,), ready, trained, (trained,), (trained,))


def _sharded_optimizer(settings: Settings, sizes: Sizes) -> OptimizerMemory:
    """zero/stage_1_and_2.py: the whole model is flattened at the start, so it is there twice."""
    item, share = settings.item, settings.share(sizes.trainable)
    parameters = {"parameters": item * sizes.parameters}
    start = add_by_name(parameters, {"workspace": item * sizes.trainable})
    if settings.optimizer_on != "gpu":
        # temp_grad_buffer_for_gpu_offload: one gradient on its way to the host.
        ready = add_by_name(parameters, {"buckets": item * sizes.largest})
        return OptimizerMemory("DeepSpeedZeroOptimizer", (start,), ready, ready, (ready,), (ready,))
    ready = add_by_name(parameters, {"master weights": MASTER_BYTES * share})
    trained = add_by_name(ready, {"optimizer states": settings.state_bytes * share})
    gradients = {"gradients": gradients_kept(settings, sizes)}
    norm = {"optimizer step": _NORM_BYTES * min(sizes.largest, share)}
    first = add_by_name(trained, {"optimizer step": 4 * share})
    # In another format than the parameters', gradients are flat and wide already.
    copies = (item + 4) * share if settings.gradient_item == item else 0
    later = add_by_name(trained, gradients, {"optimizer step": copies})
    return OptimizerMemory(
        "DeepSpeedZeroOptimizer",
        initialize=(start, ready),
        ready=ready,
        trained=trained,
        first_step=(first, add_by_name(ready, gradients, norm)),
        later_step=(later, add_by_name(trained, gradients, norm)),
    )


def _sharded_parameters(settings: Settings, sizes: Sizes) -> OptimizerMemory:
    """zero/stage3.py: without zero.Init the whole model goes to the GPU before it is shared out."""
    item, share = settings.item, settings.share(sizes.trainable)
    piece = item * settings.share(sizes.largest)
    shares: Parts = {}
    if settings.parameters_on == "gpu":
        shares = {"parameters": item * settings.share(sizes.parameters)}
    ready = add_by_name(shares, {"buckets": item * settings.reduce_bucket})
    trained, first, later = ready, ready, ready
    if settings.optimizer_on == "gpu":
        master = {"master weights": MASTER_BYTES * share, "gradients": settings.gradient_item * share}
        ready = add_by_name(ready, master)
        trained = add_by_name(ready, {"optimizer states": settings.state_bytes * share})
        group = min(settings.sub_group + settings.share(sizes.largest), share)
        first = add_by_name(trained, {"optimizer step": 4 * group})
        flat = item * group if settings.gradient_item == item else 0
        later = add_by_name(trained, {"optimizer step": flat + 4 * group})
    one = {"gathered parameters": item * sizes.largest}
    whole = {"parameters": item * sizes.parameters, "gathered parameters": piece}
    return OptimizerMemory(
        "DeepSpeedZeroOptimizer_Stage3",
        initialize=(shares if settings.zero_init else whole, add_by_name(ready, one, {"workspace": piece})),
        ready=ready,
        trained=trained,
        first_step=(first,),
        later_step=(later,),
        load=(add_by_name(shares, one), shares) if settings.zero_init else ({},),
    )


_KEEPERS: Final[dict[str, Callable[[Settings, Sizes], OptimizerMemory]]] = {
    "": _plain,
    "FP16_Optimizer": _fused,
    "BF16_Optimizer": _bf16,
    "DeepSpeedZeroOptimizer": _sharded_optimizer,
    "DeepSpeedZeroOptimizer_Stage3": _sharded_parameters,
}
