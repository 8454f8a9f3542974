"""Run rehearsals in a separate program; use the closed form if one fails."""

import json
import os
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from zlaunch.errors import Finding, Refused, Unavailable
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.forecast_cache import ForecastCache
from zlaunch.estimate.memory import closed_form
from zlaunch.estimate.self_test import PROBES, why_not_believed
from zlaunch.estimate.temp_dirs import Scratch
from zlaunch.estimate.workload import Workload, to_json
from zlaunch.hosts.adapters import adapter_of
from zlaunch.hosts.machine.gpu_catalog import known_gpus
from zlaunch.hosts.machine.interpreter import inspect_python, stack_of
from zlaunch.job.transformer import depth_of
from zlaunch.process import ours, start_with_pipes
from zlaunch.units import memory, whole

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
_TRY_IT: Final = "start it with fewer layers, and compare with the memory in `zlaunch runs show`"

MOST_JOBS: Final = 8
"""Rehearsals at a time, each of which takes up to a gigabyte of this machine's memory."""

MOST_LAYERS: Final = 1_000
"""Each takes a rehearsal 0.08 s of a core; the deepest models of today have under 200."""
MOST_RANKS: Final = 16_384
"""Each takes 0.003 s of a core: DeepSpeed looks at all of them."""
MOST_GPUS: Final = 10
"""A job that needs more memory than this many of the largest GPU fits nowhere."""

Rehearsed = Forecast | Refused | Unavailable
"""A forecast, or why there is none."""

Done = Callable[[Mapping[int, Rehearsed], int], None]
"""Called with the forecasts so far, by the place of their workload, and the number of all."""


_Reply = dict[str, Any]
"""A line of the rehearsal's program: `index` and a `Result`."""


class Rehearser(AbstractContextManager["Rehearser"]):
    """Rehearses workloads in one program, which starts with the first and ends with `close`.

    With a cache, no workload is rehearsed twice.
    """

    def __init__(
        self, cache: ForecastCache | None = None, jobs: int | None = None, python: Path | None = None
    ) -> None:
        """Rehearse `jobs` workloads at a time, by default as many as there are cores.

        `python` is the interpreter whose packages are rehearsed; None for the one that runs zlaunch.
        """
        self._python = python
        self._cache = cache or ForecastCache(None)
        self._jobs = jobs or min(MOST_JOBS, _cores())
        self._program: _Program | None = None
        self._expected: list[Workload] = []
        self._is_checked = False
        self._doubt: str | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the program; the next workload starts another."""
        if self._program is not None:
            self._program.end()
            self._program = None

    def start(self) -> None:
        """Start the program already, to import the packages on another core while something is computed."""
        if self._program is None and self._jobs > 1:
            self._program = _Program(self._jobs, self._python)

    def expect(self, workloads: Sequence[Workload]) -> None:
        """Have workloads rehearsed that will be asked for, after those that are asked for next."""
        unknown = [workload for workload in workloads if self._at_once(workload) is None]
        self._expected = sorted(unknown, key=_effort, reverse=True)

    def __call__(self, workloads: Sequence[Workload], done: Done | None = None) -> list[Rehearsed]:
        """Return the forecasts of workloads in the same order; call `done` with the progress.

        In place of a forecast there is Refused for a model that transformers refuses, and Unavailable for
        one whose memory cannot be told.
        """
        results: dict[int, Rehearsed] = {}
        for number, workload in enumerate(workloads):
            if (result := self._at_once(workload)) is not None:
                results[number] = result
        missing = [number for number in range(len(workloads)) if number not in results]
        if missing and (why := self.doubt()) is not None:
            return [
                results.get(number) or _forecast(workload, {"failure": why})
                for number, workload in enumerate(workloads)
            ]
        # What takes longest starts first, so that no rehearsal ends much later than the others.
        missing.sort(key=lambda number: _effort(workloads[number]), reverse=True)
        report = done or (lambda *_: None)
        report(results, len(workloads))
        expected, self._expected = self._expected, []
        for place, reply in self._ask([workloads[number] for number in missing], expected):
            number = missing[place]
            results[number] = result = _forecast(workloads[number], reply)
            if isinstance(result, Forecast) and "failure" not in reply:
                self._cache.keep(workloads[number], result)
            report(results, len(workloads))
        if len(results) < len(workloads):
            self.close()  # it died of one of them
        return [results.get(number) or _forecast(workload, {}) for number, workload in enumerate(workloads)]

    def doubt(self) -> str | None:
        """Say why rehearsals are not believed; only releases that were not tested are put to the test."""
        if not self._is_checked:
            self._is_checked = True
            if [*stack_of(inspect_python(self._python)).untested()]:
                replies = self._ask(PROBES)
                told = {number: _forecast(PROBES[number], reply) for number, reply in replies}
                self._doubt = why_not_believed(told)
        return self._doubt

    def _at_once(self, workload: Workload) -> Rehearsed | None:
        """Return a cached forecast, or the closed form for a job too large for a rehearsal."""
        if (why := too_large(workload)) is not None:
            return _forecast(workload, {"failure": why})
        return self._cache.find(workload)

    def _ask(
        self, workloads: Sequence[Workload], expected: Sequence[Workload] = ()
    ) -> Iterator[tuple[int, _Reply]]:
        if not workloads:
            return
        if self._program is None:
            self._program = _Program(self._jobs, self._python)
        yield from self._program.replies(workloads, expected)


def _effort(workload: Workload) -> tuple[int, int, int]:
    """Order rehearsals by what takes long: the stage, offloading, above all to NVMe, and accumulation."""
    zero = workload.ds_config.get("zero_optimization", {})
    offloads = [zero.get(f"offload_{part}") or {} for part in ("optimizer", "param")]
    moved = sum({"cpu": 1, "nvme": 2}.get(str(section.get("device")), 0) for section in offloads)
    accumulated = workload.ds_config.get("gradient_accumulation_steps", 1)
    return int(zero.get("stage", 0)), moved, int(accumulated)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Program:
    """`python -m zlaunch.estimate.rehearsal`: reads a workload a line, writes a reply a line.

    Its temporary files are deleted here, because a killed process leaves them behind.
    """

    def __init__(self, jobs: int, python: Path | None) -> None:
        environment = {**os.environ, **ENVIRONMENT}
        self._scratch: Scratch | None = None
        with suppress(OSError):  # the program then says itself what it cannot do
            self._scratch = Scratch("rehearsal")
            environment["TMPDIR"] = str(self._scratch.path)
        interpreter = None
        if python is not None:
            interpreter = str(python)
        argv = ours("zlaunch.estimate.rehearsal", str(jobs), python=interpreter)
        self._process = start_with_pipes(argv, environment)
        self._num_asked = 0
        self._num_answered = 0
        self._unsent = self._unread = b""
        self._ahead: dict[str, int] = {}
        """Workload that was sent before it is asked for → its index."""
        self._early: dict[int, _Reply] = {}

    def replies(
        self, workloads: Sequence[Workload], expected: Sequence[Workload] = ()
    ) -> Iterator[tuple[int, _Reply]]:
        """Send workloads and yield replies as they come; none for a workload it died of.

        Those that are `expected` to be asked for next are sent, too.
        """
        waiting: dict[int, int] = {}
        for place, workload in enumerate(workloads):
            text = to_json(workload)
            index = self._ahead.pop(text, None)
            if index is None:
                index = self._send(text)
            waiting[index] = place
        for text in map(to_json, expected):
            self._ahead[text] = self._send(text)
        for index in [index for index in waiting if index in self._early]:
            yield waiting.pop(index), self._early.pop(index)
        if not waiting:
            return
        for line in self._lines():
            self._num_answered += 1
            reply: _Reply = json.loads(line)
            index = reply["index"]
            if index in waiting:
                yield waiting.pop(index), reply
            else:
                self._early[index] = reply
            if not waiting:
                return

    def _send(self, text: str) -> int:
        self._unsent += text.encode() + b"\n"
        self._num_asked += 1
        return self._num_asked - 1

    def _lines(self) -> Iterator[bytes]:
        """Write and read at the same time, so that no full pipe blocks both sides."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        while True:
            while b"\n" in self._unread:
                line, _, self._unread = self._unread.partition(b"\n")
                yield line
            writers = []
            if self._unsent:
                writers = [stdin]
            readable, writable, _ = select.select([stdout], writers, [])
            if writable:
                try:
                    self._unsent = self._unsent[os.write(stdin.fileno(), self._unsent[: select.PIPE_BUF]) :]
                except BrokenPipeError:
                    self._unsent = b""
            if readable:
                chunk = os.read(stdout.fileno(), 1 << 16)
                if not chunk:
                    return
                self._unread += chunk

    def end(self) -> None:
        """Wait for its end; kill it if it is still rehearsing, or importing for questions that never came."""
        if self._num_answered < self._num_asked or self._num_asked == 0:
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()
        if self._scratch is not None:
            self._scratch.delete()


