"""A memory forecast by formulas, from config.json and ds_config, in milliseconds.

It is used where a run cannot be rehearsed, and orders the configurations that `plan` rehearses. Its error
was measured on many architectures (docs/closed-form.md); the stated error is larger. Not included: RNG
states of dropout, quantization of ZeRO++, MiCS. The allocator's cache is the usual share.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from zlaunch.estimate.forecast import Forecast, Phase
from zlaunch.estimate.memory import activations
from zlaunch.estimate.memory.activations import Experts, SavedActivations, saved_activations
from zlaunch.estimate.memory.gradients import Gradients, backward
from zlaunch.estimate.memory.host_memory import host_memory
from zlaunch.estimate.memory.optimizer_states import (
    Breakdown,
    OptimizerMemory,
    add,
    optimizer_memory,
)
from zlaunch.estimate.memory.settings import TrainingJob, optimizer_name, read_job
from zlaunch.estimate.memory.weights import adapted_names, adapts_experts
from zlaunch.estimate.workload import Workload
from zlaunch.frozen import dataclass
from zlaunch.job.transformer import Transformer

KNOWN_ERROR: Final = 0.15
"""Stated error of the peak for known model types: 1.5 times the largest measured error."""
SPLIT_ERROR: Final = 0.3
"""The same where ranks share layers or sequences; rehearsals took from 22% less to 13% more."""
UNKNOWN_ERROR: Final = 1.9
"""The same for unknown types, of which parameters and activations are guessed."""
CACHES: Final[Mapping[tuple[bool, bool, bool], tuple[float, float, float]]] = {
    (False, False, False): (0.05, 0.15, 0.28),
    (False, False, True): (0.09, 0.19, 0.34),
    (False, True, False): (0.07, 0.19, 0.32),
    (False, True, True): (0.18, 0.36, 0.57),
    (True, False, False): (0.03, 0.07, 0.11),
    (True, False, True): (0.05, 0.11, 0.17),
    (True, True, False): (0.05, 0.15, 0.27),
    (True, True, True): (0.10, 0.27, 0.45),
}
"""What the allocator keeps besides tensors, as a share of their peak: with LoRA or not, with checkpointing or
not, at stage 3 or with offload or not → a tenth of rehearsals has less, the median, a tenth has more.

From 660 rehearsals of models with 2 to 32 layers on 1 to 64 ranks, 504 of which are in
tests/estimate/plans/rehearsed.json. On a nearly full GPU, the allocator frees its cache and needs less.
"""

_GUESSED: Final[tuple[str, ...]] = (
    "the model type is unknown to the closed form, which used the most similar known type",
)

_HANDLES: Final = {"load": 0, "initialize": 0, "forward": 1, "backward": 2, "step": 2, "second step": 2}
"""Handles of cuBLAS that exist in each phase, or are made in it."""

Peaks = Sequence[Breakdown]
"""The local peaks of a phase, and then its end."""


@dataclass(frozen=True, slots=True)
class _Passes:
    """The inputs for the forward and backward passes."""

    job: TrainingJob
    saved: SavedActivations
    gatherable: int
    """Elements that stage 3 may keep gathered, without experts that count as saved activations."""


def forecast(workload: Workload) -> Forecast:
    """Forecast the memory of a rank, without saving; raise Refused if config.json has no sizes."""
    job = read_job(workload)
    optimizer, passes = optimizer_memory(job.settings, job.weights), _passes_of(job)
    peaks = dict(_with_cublas(_peaks(passes, optimizer), workload))
    on_host, categories_on_host = host_memory(job)
    cache, in_words = _cache_of(job)
    phases = tuple(_summed_phase(name, during, cache, on_host[name]) for name, during in peaks.items())
    highest = max(chain.from_iterable(peaks.values()), key=_total)
    adapters = None
    if workload.lora:
        adapters = job.weights.total
    flops = activations.step_flops(
        job.model,
        passes.job.batch,
        recomputed=workload.activation_checkpointing,
        trainable=adapters,
    )
    error, notes = UNKNOWN_ERROR, (*_GUESSED, in_words)
    if job.model.known:
        error, notes = KNOWN_ERROR, (in_words,)
    if job.settings.groups.are_split:
        error = max(error, SPLIT_ERROR)
    return Forecast(
        method="closed form",
        phases=phases,
        parts={"gpu": _without_empty(highest), **categories_on_host},
        parameters=job.model.parameters,
        trainable=job.weights.total,
        optimizer=optimizer_name(workload),
        error=error,
        flops=flops * job.settings.accumulation,
        notes=notes,
        unsaved=tuple(_not_counted(workload)),
    )


def _cache_of(job: TrainingJob) -> tuple[float, str]:
    """Return the share of the allocator's cache, and a note about it."""
    settings, workload = job.settings, job.workload
    is_moved, kind = settings.stage == 3 or settings.optimizer_on != "gpu", "at stages 0 to 2 without offload"
    if is_moved:
        kind = "at stage 3 or with offload"
    low, usual, high = CACHES[workload.lora is not None, workload.activation_checkpointing, is_moved]
    words = (
        f"the allocator's cache {kind} is taken to be {usual:.0%} of the tensors: most rehearsals "
        f"of such jobs have {low:.0%} to {high:.0%}"
    )
    return usual, words


