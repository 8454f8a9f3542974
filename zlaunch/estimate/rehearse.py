"""Run rehearsals in a program of their own; fall back to the closed form where one breaks."""

import json
import os
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, Protocol, TypedDict

from pydantic import TypeAdapter

from zlaunch.errors import Finding, Refused, Unavailable, ZlaunchError
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.memory import closed_form
from zlaunch.estimate.rehearsal_limits import too_large
from zlaunch.estimate.scratch import Scratch
from zlaunch.estimate.workload import Workload, to_json
from zlaunch.process import ours, with_pipes

ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "DS_LOG_LEVEL": "error",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""A rehearsal looks for no accelerator, downloads nothing and prints nothing."""

_CANNOT_TELL: Final = "cannot tell how much memory this model takes"
_TRY_IT: Final = "start it with few layers, and see what `zlaunch runs show` measures"

MOST_JOBS: Final = 8
"""Rehearsals at a time, each of which takes up to a gigabyte of this machine's memory."""

Done = Callable[[int, int], None]
"""Called with the number of forecasts so far, and of all."""

Found = Forecast | ZlaunchError
"""A forecast, or why there is none."""


class _Reply(TypedDict, total=False):
    """A line of the rehearsal's program: a forecast, or one of the reasons why there is none."""

    index: int
    forecast: object
    unknown_model: str
    """Why transformers rejects the model."""
    cannot_tell: str
    """Why its memory cannot be estimated."""
    failure: str
    """Why the rehearsal failed."""


class Cache(Protocol):
    """Keeps forecasts from one command to the next."""

    def find(self, workload: Workload) -> Forecast | None:
        """Return the forecast of a workload, if it is there."""

    def keep(self, workload: Workload, forecast: Forecast) -> None:
        """Keep a forecast."""


