"""Questions → answers: what each job takes, whether it fits, and how long a step of it takes."""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from zlaunch.config.resolve.resolve import ResolvedConfig
from zlaunch.dsconfig.text.document import Document
from zlaunch.errors import Finding, Refused, Severity, Unavailable
from zlaunch.estimate.fit import Cluster, check_fit, memory_need
from zlaunch.estimate.forecast import HOST_POOLS, Forecast
from zlaunch.estimate.forecast_cache import ForecastCache, cache_directory
from zlaunch.estimate.memory.activations import counted_too_much
from zlaunch.estimate.memory.communication import communication
from zlaunch.estimate.memory.host_memory import shared
from zlaunch.estimate.memory.roofline import DeviceSpeed, batch_of, roofline
from zlaunch.estimate.query import (
    Estimate,
    EstimateQuery,
    Rejected,
    Speed,
    check_countable,
    rejected,
    remarks_on,
    workload_of,
)
from zlaunch.estimate.rehearse import Done, Found, Rehearser, by_formula
from zlaunch.estimate.workload import Workload
from zlaunch.job.transformer import read_transformer

MOST_ACCUMULATED = 2

_COUNT, _AHEAD = (
    "zero_optimization.offload_param.buffer_count",
    "zero_optimization.stage3_prefetch_bucket_size",
)
_ABOUT = (
    (r"Not enough buffers", _COUNT, f"give more buffers, or leave `{_COUNT}` out: it is worked out then"),
    (
        r"already assigned swap buffer",
        _AHEAD,
        f"`--set {_AHEAD}=0`: what DeepSpeed reads ahead of its use it asked for twice",
    ),
    (r"swap_tensor/partitioned_param_swapper", "zero_optimization.offload_param", None),
    (r"swap_tensor/", "zero_optimization.offload_optimizer", None),
    (r"batch related parameters", "train_batch_size", None),
    (r"runtime/zero/", "zero_optimization", None),
    (r"\(peft/.* during load\)$", "", "name modules that the model has: `--lora RANK:q_proj,v_proj`"),
    (r"\(transformers/.* during load\)$", "", "mend the model's config.json: nobody can build it"),
)
"""What DeepSpeed says, or where it says it; the key it is about; what to do, if that is known."""

Forecaster = Callable[[Sequence[Workload]], Sequence[Found]]


class Rehearse(Protocol):
    """What rehearses workloads, telling how many are done: a `Rehearser`."""

    def __call__(self, workloads: Sequence[Workload], done: Done | None = None, /) -> list[Found]:
        """Return the forecasts of workloads in the same order."""


def rehearser() -> Rehearser:
    """Make what rehearses jobs, and remembers those that were rehearsed before; to be closed."""
    return Rehearser(ForecastCache(cache_directory(os.environ)))


def estimate_by_rehearsal(
    questions: Sequence[EstimateQuery],
    site: Cluster,
    done: Done | None = None,
    rehearse: Rehearse | None = None,
) -> list[Estimate | Rejected]:
    """Rehearse all jobs, DeepSpeed's own refusals included; `done` is told how far it is.

    Give `rehearse` to ask again without starting another program.
    """
    if rehearse is not None:
        return _answers(questions, site, lambda workloads: _rehearsed(workloads, rehearse, done))
    with rehearser() as once:
        return estimate_by_rehearsal(questions, site, done, once)


def estimate_closed_form(questions: Sequence[EstimateQuery], site: Cluster) -> list[Estimate | Rejected]:
    """Answer by the closed form, at once, and with its error."""
    return _answers(questions, site, lambda workloads: [by_formula(one) for one in workloads])


@dataclass(frozen=True)
class Appraiser:
    """Answers questions about a site in all ways that a search needs."""

    site: Cluster
    rehearser: Rehearse
    done: Done | None = None

    def estimate(self, questions: Sequence[EstimateQuery]) -> list[Estimate | Rejected]:
        """Answer by the closed form."""
        return estimate_closed_form(questions, self.site)

    def rehearse(self, questions: Sequence[EstimateQuery]) -> list[Estimate | Rejected]:
        """Answer by rehearsals."""
        return estimate_by_rehearsal(questions, self.site, self.done, self.rehearser)

    def revise(self, answer: Estimate, forecast: Forecast) -> Estimate:
        """Answer the same question with another forecast."""
        verdict, need, speed = check_fit(forecast, self.site), memory_need(forecast, self.site), answer.speed
        if forecast.flops != answer.forecast.flops:  # nothing else of a forecast decides how fast it is
            speed = _speed(answer.workload, forecast, self.site)
        return replace(answer, forecast=forecast, need=need, verdict=verdict, speed=speed)


def _answers(questions: Sequence[EstimateQuery], site: Cluster, ask: Forecaster) -> list[Estimate | Rejected]:
    settled = [_settled(question) for question in questions]
    asked = [
        (question, one, workload_of(question, one))
        for question, one in zip(questions, settled, strict=True)
        if isinstance(one, ResolvedConfig)
    ]
    if len(asked) > 1:  # what resuming takes decides nothing then, unless these jobs do resume
        asked = [(q, one, replace(workload, resume=q.training.resumes)) for q, one, workload in asked]
    forecasts = iter(ask([workload for *_, workload in asked]) if asked else [])
    answers = iter(
        _answer(question, one, workload, next(forecasts), site) for question, one, workload in asked
    )
    return [one if isinstance(one, Rejected) else next(answers) for one in settled]