def _not_counted(workload: Workload) -> Iterator[str]:
    if workload.frozen is not None:
        yield "frozen parameters"
    if workload.liger:
        yield "kernels of Liger"
    if workload.four_bits is not None:
        yield "weights of four bits"


def _passes_of(job: TrainingJob) -> _Passes:
    model, workload = job.model, job.workload
    checkpointing = workload.activation_checkpointing
    if workload.lora is not None:
        fed = None
        if job.settings.stage < 3:  # DeepSpeed's own function for matrices at stage 3 saves all inputs
            fed = adapted_names(model, workload.lora)
        job = replace(job, batch=replace(job.batch, frozen=True, fed=fed))
    gatherable = model.parameters
    experts: Experts = None
    if adapts_experts(model, workload.lora):
        experts = "merged"
    elif job.settings.stage == 3 and not checkpointing:
        # Experts are multiplied as views, which keep the storage alive when stage 3 releases the parameter.
        experts = "viewed"
        gatherable -= sum(stack.num_layers * stack.expert_numel for stack in model.stacks)
    saved = saved_activations(model, job.batch, checkpointing=checkpointing, experts=experts)
    return _Passes(job, saved, gatherable)


def _peaks(passes: _Passes, optimizer: OptimizerMemory) -> dict[str, Peaks]:
    forward, back = _forward_and_backward(passes, optimizer.ready, first=True)
    second = _forward_and_backward(passes, optimizer.trained, first=False)
    return {
        "load": optimizer.load,
        "initialize": (*optimizer.initialize, optimizer.ready),
        "forward": forward,
        "backward": back,
        "step": (*optimizer.first_step, optimizer.trained),
        "second step": (*second[0], *second[1], *optimizer.later_step, optimizer.trained),
    }


def _with_cublas(peaks: Mapping[str, Peaks], workload: Workload) -> Iterator[tuple[str, Peaks]]:
    """Add what the handles of the forward pass and of autograd's thread take from then on."""
    for name, during in peaks.items():
        held = workload.cublas_bytes * _HANDLES[name]
        if held and workload.accelerator == "cuda":
            yield name, [add(peak, {"workspace": held}) for peak in during]
        else:
            yield name, during


