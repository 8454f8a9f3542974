"""Workloads → forecasts: starts the rehearsal, and falls back on the closed form where it breaks."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from zlaunch.errors import Finding, Refused, Unavailable, ZlaunchError
from zlaunch.memory.forecast import Forecast
from zlaunch.memory.workload import Workload
from zlaunch.process import answers_of

ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "DS_LOG_LEVEL": "error",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""The rehearsal looks for no accelerator, downloads nothing and says nothing."""

_CANNOT_TELL = "cannot tell how much memory this model takes"
_TRY_IT = "start it with few layers, and see what `zlaunch runs show` measures"


def rehearse(
    workloads: Sequence[Workload], done: Callable[[int], None] | None = None, jobs: int = 2
) -> list[Forecast]:
    """Rehearse workloads as `rehearsed` does; raise the first error."""
    forecasts: list[Forecast] = []
    for found in rehearsed(workloads, done, jobs):
        if isinstance(found, ZlaunchError):
            raise found
        forecasts.append(found)
    return forecasts


def rehearsed(
    workloads: Sequence[Workload], done: Callable[[int], None] | None = None, jobs: int = 2
) -> list[Forecast | ZlaunchError]:
    """Rehearse workloads, `jobs` at a time, and return their forecasts in the same order.

    `done` is told the number of those that are finished. In place of a forecast there is Refused for a
    model that transformers refuses, and Unavailable for one of which nothing can be told.
    """
    # A model's config may have Infinity, of which `dump_json` would make null.
    question = json.dumps(TypeAdapter(list[Workload]).dump_python(list(workloads)))
    argv = [sys.executable, "-m", "zlaunch.rehearsal", str(jobs)]
    answers: dict[int, Any] = {}
    for line in answers_of(argv, question, {**os.environ, **ENVIRONMENT}):
        answer = json.loads(line)
        answers[answer["index"]] = answer
        if done is not None:
            done(len(answers))
    return [_forecast(workload, answers.get(index, {})) for index, workload in enumerate(workloads)]


def _forecast(workload: Workload, answer: dict[str, Any]) -> Forecast | ZlaunchError:
    if "forecast" in answer:
        forecast: Forecast = TypeAdapter(Forecast).validate_python(answer["forecast"])
        return forecast
    if "unknown" in answer:
        return Refused([Finding("unknown-model", answer["unknown"], "mend the model's config.json")])
    if "untold" in answer:
        return Unavailable(f"{_CANNOT_TELL}: {answer['untold']}", _TRY_IT)
    why = answer.get("broken", "the rehearsal could not start")
    found = by_formula(workload)
    if isinstance(found, ZlaunchError):
        return Unavailable(f"{found.message}; no rehearsal: {why}", found.hint)
    return replace(found, why_not_rehearsed=why)


def by_formula(workload: Workload) -> Forecast | ZlaunchError:
    """Work a forecast out; in its place there is Unavailable for what is no language model."""
    from zlaunch.memory import closed_form

    try:
        return closed_form.forecast(workload)
    except Refused as error:
        return Unavailable(f"{_CANNOT_TELL}: {error.findings[0].message}", _TRY_IT)