def _rehearsed(workloads: Sequence[Workload], rehearse: Rehearse, done: Done | None) -> list[Found]:
    """Rehearse two micro-batches of a step: from the second on, each takes what the one before it took."""
    short = [_shortened(one) if _accumulated(one) > MOST_ACCUMULATED else one for one in workloads]
    forecasts = _by_ranks(short, rehearse, done)
    return [
        _with_flops(forecast, whole, _accumulated(one)) if isinstance(forecast, Forecast) else forecast
        for forecast, whole, one in zip(forecasts, workloads, short, strict=True)
    ]


def _with_flops(forecast: Forecast, workload: Workload, counted: int) -> Forecast:
    """Count the operations of all micro-batches, from those that were looked at."""
    once = forecast.flops / counted
    if forecast.method == "rehearsal":
        with suppress(Refused):
            model, batch = read_transformer(workload.model), batch_of(workload)
            once -= counted_too_much(model, batch, recomputed=workload.activation_checkpointing)
    return replace(forecast, flops=_accumulated(workload) * once)


def _by_ranks(workloads: Sequence[Workload], rehearse: Rehearse, done: Done | None) -> list[Found]:
    """Rehearse the first rank of many jobs; of a single one the last too, and the fuller one counts.

    Where parameters straddle the bounds of ranks, some ranks hold more than others. What DeepSpeed refuses on
    one rank ends the job. A rehearsal that failed for one rank only says nothing against the other.
    """
    if len(workloads) != 1 or workloads[0].world_size == 1:
        return rehearse(workloads, done)
    last = replace(workloads[0], rank=workloads[0].world_size - 1, save=False)  # the first rank saves
    first, other = rehearse([workloads[0], last], done)
    if not isinstance(first, Forecast) or not isinstance(other, Forecast) or other.method != first.method:
        return [first]
    if first.late_error is None and other.late_error is not None:
        return [other]
    if first.late_error is not None or _tensors(other) <= _tensors(first):
        return [first]
    return [replace(other, phases=(*other.phases, *first.phases[len(other.phases) :]), resume=first.resume)]


def _tensors(forecast: Forecast) -> int:
    """Add up what a rank holds at most on its GPU, or without one in its host's memory."""
    return forecast.peak("gpu") or sum(forecast.peak(pool) for pool in HOST_POOLS)


def _shortened(workload: Workload) -> Workload:
    micro = int(workload.ds_config["train_micro_batch_size_per_gpu"])
    batch = {
        "gradient_accumulation_steps": MOST_ACCUMULATED,
        "train_batch_size": micro * MOST_ACCUMULATED * workload.world_size,
    }
    return replace(workload, ds_config={**workload.ds_config, **batch})


def _accumulated(workload: Workload) -> int:
    return int(workload.ds_config.get("gradient_accumulation_steps", 1))


def _settled(question: EstimateQuery) -> ResolvedConfig | Rejected:
    try:
        settled = question.settled()
        check_countable(question, settled)
    except (Refused, Unavailable) as error:
        return rejected(question, error)
    return settled


def _answer(
    question: EstimateQuery, settled: ResolvedConfig, workload: Workload, found: Found, site: Cluster
) -> Estimate | Rejected:
    if not isinstance(found, Forecast):
        return rejected(question, found)
    forecast = found.with_pool("shm", shared(workload))
    remarks = tuple(remarks_on(forecast, site))
    if question.training.resumes:
        forecast = forecast.resumed()
    if forecast.late_error is not None:
        return Rejected(question, (_given_up(forecast.late_error, question.given.base),))
    return Estimate(
        question,
        settled,
        workload,
        forecast,
        memory_need(forecast, site),
        check_fit(forecast, site),
        _speed(workload, forecast, site),
        remarks,
    )


def _given_up(words: str, base: Document | None) -> Finding:
    """Tell what DeepSpeed raised, at the key that it is about if that stands in the user's file."""
    about = ((key, hint) for pattern, key, hint in _ABOUT if re.search(pattern, words))
    key, hint = next(about, ("", None))
    who = next((name for name in ("transformers", "peft") if f"({name}/" in words), "DeepSpeed")
    message = f"{who} gives up: {words}"
    finding = Finding("deepspeed-gives-up", message, hint, where=key, severity=Severity.LATE)
    return base.locate(finding) if base is not None and key and base.has(key) else finding


def _speed(workload: Workload, forecast: Forecast, site: Cluster) -> Speed | None:
    """Look the speed up; None for a GPU that no data sheet is known of, or a model of unknown sizes."""
    if site.gpu is None or not site.gpu.half_flops:
        return None
    try:
        return Speed(communication(workload), roofline(workload, DeviceSpeed(site.gpu), forecast.flops))
    except Refused:
        return None
