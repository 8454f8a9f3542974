"""Workloads → forecasts: starts the rehearsal, and falls back on the closed form where it breaks."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from zlaunch.errors import Finding, Refused, Unavailable
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

_TRY_IT = "start it with few layers, and see what `zlaunch runs show` measures"


def rehearse(
    workloads: Sequence[Workload], done: Callable[[int], None] | None = None, jobs: int = 2
) -> list[Forecast]:
    """Rehearse workloads, `jobs` at a time, and return their forecasts in the same order.

    `done` is told the number of those that are finished. Raises Refused for a model that
    transformers refuses, and Unavailable for one of which nothing can be told.
    """
    question = json.dumps(
        TypeAdapter(list[Workload]).dump_python(list(workloads))
    )  # `dump_json` drops Infinity
    argv = [sys.executable, "-m", "zlaunch.rehearsal", str(jobs)]
    answers: dict[int, Any] = {}
    for line in answers_of(argv, question, {**os.environ, **ENVIRONMENT}):
        answer = json.loads(line)
        answers[answer["index"]] = answer
        if done is not None:
            done(len(answers))
    return [_forecast(workload, answers.get(index, {})) for index, workload in enumerate(workloads)]


def _forecast(workload: Workload, answer: dict[str, Any]) -> Forecast:
    if "forecast" in answer:
        forecast: Forecast = TypeAdapter(Forecast).validate_python(answer["forecast"])
        return forecast
    if "unknown" in answer:
        raise Refused([Finding("unknown-model", answer["unknown"], "mend the model's config.json")])
    why = answer.get("untold")
    if why is None:
        return _by_formula(workload, answer.get("broken", "the rehearsal could not start"))
    raise Unavailable(f"cannot tell how much memory this model takes: {why}", _TRY_IT)


def _by_formula(workload: Workload, why: str) -> Forecast:
    from zlaunch.memory import closed_form

    try:
        return replace(closed_form.forecast(workload), why_not_rehearsed=why)
    except Refused as error:
        words = f"{why}; {error.findings[0].message}"
        raise Unavailable(f"cannot tell how much memory this model takes: {words}", _TRY_IT) from None
