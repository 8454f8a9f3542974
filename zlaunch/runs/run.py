"""A run: its records, what it is doing or how it ended, and why."""

import time
from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from zlaunch.diagnosis.stall import StallEvidence
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.rundir.owner import is_running
from zlaunch.rundir.record import EndingRecord
from zlaunch.rundir.run_files import RunFiles

if TYPE_CHECKING:
    from zlaunch.runs.step_time import StepTime

SIGN_SECONDS = 60.0
"""A running job writes more often than this."""


class State(Enum):
    """What a run is doing, or how it ended."""

    RUNNING = "running"
    FINISHED = "finished"
    STUMBLED = "stumbled"
    FAILED = "failed"
    STOPPED = "stopped"
    STALLED = "stalled"
    PREEMPTED = "preempted"
    """It was asked to save and stop, and has saved."""
    LOST = "lost"
    """Its zlaunch was killed; the guard may have recorded that."""
    UNKNOWN = "unknown"
    """Its zlaunch is on another host or in another container, and it has not written anything for a while."""
    BROKEN = "broken"
    """The directory has no readable record of a run."""

    @property
    def is_over(self) -> bool:
        """Whether all processes of the run have ended, as far as is known."""
        return self not in (State.RUNNING, State.UNKNOWN)


_ENDINGS = {state.value: state for state in State if state.is_over and state is not State.BROKEN}


class Run(RunFiles):
    """One run as recorded, judged at one moment. Each part is read or derived when it is first asked for."""

    def __init__(self, root: Path, now: float | None = None) -> None:
        """Judge at a time in seconds since 1970; None for this moment."""
        super().__init__(root)
        self.now = time.time() if now is None else now

    @property
    def id(self) -> str:
        """The name of its directory."""
        return self.root.name

    @cached_property
    def is_alive(self) -> bool | None:
        """Whether its zlaunch is running; None if that cannot be seen from here."""
        return is_running(self.job)

    @cached_property
    def state(self) -> State:
        """The recorded ending; without one, whether the zlaunch of the run is running."""
        if not self.job:
            return State.BROKEN
        if (how := self.ending.get("how")) in _ENDINGS:
            return _ENDINGS[how]
        if self.is_alive is None:
            if self.now - self.changed < SIGN_SECONDS:
                return State.RUNNING
            return State.UNKNOWN
        if self.is_alive:
            return State.RUNNING
        return State.LOST

    @property
    def started(self) -> float | None:
        """When it started, in seconds since 1970."""
        return self.job.get("started")

    @property
    def seconds(self) -> float | None:
        """How long it took, has been running, or was last known to run."""
        if (seconds := self.ending.get("seconds")) is not None:
            return max(0.0, seconds)
        if self.started is None:
            return None
        last = self.now if self.state is State.RUNNING else self.changed
        return max(0.0, last - self.started)

    @property
    def script(self) -> str | None:
        """The module or the script that it ran."""
        return self.job.get("module") or next(iter(self.job.get("script", [])), None)

    @property
    def stage(self) -> int | None:
        """The stage of the engine, or that of the plan until there is one."""
        return self.program.get("engine", {}).get("stage", self.job.get("stage"))

    @property
    def offload(self) -> Mapping[str, str]:
        """`optimizer` or `param` → device; what stays on the GPU is not listed."""
        return {part: device for part, device in self.job.get("offload", {}).items() if device}

    @cached_property
    def step(self) -> int | None:
        """The furthest step that a rank has reported."""
        return self._furthest("step")

    @cached_property
    def steps(self) -> int | None:
        """Planned number of steps."""
        return self._furthest("steps")

    def _furthest(self, name: str) -> int | None:
        counts = [heartbeat.get(name) for heartbeat in (*self.heartbeats.values(), self.last_metrics)]
        return max((count for count in counts if isinstance(count, int)), default=None)

    @property
    def exit_status(self) -> int | None:
        """The exit status that was recorded."""
        return self.ending.get("exit_status")

    @cached_property
    def verdict(self) -> Verdict | None:
        """The recorded verdict, or the one that its records lead to; None if they do not suffice."""
        recorded = recorded_verdict(self.ending)
        if recorded is not None or not self.state.is_over or self.state in (State.FINISHED, State.BROKEN):
            return recorded
        # importing all signatures takes longer than a list of runs
        from zlaunch.runs.derived_end import derived_verdict

        return derived_verdict(self)

    @cached_property
    def step_time(self) -> "StepTime | None":
        """The time of a step by part, and what limits the speed; None if too few steps were timed."""
        from zlaunch.runs.step_time import step_time  # it counts operations, which a list does not need

        return step_time(self)

    @property
    def stall(self) -> StallEvidence | None:
        """Where its ranks were when it stalled; None if that was not recorded."""
        stall = self.ending.get("stall") or {}
        if "seconds" not in stall:
            return None
        return StallEvidence(
            seconds=stall["seconds"],
            step=stall.get("step", 0),
            where={int(rank): place for rank, place in stall.get("where", {}).items() if rank.isdecimal()},
            odd=tuple(stall.get("odd", ())),
            ended_job=stall.get("ended_job", False),
        )

    @cached_property
    def cause(self) -> str | None:
        """Why it ended, in one sentence; None if it runs or finished."""
        if self.state in (State.RUNNING, State.FINISHED):
            return None
        if self.verdict is not None:
            return self.verdict.cause
        if self.state is State.BROKEN:
            return "; ".join(self.troubles) or "`job.json` is empty"
        if self.state is State.UNKNOWN:
            unseen = f"its zlaunch on {self.job.get('host')} cannot be seen from here"
            return f"{unseen}, and it has not written anything for a while"
        if self.state is State.LOST:
            return self._why_lost()
        return str(self.state.value)

    def _why_lost(self) -> str:
        process = f"process {self.job.get('zlaunch_pid')}"
        if host := self.job.get("host"):
            process += f" on {host}"
        for trouble in self.troubles:
            if "how-it-ended" in trouble:
                return f"zlaunch ({process}) is gone, and {trouble}"
        return f"zlaunch ({process}) is gone without recording an end: it was killed"


def recorded_verdict(ending: EndingRecord) -> Verdict | None:
    """Read the verdict from the record of an ending."""
    verdict = ending.get("verdict") or {}
    if not verdict.get("cause"):
        return None
    return Verdict(
        code=verdict.get("code", ""),
        cause=verdict["cause"],
        rank=verdict.get("rank"),
        host=verdict.get("host"),
        phase=verdict.get("phase"),
        facts=tuple(verdict.get("facts", ())),
        advice=tuple(verdict.get("advice", ())),
        when=verdict.get("when"),
    )