def _forward_and_backward(passes: _Passes, optimizer: Breakdown, *, first: bool) -> tuple[Peaks, Peaks]:
    """Compute the peaks of both passes in the last micro-step of a step."""
    job, saved, model = passes.job, passes.saved, passes.job.model
    gradients = _gradients_before(job, first=first)
    base = add(optimizer, _earlier_gradients(job, gradients))
    at_end: Breakdown = {}
    if not first:
        at_end = _gathered(job, _reused(passes, model.parameters))
    end = add(base, at_end, {"activations": saved.activations, "logits": saved.head.saved})
    forward = [
        add(base, {"activations": saved.activations}, at_end or _gathered(job, _output(model))),
        add(end, {"logits": saved.head.forward}),
        end,
    ]
    walked = list(backward(model, passes.job.batch, saved, gradients))
    if first:
        # Gathered: nothing for the loss, the output matrix, then each layer with prefetched parameters.
        layer = max(stack.layer_numel for stack in model.stacks) + job.settings.prefetch
        in_use = [0, _output(model), *(min(layer, ahead) for ahead, _ in walked[2:-3])]
        in_use += [ahead for ahead, _ in walked[-3:]]
    else:
        in_use = [_reused(passes, ahead) for ahead, _ in walked]
    back = [add(base, _gathered(job, n), peak) for n, (_, peak) in zip(in_use, walked, strict=True)]
    return forward, [*back, add(base, {"gradients": gradients.kept})]


def _reused(passes: _Passes, ahead: int) -> int:
    """Return the elements of the `ahead` elements still to be used that stage 3 keeps gathered.

    Once it knows the order, it keeps parameters that are used again within `stage3_max_reuse_distance`,
    and a whole embedding that starts within it (zero/partitioned_param_coordinator.py).
    """
    job, output = passes.job, _output(passes.job.model)
    distance = job.settings.reuse_distance
    if ahead == job.model.parameters:  # the output matrix comes next and is kept at any size
        distance = max(distance, output)
    kept = distance
    if ahead - output < distance:
        kept = ahead
    return min(passes.gatherable, kept)


def _gathered(job: TrainingJob, numel: int) -> Breakdown:
    """Count what a layer gathers, on a lone rank too.

    A lone rank uses its own parameters, so that its jobs with LoRA are 10 % too high. Without this term, a
    plan rehearses more jobs that do not fit, since others of the closed form's terms are too low.
    """
    if job.settings.stage != 3:
        return {}
    return {"gathered parameters": job.settings.item * numel}


def _output(model: Transformer) -> int:
    """Return the elements of the output matrix, which is as large as the embedding."""
    return model.hidden * model.vocab


def _gradients_before(job: TrainingJob, *, first: bool) -> Gradients:
    settings = job.settings
    gradients = Gradients(settings, job.weights)
    is_accumulated = settings.accumulation > 1 and gradients.waits
    gradients.is_allocated = is_accumulated or (settings.widens_all and not first)
    return gradients


def _earlier_gradients(job: TrainingJob, gradients: Gradients) -> Breakdown:
    settings = job.settings
    if settings.accumulation == 1 or settings.stage == 3 or settings.widens_all:
        return {}
    if gradients.waits:
        return {"gradients": settings.item * job.weights.total}
    if settings.optimizer_on == "gpu":
        return {"gradients": gradients.owned_bytes}
    return {"gradients": 0}


def _summed_phase(
    name: str, during: Peaks, cache: float, on_host: tuple[Mapping[str, int], Mapping[str, int]]
) -> Phase:
    highest = max(during, key=_total)
    peak, end = _total(highest), _total(during[-1])
    reserved = int((1 + cache) * peak)
    return Phase(
        name,
        peak={"gpu": peak, "reserved": reserved, **on_host[0]},
        end={"gpu": end, "reserved": reserved, **on_host[1]},
        parts={"gpu": _without_empty(highest)},
    )


def _without_empty(held: Breakdown) -> dict[str, int]:
    return {name: nbytes for name, nbytes in held.items() if nbytes}


def _total(parts: Breakdown) -> int:
    return sum(parts.values())