class Rehearser:
    """Rehearses workloads in one program, which starts with the first and ends with `close`.

    With a cache, no workload is rehearsed twice.
    """

    def __init__(self, cache: Cache | None = None, jobs: int | None = None) -> None:
        """Rehearse `jobs` workloads at a time, by default as many as there are cores."""
        self._cache = cache
        self._jobs = jobs or min(MOST_JOBS, _cores())
        self._program: _Program | None = None

    def __enter__(self) -> "Rehearser":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the program; the next workload starts another."""
        if self._program is not None:
            self._program.end()
            self._program = None

    def __call__(self, workloads: Sequence[Workload], done: Done | None = None) -> list[Found]:
        """Return the forecasts of workloads in the same order; call `done` with the progress.

        In place of a forecast there is Refused for a model that transformers refuses, and Unavailable for
        one whose memory cannot be told.
        """
        found = {number: kept for number, one in enumerate(workloads) if (kept := self._at_once(one))}
        missing = [number for number in range(len(workloads)) if number not in found]
        # What takes longest starts first, so that no rehearsal ends much later than the others.
        missing.sort(key=lambda number: _effort(workloads[number]), reverse=True)
        tell = done or (lambda *_: None)
        tell(len(found), len(workloads))
        for place, reply in self._ask([workloads[number] for number in missing]):
            number = missing[place]
            found[number] = told = _forecast(workloads[number], reply)
            if self._cache is not None and isinstance(told, Forecast) and "failure" not in reply:
                self._cache.keep(workloads[number], told)
            tell(len(found), len(workloads))
        if len(found) < len(workloads):
            self.close()  # it died of one of them
        return [found.get(number) or _forecast(one, {}) for number, one in enumerate(workloads)]

    def _at_once(self, workload: Workload) -> Found | None:
        """Return a cached forecast, or the closed form for a job too large for a rehearsal."""
        if (why := too_large(workload)) is not None:
            return _forecast(workload, {"failure": why})
        return None if self._cache is None else self._cache.find(workload)

    def _ask(self, workloads: Sequence[Workload]) -> Iterator[tuple[int, _Reply]]:
        if not workloads:
            return
        if self._program is None:
            self._program = _Program(self._jobs)
        yield from self._program.replies(workloads)


def _effort(workload: Workload) -> tuple[int, int, int]:
    """Order rehearsals by what takes long: the stage, offloading, above all to NVMe, and accumulation."""
    zero = workload.ds_config.get("zero_optimization", {})
    offloads = [zero.get(f"offload_{part}") or {} for part in ("optimizer", "param")]
    moved = sum({"cpu": 1, "nvme": 2}.get(str(one.get("device")), 0) for one in offloads)
    accumulated = workload.ds_config.get("gradient_accumulation_steps", 1)
    return int(zero.get("stage", 0)), moved, int(accumulated)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def rehearse(workloads: Sequence[Workload], done: Done | None = None) -> list[Forecast]:
    """Rehearse workloads; raise the first error."""
    forecasts: list[Forecast] = []
    with Rehearser() as rehearser:
        for found in rehearser(workloads, done):
            if isinstance(found, ZlaunchError):
                raise found
            forecasts.append(found)
    return forecasts


class _Program:
    """`python -m zlaunch.estimate.rehearsal`: reads a workload a line, writes a reply a line.

    Its temporary files are deleted here, because a killed process leaves them behind.
    """

    def __init__(self, jobs: int) -> None:
        environment = {**os.environ, **ENVIRONMENT}
        self._scratch: Scratch | None = None
        with suppress(OSError):  # the program then says itself what it cannot do
            self._scratch = Scratch("rehearsal")
            environment["TMPDIR"] = str(self._scratch.path)
        self._process = with_pipes(ours("zlaunch.estimate.rehearsal", str(jobs)), environment)
        self._num_asked = 0
        self._num_answered = 0

    def replies(self, workloads: Sequence[Workload]) -> Iterator[tuple[int, _Reply]]:
        """Send workloads and yield replies as they come; none for a workload it died of."""
        first = self._num_asked
        self._num_asked += len(workloads)
        for line in self._lines(b"".join(to_json(one).encode() + b"\n" for one in workloads)):
            self._num_answered += 1
            reply: _Reply = json.loads(line)
            yield reply["index"] - first, reply
            if self._num_answered == self._num_asked:
                return

    def _lines(self, unsent: bytes) -> Iterator[bytes]:
        """Write and read at the same time, so that no full pipe blocks both sides."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        left = b""
        while True:
            readable, writable, _ = select.select([stdout], [stdin] if unsent else [], [])
            if writable:
                try:
                    unsent = unsent[os.write(stdin.fileno(), unsent[: select.PIPE_BUF]) :]
                except BrokenPipeError:
                    unsent = b""
            if readable:
                chunk = os.read(stdout.fileno(), 1 << 16)
                *lines, left = (left + chunk).split(b"\n")
                yield from lines
                if not chunk:
                    return

    def end(self) -> None:
        """Wait for its end; kill it if it is still rehearsing."""
        if self._num_answered < self._num_asked:
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()
        if self._scratch is not None:
            self._scratch.delete()


def _forecast(workload: Workload, reply: _Reply) -> Found:
    if "forecast" in reply:
        forecast: Forecast = TypeAdapter(Forecast).validate_python(reply["forecast"])
        return forecast
    if "unknown_model" in reply:
        return Refused([Finding("unknown-model", reply["unknown_model"], "fix the model's config.json")])
    if "cannot_tell" in reply:
        return Unavailable(f"{_CANNOT_TELL}: {reply['cannot_tell']}", _TRY_IT)
    why = reply.get("failure", "the rehearsal's program died")
    found = by_formula(workload)
    if isinstance(found, ZlaunchError):
        return Unavailable(f"{found.message}; no rehearsal: {why}", found.hint)
    return replace(found, why_not_rehearsed=why)


def by_formula(workload: Workload) -> Found:
    """Forecast in closed form; Unavailable for a model that is no language model."""
    try:
        return closed_form.forecast(workload)
    except Refused as error:
        return Unavailable(f"{_CANNOT_TELL}: {error.findings[0].message}", _TRY_IT)
