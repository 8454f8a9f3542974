"""Run a trial in a program of its own, and judge what it measured."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zlaunch.errors import Unavailable
from zlaunch.estimate.rehearse import ENVIRONMENT
from zlaunch.estimate.temp_dirs import Scratch
from zlaunch.hosts.adapters import adapter_of
from zlaunch.parity.trial import Trial, to_line
from zlaunch.parity.verdict import Comparison, Verdict, judge
from zlaunch.process import ours, start_with_pipes


@dataclass(frozen=True, slots=True)
class Checked:
    """A trial, what was measured, and the verdict."""

    trial: Trial
    comparison: Comparison
    verdict: Verdict


def check(trial: Trial, python: Path | None = None) -> Checked:
    """Train and judge; raise Unavailable if the trial fails."""
    reply = _reply(trial, python)
    if "failure" in reply:
        raise Unavailable(f"cannot tell here: the trial failed: {reply['failure']}")
    comparison: Comparison = adapter_of(Comparison).validate_python(reply)
    return Checked(trial, comparison, judge(comparison.distances, trial.precision))


def _reply(trial: Trial, python: Path | None) -> dict[str, Any]:
    scratch = Scratch("parity")
    interpreter = None
    if python is not None:
        interpreter = str(python)
    environment = {**os.environ, **ENVIRONMENT, "TMPDIR": str(scratch.path)}
    process = start_with_pipes(ours("zlaunch.parity.program", python=interpreter), environment)
    try:
        out, _ = process.communicate(f"{to_line(trial)}\n".encode())
    finally:
        process.kill()
        process.wait()
        scratch.delete()
    try:
        reply: dict[str, Any] = json.loads(out)
    except ValueError:
        return {"failure": f"its process ended with status {process.returncode}"}
    return reply
