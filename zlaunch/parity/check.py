"""Run a trial in a program of its own, and judge what it measured."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zlaunch.errors import Unavailable
from zlaunch.estimate.rehearse import ENVIRONMENT
from zlaunch.estimate.temp_dirs import Scratch
from zlaunch.hosts.adapters import adapter_of
from zlaunch.parity.trial import Trial, to_line
from zlaunch.parity.verdict import Comparison, ParityVerdict, judge
from zlaunch.process import ours, start_with_pipes


@dataclass(frozen=True, slots=True)
class CheckedTrial:
    """A trial, what was measured, and the verdict."""

    trial: Trial
    comparison: Comparison
    verdict: ParityVerdict

    @property
    def steps(self) -> int:
        """How many steps were compared."""
        return self.trial.steps

    @property
    def unchecked(self) -> tuple[str, ...]:
        """What of the job was not compared."""
        return self.trial.unchecked


def check(trial: Trial, environment: Mapping[str, str], python: Path | None = None) -> CheckedTrial:
    """Train and judge; raise Unavailable if the trial fails.

    In the environment, native ops that the trial needs are compiled.
    """
    reply = _reply(trial, environment, python)
    if "failure" in reply:
        raise Unavailable(f"cannot tell here: the trial failed: {reply['failure']}")
    comparison: Comparison = adapter_of(Comparison).validate_python(reply)
    return CheckedTrial(trial, comparison, judge(comparison.distances, trial.precision))


def _reply(trial: Trial, environ: Mapping[str, str], python: Path | None) -> dict[str, Any]:
    scratch = Scratch("parity")
    interpreter = None
    if python is not None:
        interpreter = str(python)
    environment = {**environ, **ENVIRONMENT, "TMPDIR": str(scratch.path)}
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
