"""A memory forecast by formulas, from config.json and ds_config, in milliseconds.

It is used where a run cannot be rehearsed, and orders the configurations that `plan` rehearses. Its error
was measured on many architectures (docs/closed-form.md); the stated error is larger. Not included: RNG
states of dropout, ZeRO++, MiCS, tensor and sequence parallelism. Fragmentation is a constant factor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from zlaunch.estimate.forecast import Forecast, Phase
from zlaunch.estimate.memory import activations
from zlaunch.estimate.memory.activations import Batch
from zlaunch.estimate.memory.adapters import adapters, adapts_experts
from zlaunch.estimate.memory.backward import Experts, SavedActivations, backward, saved_activations, trained
from zlaunch.estimate.memory.gradients import Gradients, Trained
from zlaunch.estimate.memory.host_memory import host_memory
from zlaunch.estimate.memory.optimizer_states import (
    Breakdown,
    OptimizerMemory,
    Sizes,
    add,
    optimizer_memory,
    reduced_gradients,
)
from zlaunch.estimate.memory.settings import Settings, read_settings
from zlaunch.estimate.workload import Workload
from zlaunch.job.transformer import Transformer, read_transformer

KNOWN_ERROR: Final = 0.15
"""Stated error of the peak for known model types: 1.5 times the largest measured error."""
UNKNOWN_ERROR: Final = 1.5
"""The same for unknown types, of which parameters and activations are guessed."""
RESERVED: Final = 1.25
"""Ratio of reserved to allocated bytes at the peak. Over a hundred rehearsals it is 2 % too low on average,
typically within 12 %, and a third too low in the worst case. On a nearly full GPU, the allocator
releases cached memory and needs less."""
_LOADED_BYTES: Final = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class _Job:
    """All inputs of the formulas."""

    model: Transformer
    settings: Settings
    batch: Batch
    weights: Trained
    sizes: Sizes
    optimizer: OptimizerMemory
    saved: SavedActivations
    gatherable: int
    """Elements that stage 3 may keep gathered, without experts that count as saved activations."""


Peaks = Sequence[Breakdown]
"""The local peaks of a phase, and then its end."""


def forecast(workload: Workload) -> Forecast:
    """Forecast the memory of a rank, without saving; raise Refused if config.json has no sizes."""
    job = _job(workload)
    peaks = _peaks(job)
    on_host = host_memory(job.settings, job.weights, job.model, _LOADED_BYTES[workload.load_dtype])
    phases = tuple(
        _phase(name, [_total(peak) for peak in during], on_host.phases[name])
        for name, during in peaks.items()
    )
    highest = max((peak for during in peaks.values() for peak in during), key=_total)
    known = job.model.known
    return Forecast(
        method="closed form",
        phases=phases,
        parts={"gpu": {name: nbytes for name, nbytes in highest.items() if nbytes}, **on_host.categories},
        parameters=job.model.parameters,
        trainable=job.weights.total,
        optimizer=job.optimizer.optimizer,
        error=KNOWN_ERROR if known else UNKNOWN_ERROR,
        flops=_flops(job, workload),
        notes=()
        if known
        else ("the model type is unknown to the closed form, which used the most similar known type",),
    )


def _job(workload: Workload) -> _Job:
    model, settings = read_transformer(workload.model), read_settings(workload)
    lora = workload.lora
    weights = trained(model, adapters(model, lora) if lora else 0)
    share = settings.share(weights.total)
    added = weights.total if lora else 0
    sizes = Sizes(
        model.parameters + added, weights.total, weights.largest, weights.owned(share, settings.rank)
    )
    batch = Batch(
        settings.micro_batch, workload.seq_len, settings.item, workload.attention, frozen=lora is not None
    )
    # Experts are multiplied as views, which keep the storage alive when stage 3 releases the parameter.
    viewed = settings.stage == 3 and not workload.activation_checkpointing
    saved_experts: Experts = "merged" if adapts_experts(model, lora) else "viewed" if viewed else None
    saved = saved_activations(
        model, batch, checkpointing=workload.activation_checkpointing, experts=saved_experts
    )
    experts = sum(stack.num_layers * stack.expert_numel for stack in model.stacks)
    gatherable = model.parameters - (experts if saved_experts == "viewed" else 0)
    optimizer = optimizer_memory(settings, sizes)
    return _Job(model, settings, batch, weights, sizes, optimizer, saved, gatherable)


def _peaks(job: _Job) -> dict[str, Peaks]:
    """Compute the peaks of each phase on the GPU."""
    optimizer = job.optimizer
    forward, back = _passes(job, optimizer.ready, first=True)
    second = _passes(job, optimizer.trained, first=False)
    return {
        "load": optimizer.load,
        "initialize": (*optimizer.initialize, optimizer.ready),
        "forward": forward,
        "backward": back,
        "step": (*optimizer.first_step, optimizer.trained),
        "second step": (*second[0], *second[1], *optimizer.later_step, optimizer.trained),
    }


def _passes(job: _Job, optimizer: Breakdown, *, first: bool) -> tuple[Peaks, Peaks]:
    """Compute the peaks of forward and backward pass in the last micro-step of a step."""
    saved, model = job.saved, job.model
    gradients = _gradients(job, first=first)
    base = add(optimizer, _accumulated(job, gradients))
    at_end = {} if first else _gathered(job, _reused(job, model.parameters))
    end = add(base, at_end, {"activations": saved.activations, "logits": saved.head.saved})
    forward = [
        add(base, {"activations": saved.activations}, at_end or _gathered(job, _output(model))),
        add(end, {"logits": saved.head.forward}),
        end,
    ]
    walked = list(backward(model, job.batch, saved, gradients, job.weights))
    if first:
        # Gathered: nothing for the loss, the output matrix, then each layer with prefetched parameters.
        layer = max(stack.layer_numel for stack in model.stacks) + job.settings.prefetch
        in_use = [0, _output(model), *(min(layer, ahead) for ahead, _ in walked[2:-3])]
        in_use += [ahead for ahead, _ in walked[-3:]]
    else:
        in_use = [_reused(job, ahead) for ahead, _ in walked]
    back = [add(base, _gathered(job, n), peak) for n, (_, peak) in zip(in_use, walked, strict=True)]
    return forward, [*back, add(base, {"gradients": gradients.held})]


def _reused(job: _Job, ahead: int) -> int:
    """Return the elements of the `ahead` elements still to be used that stage 3 keeps gathered.

    Once it knows the order, it keeps parameters that are used again within `stage3_max_reuse_distance`,
    and a whole embedding that starts within it (zero/partitioned_param_coordinator.py).
    """
    distance, output = job.settings.reuse_distance, _output(job.model)
    if ahead == job.model.parameters:  # the output matrix comes next and is kept at any size
        distance = max(distance, output)
    return min(job.gatherable, ahead if ahead - output < distance else distance)


def _gathered(job: _Job, numel: int) -> Breakdown:
    return {"gathered parameters": job.settings.item * numel} if job.settings.stage == 3 else {}


def _output(model: Transformer) -> int:
    """Return the elements of the output matrix, which is as large as the embedding."""
    return model.hidden * model.vocab


def _gradients(job: _Job, *, first: bool) -> Gradients:
    """Return the state of the gradients before the backward pass of the last micro-step."""
    settings = job.settings
    gradients = Gradients(settings, job.weights.total, reduced_gradients(settings, job.sizes))
    is_accumulated = settings.accumulation > 1 and gradients.waits
    return replace(gradients, is_allocated=is_accumulated or (settings.widens_all and not first))


def _accumulated(job: _Job, gradients: Gradients) -> Breakdown:
    """Return the gradients of earlier micro-steps during the last one."""
    settings = job.settings
    if settings.accumulation == 1 or settings.stage == 3 or settings.widens_all:
        return {}
    if gradients.waits:
        return {"gradients": settings.item * job.weights.total}
    return {"gradients": gradients.owned_bytes if settings.optimizer_on == "gpu" else 0}


def _phase(name: str, totals: Sequence[int], on_host: tuple[Mapping[str, int], Mapping[str, int]]) -> Phase:
    peak, end = max(totals), totals[-1]
    return Phase(
        name,
        peak={"gpu": peak, "reserved": int(RESERVED * peak), **on_host[0]},
        end={"gpu": end, "reserved": int(RESERVED * peak), **on_host[1]},
    )


def _total(parts: Breakdown) -> int:
    return sum(parts.values())


def _flops(job: _Job, workload: Workload) -> float:
    once = activations.step_flops(
        job.model,
        job.batch,
        recomputed=workload.activation_checkpointing,
        trainable=job.weights.total if workload.lora else None,
    )
    return once * job.settings.accumulation
