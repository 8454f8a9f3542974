"""Workloads → forecasts: starts the rehearsal, and falls back on the closed form where it breaks."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from zlaunch.errors import Finding, Refused
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


def rehearse(
    workloads: Sequence[Workload], done: Callable[[int], None] | None = None, jobs: int = 2
) -> list[Forecast]:
    """Rehearse workloads, `jobs` at a time, and return their forecasts in the same order.

    `done` is told the number of those that are finished. What is too large for a rehearsal is answered
    by the closed form. Raises Refused for a model that transformers does not know.
    """
    from zlaunch.memory.limits import too_large

    answers: dict[int, Any] = {
        index: {"broken": why} for index, one in enumerate(workloads) if (why := too_large(one)) is not None
    }
    asked = [index for index in range(len(workloads)) if index not in answers]
    question = TypeAdapter(list[Workload]).dump_json([workloads[index] for index in asked]).decode()
    argv = [sys.executable, "-m", "zlaunch.rehearsal", str(jobs)]
    for line in answers_of(argv, question, {**os.environ, **ENVIRONMENT}) if asked else ():
        answer = json.loads(line)
        answers[asked[answer["index"]]] = answer
        if done is not None:
            done(len(answers))
    return [_forecast(workload, answers.get(index, {})) for index, workload in enumerate(workloads)]


def _forecast(workload: Workload, answer: dict[str, Any]) -> Forecast:
    if "forecast" in answer:
        forecast: Forecast = TypeAdapter(Forecast).validate_python(answer["forecast"])
        return forecast
    if "unknown" in answer:
        raise Refused([Finding("unknown-model", answer["unknown"], "mend the model's config.json")])
    from zlaunch.memory import closed_form

    said = [line.strip() for line in answer.get("broken", "").splitlines() if line.strip()]
    why = said[-1] if said else "the rehearsal could not start"  # a traceback ends with what happened
    return replace(closed_form.forecast(workload), why_not_rehearsed=why)
