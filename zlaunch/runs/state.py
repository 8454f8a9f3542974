"""The state of a run and a summary of it, judged from its records."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from zlaunch.diagnosis.evidence import StallEvidence, filled
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.rundir.record import EndingRecord
from zlaunch.rundir.run_files import RunFiles
from zlaunch.runs.what_ran import program_of

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


@dataclass(frozen=True)
class RunSummary:
    """One run, as recorded."""

    files: RunFiles
    state: State
    started: float | None
    seconds: float | None
    """How long it took, has been running, or was last known to run."""
    script: str | None
    stage: int | None
    offload: Mapping[str, str]
    """`optimizer` or `param` → device; what stays on the GPU is not listed."""
    world_size: int | None
    step: int | None
    steps: int | None
    """Planned number of steps."""
    exit_status: int | None
    verdict: Verdict | None
    """The recorded verdict, or the one that was derived from the records."""
    cause: str | None
    """Why it ended, in one sentence; None if it runs or finished."""

    @property
    def id(self) -> str:
        """The name of its directory."""
        return self.files.root.name


def summarize(files: RunFiles, alive: bool | None, now: float) -> RunSummary:
    """Summarize a run; `alive`: whether its zlaunch is running, None if unknown."""
    job, state, verdict = files.job, state_of(files, alive, now), recorded_verdict(files.ending)
    started = job.get("started")
    seen = [*files.heartbeats.values(), files.last_metrics]
    return RunSummary(
        files=files,
        state=state,
        started=started,
        seconds=_seconds(files, state, started, now),
        script=job.get("module") or next(iter(job.get("script", [])), None),
        stage=_stage(files),
        offload={part: device for part, device in job.get("offload", {}).items() if device},
        world_size=files.world_size,
        step=max((step for one in seen if (step := one.get("step")) is not None), default=None),
        steps=max((steps for one in seen if (steps := one.get("steps")) is not None), default=None),
        exit_status=files.ending.get("exit_status"),
        verdict=verdict,
        cause=cause_of(files, state, verdict),
    )


def _stage(files: RunFiles) -> int | None:
    """Take the stage of the engine, or that of the plan until there is one."""
    return program_of(files).get("engine", {}).get("stage", files.job.get("stage"))


def state_of(files: RunFiles, alive: bool | None, now: float) -> State:
    """Take the recorded ending; without one, see whether the zlaunch of the run is running."""
    if not files.job:
        return State.BROKEN
    if (how := files.ending.get("how")) in _ENDINGS:
        return _ENDINGS[how]
    if alive is None:
        return State.RUNNING if now - files.changed < SIGN_SECONDS else State.UNKNOWN
    return State.RUNNING if alive else State.LOST


def recorded_verdict(ending: EndingRecord) -> Verdict | None:
    """Read the verdict from the record of an ending."""
    verdict = ending.get("verdict") or {}
    if not verdict.get("cause"):
        return None
    facts, advice = tuple(verdict.get("facts", ())), tuple(verdict.get("advice", ()))
    return filled(Verdict, {"code": "", **verdict, "facts": facts, "advice": advice})


def recorded_stall(ending: EndingRecord) -> StallEvidence | None:
    """Read from the record of an ending where the ranks were when the run stalled."""
    stall = ending.get("stall") or {}
    if "seconds" not in stall:
        return None
    where = {int(rank): place for rank, place in stall.get("where", {}).items() if rank.isdecimal()}
    odd = tuple(stall.get("odd", ()))
    return filled(StallEvidence, {"ended_job": False, **stall, "where": where, "odd": odd})


def cause_of(files: RunFiles, state: State, verdict: Verdict | None) -> str | None:
    """Say in one sentence why a run ended; None if there is nothing to explain."""
    if state in (State.RUNNING, State.FINISHED):
        return None
    if verdict is not None:
        return verdict.cause
    host = files.job.get("host")
    if state is State.BROKEN:
        return "; ".join(files.troubles) or "`job.json` is empty"
    if state is State.LOST:
        gone = f"zlaunch (process {files.job.get('zlaunch_pid')}{f' on {host}' if host else ''}) is gone"
        broken = next((trouble for trouble in files.troubles if "how-it-ended" in trouble), None)
        return f"{gone}, and {broken}" if broken else f"{gone} without recording an end: it was killed"
    if state is State.UNKNOWN:
        return f"its zlaunch on {host} cannot be seen from here, and it has not written anything for a while"
    return str(state.value)


def _seconds(files: RunFiles, state: State, started: float | None, now: float) -> float | None:
    if (seconds := files.ending.get("seconds")) is not None:
        return max(0.0, seconds)
    if started is None:
        return None
    return max(0.0, (now if state is State.RUNNING else files.changed) - started)
