"""A forecast from config.json and ds_config alone: arithmetic, in milliseconds, for any world size.

It answers where a run cannot be rehearsed, and it orders the configurations that a plan rehearses. Its
error was measured on many architectures (docs/closed-form.md); the error it claims is larger than that.
It leaves out dropout's random states, ZeRO++, MiCS, tensor and sequence parallelism, and has only a rule
of thumb for fragmentation.
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
    OptimizerMemory,
    Parts,
    Sizes,
    add_by_name,
    gradients_kept,
    optimizer_memory,
)
from zlaunch.estimate.memory.settings import Settings, read_settings
from zlaunch.estimate.workload import Workload
from zlaunch.job.transformer import Transformer, read_transformer

KNOWN_ERROR: Final = 0.15
"""How far the peak may be off for a model type that is known: half as much again as the worst measured."""
UNKNOWN_ERROR: Final = 1.5
"""The same for any other type, whose parameters may be miscounted, and its activations unlike."""
RESERVED: Final = 1.25
"""A rule of thumb: what the caching allocator holds, for what tensors hold at the peak. Over a hundred
rehearsals it is 2 % too low in the mean, 12 % off in either way, and a third too low at the worst; on
a GPU that is nearly full the allocator gives back what it can, and comes out with less."""
_LOADED_BYTES: Final = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class _Job:
    """Everything that the phases are worked out from."""

    model: Transformer
    settings: Settings
    batch: Batch
    weights: Trained
    sizes: Sizes
    resident: OptimizerMemory
    left: SavedActivations
    gatherable: int
    """Elements that stage 3 may keep gathered, without experts that are kept as what autograd saved."""


Moments = Sequence[Parts]


def forecast(workload: Workload) -> Forecast:
    """Work out what a rank of a job keeps in memory; raise Refused if config.json gives no sizes.

    All sizes in bytes. Nothing is said about saving and resuming.
    """
    job = _job(workload)
    moments = _moments(job)
    on_host = host_memory(job.settings, job.weights, job.model, _LOADED_BYTES[workload.load_dtype])
    phases = tuple(
        _phase(name, [_total(parts) for parts in during], on_host.phases[name])
        for name, during in moments.items()
    )
    fullest = max((parts for during in moments.values() for parts in during), key=_total)
    known = job.model.known
    return Forecast(
        method="closed form",
        phases=phases,
        parts={"gpu": {name: nbytes for name, nbytes in fullest.items() if nbytes}, **on_host.parts},
        parameters=job.model.parameters,
        trainable=job.weights.total,
        optimizer=job.resident.optimizer,
        error=KNOWN_ERROR if known else UNKNOWN_ERROR,
        flops=_flops(job, workload),
        notes=() if known else ("the model's type is unknown: it was taken for the known one most like it",),
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
    # Experts are multiplied as views. Where stage 3 takes its parameter back, the view holds the memory.
    viewed = settings.stage == 3 and not workload.activation_checkpointing
    held: Experts = "merged" if adapts_experts(model, lora) else "viewed" if viewed else None
    left = saved_activations(model, batch, checkpointing=workload.activation_checkpointing, experts=held)
    experts = sum(stack.num_layers * stack.expert_numel for stack in model.stacks) if held == "viewed" else 0
    return _Job(
        model,
        settings,
        batch,
        weights,
        sizes,
        optimizer_memory(settings, sizes),
        left,
        model.parameters - experts,
    )


def _moments(job: _Job) -> dict[str, Moments]:
    """Say what is on the GPU at the moments of each phase that matter; the last is its end."""
    resident = job.resident
    first, second = _pass(job, resident.ready, first=True), _pass(job, resident.trained, first=False)
    forward, back = first
    return {
        "load": resident.load,
        "initialize": (*resident.initialize, resident.ready),
        "forward": forward,
        "backward": back,
        "step": (*resident.first_step, resident.trained),
        "second step": (*second[0], *second[1], *resident.later_step, resident.trained),
    }


def _pass(job: _Job, resident: Parts, *, first: bool) -> tuple[Moments, Moments]:
    """Say what is there in a forward and a backward pass, the last of a step's micro-steps."""
    left, model = job.left, job.model
    gradients = _gradients(job, first=first)
    base = add_by_name(resident, _carried(job, gradients))
    at_end = {} if first else _gathered(job, _reused(job, model.parameters))
    saved = add_by_name(base, at_end, {"activations": left.activations, "logits": left.head.saved})
    forward = [
        add_by_name(base, {"activations": left.activations}, at_end or _gathered(job, _output(model))),
        add_by_name(saved, {"logits": left.head.forward}),
        saved,
    ]
    walked = list(backward(model, job.batch, left, gradients, job.weights))
    if first:
        # The loss needs nothing, the output its matrix, a layer itself and what is fetched ahead.
        layer = max(stack.layer_numel for stack in model.stacks) + job.settings.prefetch
        in_use = [0, _output(model), *(min(layer, ahead) for ahead, _ in walked[2:-3])]
        in_use += [ahead for ahead, _ in walked[-3:]]
    else:
        in_use = [_reused(job, ahead) for ahead, _ in walked]
    back = [add_by_name(base, _gathered(job, n), parts) for n, (_, parts) in zip(in_use, walked, strict=True)]
    return forward, [*back, add_by_name(base, {"gradients": gradients.held})]


def _reused(job: _Job, ahead: int) -> int:
    """Say how much of what is still to be used stage 3 keeps, once it knows the order.

    What is used again within `stage3_max_reuse_distance`, and the whole embedding if that begins there
    (zero/partitioned_param_coordinator.py).
    """
    distance, output = job.settings.reuse_distance, _output(job.model)
    if ahead == job.model.parameters:  # the output matrix comes first, however large
        distance = max(distance, output)
    return min(job.gatherable, ahead if ahead - output < distance else distance)


def _gathered(job: _Job, numel: int) -> Parts:
    return {"gathered parameters": job.settings.item * numel} if job.settings.stage == 3 else {}


def _output(model: Transformer) -> int:
    """Elements of the embedding, and of the matrix that makes the logits."""
    return model.hidden * model.vocab


def _gradients(job: _Job, *, first: bool) -> Gradients:
    """Begin a backward pass, the last of a step's micro-steps."""
    settings, kept_bytes = job.settings, gradients_kept(job.settings, job.sizes)
    gradients = Gradients(settings, job.weights.total, kept_bytes)
    added_to = settings.accumulation > 1 and gradients.waits
    return replace(gradients, kept=added_to or (settings.widens_all and not first))


def _carried(job: _Job, gradients: Gradients) -> Parts:
    """Say which gradients of earlier micro-steps are there while the last one runs."""
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


def _total(parts: Parts) -> int:
    return sum(parts.values())


def _flops(job: _Job, workload: Workload) -> float:
    once = activations.step_flops(
        job.model,
        job.batch,
        recomputed=workload.activation_checkpointing,
        trainable=job.weights.total if workload.lora else None,
    )
    return once * job.settings.accumulation
