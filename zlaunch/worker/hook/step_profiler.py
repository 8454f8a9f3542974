"""Record some steps with torch's profiler: a trace for Perfetto, and a table of the operations.

Both are written whole or not at all. A script that ends early, or gets SIGTERM, writes what was recorded.
Under `nsys profile`, the steps are only marked.
"""

import atexit
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.write import write_record

if TYPE_CHECKING:
    from torch.profiler import profile

    from zlaunch.rundir.record import OperationsRecord, ProfileRecord

VARIABLE: Final = "ZLAUNCH_PROFILE"
MOST_OPERATIONS: Final = 20
KINETO_LEVEL: Final = "KINETO_LOG_LEVEL"
NOTHING: Final = "6"
"""Above all of Kineto's levels; the highest, USDT, is that of a line for each start and stop."""


class StepProfiler:
    """Profiles the steps from `first` to `last`; raises nothing."""

    def __init__(self, run_dir: RunDir, rank: int, first: int, last: int) -> None:
        self._trace = run_dir.rank_trace(rank)
        self._operations = run_dir.rank_operations(rank)
        self._first, self._last = first, last
        self._profile: Any = None
        self._begun_after = 0
        """Steps before the profile began: more than were asked for if the script resumed within them."""
        self._is_over = False
        self._began = self._usual = 0.0
        self._step_began = 0.0
        self._step, self._step_ended = 0, 0.0

    @property
    def is_recording(self) -> bool:
        """Whether the profile has begun and not ended."""
        return self._profile is not None

    def forward(self, step: int) -> None:
        """Take in a forward pass after so many steps: the first one of the first step begins the profile."""
        if self._is_over or self._profile is not None or not self._first - 1 <= step < self._last:
            return
        self._step = self._begun_after = step
        with contextlib.suppress(Exception):
            self._begin()

    def stepped(self, step: int) -> None:
        """Take in the end of a step."""
        now = time.perf_counter()
        if self._profile is None:
            if self._step_began:
                self._usual = now - self._step_began
            self._step_began = now
            return
        self._step, self._step_ended = step, now
        if step >= self._last:
            self.finish()

    def _begin(self) -> None:
        from torch import cuda
        from torch.profiler import profile

        made = profile()
        if cuda.is_available() or KINETO_LEVEL in os.environ:
            made.start()
        else:  # without a GPU, it has nothing to say but that it starts and stops
            os.environ[KINETO_LEVEL] = NOTHING
            made.start()
            del os.environ[KINETO_LEVEL]
        self._profile, self._began = made, time.perf_counter()
        atexit.register(self.finish)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, number: int, _frame: FrameType | None) -> None:
        self.finish()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def finish(self) -> None:
        """End the profile, and write it."""
        made, self._profile = self._profile, None
        if made is None or self._is_over:
            return
        self._is_over = True
        seconds = (self._step_ended or time.perf_counter()) - self._began
        with contextlib.suppress(Exception), _undisturbed():
            made.stop()
            self._write(made, seconds)
        with contextlib.suppress(Exception):
            if signal.getsignal(signal.SIGTERM) == self._terminated:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _write(self, made: "profile", seconds: float) -> None:
        began = time.perf_counter()
        part = self._trace.with_name(f".{self._trace.name}")  # a name with .gz is compressed
        made.export_chrome_trace(str(part))
        part.replace(self._trace)
        events = list(made.key_averages())
        on_gpu = any(_on_gpu(event) for event in events)
        own_time = _on_gpu if on_gpu else _on_cpu
        events.sort(key=own_time, reverse=True)
        whole_steps = self._step - self._begun_after
        steps = max(1, whole_steps)
        record: OperationsRecord = {
            "first": self._begun_after + 1,
            "last": self._begun_after + steps,
            "whole_steps": whole_steps,
            "seconds": seconds / steps,
            "usual_seconds": self._usual,
            "export_seconds": time.perf_counter() - began,
            "on_gpu": on_gpu,
            "operations": [
                {
                    "name": event.key,
                    "calls": event.count / steps,
                    "seconds": own_time(event) / 1e6 / steps,
                }
                for event in events[:MOST_OPERATIONS]
            ],
        }
        write_record(self._operations, record, indent=None)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Put off signals that end the script: after Ctrl-C, its launcher sends another one at once."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _on_gpu(event: Any) -> float:
    return float(getattr(event, "self_device_time_total", 0.0))


def _on_cpu(event: Any) -> float:
    return float(event.self_cpu_time_total)


class NsysSteps(StepProfiler):
    """Tells nsys when its steps begin and end."""

    def _begin(self) -> None:
        from torch.cuda import profiler

        profiler.start()
        self._profile = profiler

    def finish(self) -> None:
        """End the steps."""
        profiler, self._profile, self._is_over = self._profile, None, True
        with contextlib.suppress(Exception):
            if profiler is not None:
                profiler.stop()


def asked_of(profile: "ProfileRecord") -> str:
    """Write which steps the hook profiles, for `profiler_of`: none if nsys profiles the whole run."""
    tool = "nsys:" if profile.get("with_nsys") else ""
    return f"{tool}{profile.get('first') or 0}-{profile.get('last') or 0}"


def profiler_of(run_dir: RunDir, rank: int, asked: str | None) -> StepProfiler | None:
    """Make the profiler of the steps `first-last`; None if none are asked for."""
    if not asked:
        return None
    kind: type[StepProfiler] = StepProfiler
    if asked.startswith("nsys:"):
        kind, asked = NsysSteps, asked.removeprefix("nsys:")
    first, _, last = asked.partition("-")
    return kind(run_dir, rank, int(first), int(last))
