"""Run a trial in a program of its own, and judge what it measured."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zlaunch.errors import Unavailable
from zlaunch.estimate.rehearse import ENVIRONMENT
from zlaunch.estimate.temp_dirs import Scratch
from zlaunch.frozen import dataclass
from zlaunch.hosts.adapters import adapter_of
from zlaunch.parity.trial import Trial, to_line
from zlaunch.parity.verdict import Comparison, ParityVerdict, judge
from zlaunch.process import ours, start_with_pipes

if TYPE_CHECKING:
    import subprocess


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


class TrialProgram(AbstractContextManager["TrialProgram"]):
    """Trains trials in one program, which starts with the first, and again after one that ended it."""

    def __init__(self, environment: Mapping[str, str], python: Path | None = None) -> None:
        """In the environment, native ops that the trials need are compiled."""
        self._scratch = Scratch("parity")
        self._environment = {**environment, **ENVIRONMENT, "TMPDIR": str(self._scratch.path)}
        interpreter = None
        if python is not None:
            interpreter = str(python)
        self._argv = ours("zlaunch.parity.program", python=interpreter)
        self._process: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        self._end()
        self._scratch.delete()

    def check(self, trial: Trial) -> CheckedTrial:
        """Train and judge; raise Unavailable if the trial fails."""
        reply = self._reply(trial)
        if "failure" in reply:
            raise Unavailable(f"cannot tell here: the trial failed: {reply['failure']}")
        comparison: Comparison = adapter_of(Comparison).validate_python(reply)
        return CheckedTrial(trial, comparison, judge(comparison.distances, trial.precision))

    def _reply(self, trial: Trial) -> dict[str, Any]:
        process = self._process = self._process or start_with_pipes(self._argv, self._environment)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{to_line(trial)}\n".encode())
            process.stdin.flush()
            reply: dict[str, Any] = json.loads(process.stdout.readline())
        except (ValueError, BrokenPipeError):
            self._end()
            reply = {"failure": f"its process ended with status {process.returncode}"}
        return reply

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