def too_large(workload: Workload) -> str | None:
    """Return why a job is not rehearsed; None if it is, or if its size is unknown.

    A rehearsal runs DeepSpeed's Python code for every layer, and loops over all ranks; a job that fits
    nowhere needs none. Raise Refused if no model has so many layers.
    """
    if (layers := depth_of(workload.model)) > MOST_LAYERS:
        return f"{layers} layers would take minutes"
    if workload.world_size > MOST_RANKS:
        return f"{workload.world_size} ranks would take minutes"
    if workload.accelerator == "cpu":
        return None
    forecast = by_formula(workload)
    if not isinstance(forecast, Forecast):
        return None
    least, _ = forecast.bounds(forecast.peak("gpu"))
    largest = max(gpu.total_bytes for gpu in known_gpus().values())
    if least > MOST_GPUS * largest:
        return f"it takes at least {memory(least)}, more than {MOST_GPUS} times the largest GPU"
    return None


def _forecast(workload: Workload, reply: _Reply) -> Rehearsed:
    if "forecast" in reply:
        forecast: Forecast = adapter_of(Forecast).validate_python(reply["forecast"])
        return forecast
    if "unknown_model" in reply:
        return Refused([Finding("unknown-model", reply["unknown_model"], "fix the model's config.json")])
    if "cannot_tell" in reply:
        return Unavailable(f"{_CANNOT_TELL}: {reply['cannot_tell']}", _TRY_IT)
    why = reply.get("failure", "the rehearsal process died")
    if (whole(workload.ds_config.get("zero_optimization", {}).get("mics_shard_size")) or 0) > 0:
        return Unavailable(f"{_CANNOT_TELL} with MiCS; no rehearsal: {why}", "delete `mics_shard_size`")
    if workload.groups.are_split:
        return Unavailable(f"{_CANNOT_TELL} if ranks share layers or sequences; no rehearsal: {why}", _TRY_IT)
    formula = by_formula(workload)
    if not isinstance(formula, Forecast):
        return Unavailable(f"{formula.message}; no rehearsal: {why}", formula.hint)
    return replace(formula, why_not_rehearsed=why)


def by_formula(workload: Workload) -> Forecast | Unavailable:
    """Forecast in closed form; Unavailable for a model that is no language model."""
    try:
        return closed_form.forecast(workload)
    except Refused as error:
        return Unavailable(f"{_CANNOT_TELL}: {error.findings[0].message}", _TRY_IT)
