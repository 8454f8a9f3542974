"""Estimates of jobs: memory, fit and speed, by rehearsal or in closed form."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import field, replace
from itertools import starmap
from pathlib import Path

from zlaunch.config.resolve.job import ResolvedConfig
from zlaunch.dsconfig.text.document import Document, located
from zlaunch.errors import Finding, Refused, Severity, Unavailable
from zlaunch.estimate.calibration import calibrated, kept_records
from zlaunch.estimate.fit import Cluster
from zlaunch.estimate.forecast import HOST_POOLS, Forecast
from zlaunch.estimate.forecast_cache import ForecastCache
from zlaunch.estimate.memory.activations import counted_too_much
from zlaunch.estimate.memory.host_memory import shared
from zlaunch.estimate.memory.settings import read_job
from zlaunch.estimate.query import (
    Estimate,
    EstimateQuery,
    Rejected,
    check_countable,
    remarks_on,
    workload_of,
)
from zlaunch.estimate.rehearse import Done, Rehearsed, Rehearser, by_formula
from zlaunch.estimate.speed.step_time import DeviceSpeed, Speed, step_speed
from zlaunch.estimate.workload import MOST_ACCUMULATED, Workload
from zlaunch.files import cache_directory
from zlaunch.frozen import dataclass

_COUNT, _AHEAD = (
    "zero_optimization.offload_param.buffer_count",
    "zero_optimization.stage3_prefetch_bucket_size",
)
_ABOUT = (
    (r"Not enough buffers", _COUNT, f"set more buffers, or leave `{_COUNT}` out to let zlaunch compute it"),
    (
        r"already assigned swap buffer",
        _AHEAD,
        f"`--set {_AHEAD}=0`: DeepSpeed used a prefetched parameter twice",
    ),
    (
        r"dim\(\) cannot be 0 to view",
        "",
        (
            "the model has a parameter without dimensions, such as CLIP's `logit_scale`; install DeepSpeed "
            "0.19.7, which broadcasts it: `pip install deepspeed==0.19.7`"
        ),
    ),
    (
        r"during load under zero\.Init\)$",
        "zero_optimization.stage",
        "use `--stage 2`, which does not build the model inside `zero.Init`",
    ),
    (r"swap_tensor/partitioned_param_swapper", "zero_optimization.offload_param", None),
    (r"swap_tensor/", "zero_optimization.offload_optimizer", None),
    (r"batch related parameters", "train_batch_size", None),
    (r"runtime/zero/", "zero_optimization", None),
    (r"\(peft/.* during load\)$", "", "name modules of the model: `--lora RANK:q_proj,v_proj`"),
    (
        r"\(transformers/.* during load\)$",
        "",
        "fix the model's config.json: transformers cannot build the model",
    ),
)
"""Error or location of the error in DeepSpeed → the ds_config key it is about, and a hint if there is one."""


Rehearse = Callable[[Sequence[Workload], Done], list[Rehearsed]]
"""Rehearses workloads and reports progress, as a `Rehearser` does."""


@dataclass(frozen=True, slots=True)
class RehearsalProgress:
    """The progress of a batch of rehearsals."""

    jobs: int
    done: int
    """Rehearsals that have ended; of a single job, two ranks may be rehearsed."""
    total: int
    known: Mapping[int, Estimate | Rejected] = field(default_factory=dict)
    """Of several jobs, the estimates so far, by the places of their queries."""


class Estimator(AbstractContextManager["Estimator"]):
    """Estimates jobs by rehearsal or in closed form.

    All rehearsals share one program, which starts with the first and ends when the context exits.
    """

    def __init__(
        self,
        on_progress: Callable[[RehearsalProgress], None] = lambda _: None,
        rehearse: Rehearse | None = None,
        python: Path | None = None,
    ) -> None:
        """Start nothing yet; `rehearse` stands in for the usual rehearser and its cache.

        `python` is the interpreter whose packages are rehearsed; None for the one that runs zlaunch.
        """
        self._on_progress = on_progress
        cache = ForecastCache(cache_directory(os.environ), python)
        self._rehearser = Rehearser(cache, python=python)
        self._rehearse = rehearse or self._rehearser

    def __exit__(self, *_: object) -> None:
        self._rehearser.close()

    def start(self) -> None:
        """Start the program of the rehearsals already; it is ended with the context."""
        self._rehearser.start()

    def expect(self, queries: Sequence[EstimateQuery]) -> None:
        """Rehearse jobs that will be asked for together as soon as the next question leaves a core."""
        resolved = [(query, _resolved(query)) for query in queries]
        jobs = [(query, found) for query, found in resolved if not isinstance(found, Rejected)]
        workloads = [_alone(query, workload_of(query, found)) for query, found in jobs]
        self._rehearser.expect([_shortened(workload) for workload in workloads])

    def closed_form(self, queries: Sequence[EstimateQuery]) -> list[Estimate | Rejected]:
        """Estimate jobs in closed form: at once, with a known error."""
        return _estimates(queries, lambda workloads, _: [by_formula(workload) for workload in workloads])

    def rehearse(
        self, queries: Sequence[EstimateQuery], *, resumes: bool = True
    ) -> list[Estimate | Rejected]:
        """Estimate jobs by rehearsals, and reject what DeepSpeed refuses; a single job on two ranks.

        `resumes` tells whether resuming from the checkpoint of a single job is rehearsed, too.
        """

        def forecasts(workloads: Sequence[Workload], estimated: _Estimated) -> list[Rehearsed]:
            short = [_shortened(workload) for workload in workloads]
            whole: dict[int, Rehearsed] = {}

            def complete(done: Mapping[int, Rehearsed]) -> None:
                for place in done.keys() - whole.keys():
                    whole[place] = _of_whole_step(done[place], workloads[place], short[place])

            def report(done: Mapping[int, Rehearsed], total: int) -> None:
                if len(workloads) > 1:  # of a single job, two ranks may be rehearsed
                    complete(done)
                known = dict(starmap(estimated, whole.items()))
                self._on_progress(RehearsalProgress(len(queries), len(done), total, known))

            rehearsed = dict(enumerate(_by_ranks(short, lambda batch: self._rehearse(batch, report))))
            report(rehearsed, len(rehearsed))
            complete(rehearsed)
            return [whole[place] for place in range(len(workloads))]

        return _estimates(queries, forecasts, resumes=resumes)

    def revise(self, estimate: Estimate, forecast: Forecast) -> Estimate:
        """Estimate the same job from another forecast."""
        speed = estimate.speed
        before, after = ((one.flops, one.trainable) for one in (estimate.forecast, forecast))
        if before != after:  # nothing else of a forecast decides the speed
            speed = speed_of(estimate.workload, estimate.query.cluster, forecast)
            if speed is not None and estimate.speed is not None:
                roofline = speed.roofline.corrected(estimate.speed.roofline.correction)
                speed = replace(speed, roofline=roofline)
        return replace(estimate, forecast=forecast, speed=speed)


_Estimated = Callable[[int, Rehearsed], tuple[int, Estimate | Rejected]]
"""Makes an estimate of the forecast of a workload, by its place; returns that of its query, too."""


def _estimates(
    queries: Sequence[EstimateQuery],
    forecasts: Callable[[Sequence[Workload], _Estimated], Sequence[Rehearsed]],
    *,
    resumes: bool = True,
) -> list[Estimate | Rejected]:
    results: dict[int, Estimate | Rejected] = {}
    jobs: dict[int, tuple[EstimateQuery, ResolvedConfig, Workload]] = {}
    for number, query in enumerate(queries):
        resolved = _resolved(query)
        if isinstance(resolved, Rejected):
            results[number] = resolved
        else:
            jobs[number] = (query, resolved, workload_of(query, resolved))
    if len(jobs) > 1 or not resumes:  # resuming decides nothing then, unless these jobs do resume
        for number, (query, resolved, workload) in jobs.items():
            jobs[number] = (query, resolved, _alone(query, workload))

    numbers, records = [*jobs], kept_records()
    made: dict[int, Estimate | Rejected] = {}

    def estimated(place: int, forecast: Rehearsed) -> tuple[int, Estimate | Rejected]:
        number = numbers[place]
        if number in made:  # which was shown while others were rehearsed
            return number, made[number]
        estimate = _estimate(*jobs[number], forecast)
        if isinstance(estimate, Estimate):
            estimate = calibrated(estimate, records)
        made[number] = estimate
        return number, estimate

    if jobs:
        rehearsed = forecasts([workload for *_, workload in jobs.values()], estimated)
        results |= dict(starmap(estimated, enumerate(rehearsed)))
    return [results[number] for number in range(len(queries))]


def _alone(query: EstimateQuery, workload: Workload) -> Workload:
    """Resume from the checkpoint of a job only if that is what the job does."""
    return replace(workload, resume=query.training.resumes)


def _resolved(query: EstimateQuery) -> ResolvedConfig | Rejected:
    try:
        resolved = query.resolve()
        check_countable(query, resolved)
    except (Refused, Unavailable) as error:
        return Rejected(error)
    return resolved


def _estimate(
    query: EstimateQuery, resolved: ResolvedConfig, workload: Workload, rehearsed: Rehearsed
) -> Estimate | Rejected:
    if not isinstance(rehearsed, Forecast):
        return Rejected(rehearsed)
    forecast = rehearsed.with_pool("shm", shared(workload))
    remarks = tuple(remarks_on(forecast, query))
    if query.training.resumes:
        forecast = forecast.resumed()
    if forecast.late_error is not None:
        return Rejected(Refused([_deepspeed_gives_up(forecast.late_error, query.given.base)]))
    speed = speed_of(workload, query.cluster, forecast)
    return Estimate(query, resolved, workload, forecast, speed, remarks)


def _of_whole_step(forecast: Rehearsed, workload: Workload, rehearsed: Workload) -> Rehearsed:
    """Scale the operations of the rehearsed micro-batches to all of a step."""
    if not isinstance(forecast, Forecast):
        return forecast
    once = forecast.flops / _accumulated(rehearsed)
    if forecast.method == "rehearsal":
        with suppress(Refused):
            job = read_job(workload)
            once -= counted_too_much(job.model, job.batch, recomputed=workload.activation_checkpointing)
    return replace(forecast, flops=_accumulated(workload) * once)


def _by_ranks(
    workloads: Sequence[Workload], rehearse: Callable[[Sequence[Workload]], list[Rehearsed]]
) -> list[Rehearsed]:
    """Rehearse the first rank of each job; of a single job the last rank too, and take the fuller one.

    Where parameters straddle rank boundaries, some ranks hold more than others. What DeepSpeed refuses on
    one rank ends the job. A rehearsal that broke on one rank does not invalidate the other.
    """
    if len(workloads) != 1 or workloads[0].world_size == 1:
        return rehearse(workloads)
    # The first rank saves.
    last = replace(workloads[0], rank=workloads[0].world_size - 1, save=False, resume=False)
    first, other = rehearse([workloads[0], last])
    if not isinstance(first, Forecast) or not isinstance(other, Forecast) or other.method != first.method:
        return [first]
    if first.late_error is None and other.late_error is not None:
        return [other]
    if first.late_error is not None or _bytes_of_tensors(other) <= _bytes_of_tensors(first):
        return [first]
    phases = (*other.phases, *first.phases[len(other.phases) :])
    return [replace(other, phases=phases, resume=first.resume, kept=first.kept)]


def _bytes_of_tensors(forecast: Forecast) -> int:
    return forecast.peak("gpu") or sum(forecast.peak(pool) for pool in HOST_POOLS)


def _shortened(workload: Workload) -> Workload:
    """Rehearse no more micro-batches of a step than needed."""
    if _accumulated(workload) <= MOST_ACCUMULATED:
        return workload
    micro = int(workload.ds_config["train_micro_batch_size_per_gpu"])
    batch = {"gradient_accumulation_steps": MOST_ACCUMULATED}
    if "train_batch_size" in workload.ds_config:
        batch["train_batch_size"] = micro * MOST_ACCUMULATED * workload.world_size
    return replace(workload, ds_config={**workload.ds_config, **batch})


def _accumulated(workload: Workload) -> int:
    return int(workload.ds_config.get("gradient_accumulation_steps", 1))


def _deepspeed_gives_up(words: str, base: Document | None) -> Finding:
    """Report what DeepSpeed raised, at its key in the user's file if it is there."""
    causes = ((key, hint) for pattern, key, hint in _ABOUT if re.search(pattern, words))
    key, hint = next(causes, ("", None))
    package = next((name for name in ("transformers", "peft") if f"({name}/" in words), "DeepSpeed")
    message = f"{package} fails: {words}"
    finding = Finding("deepspeed-gives-up", message, hint, where=key, severity=Severity.FAILS_LATER)
    return located(finding, base)


def speed_of(workload: Workload, cluster: Cluster, forecast: Forecast) -> Speed | None:
    """Work out the speed; None for a GPU without a data sheet, or a model of unknown sizes."""
    gpu = cluster.gpu
    if gpu is None or not gpu.half_flops:
        return None
    with suppress(Refused):
        machine = DeviceSpeed(gpu, cluster.network, cluster.measured)
        return step_speed(workload, machine, forecast.flops, forecast.collectives, trained=forecast.trainable)
    return None
