"""What the files of a run directory say: which state the run is in, how far it came, and why it ended."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from zlaunch.units import whole

SIGN_SECONDS = 60.0
"""A running job writes more often than this."""

_MOST = 1e18
"""Beyond this a number of seconds or bytes is none."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Which run a run comes from."""

    attempt: int = 1
    continues: str | None = None
    """The run it takes up after a failure."""
    repeats: str | None = None
    """The run it repeats from the beginning."""
    why: str | None = None
    """What is different this time."""


FIRST = Lineage()
"""The lineage of a run that comes from none."""


class State(Enum):
    """What a run is doing, or how it ended."""

    RUNNING = "running"
    FINISHED = "finished"
    STUMBLED = "stumbled"
    FAILED = "failed"
    STOPPED = "stopped"
    STALLED = "stalled"
    LOST = "lost"
    """zlaunch was killed; what ran below it may have written down that it is gone."""
    UNKNOWN = "unknown"
    """It was started on another host, and has written nothing for a while."""
    BROKEN = "broken"
    """The directory does not say what ran."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of the run works any more, as far as can be known."""
        return self not in (State.RUNNING, State.UNKNOWN)


_ENDINGS = {
    state.value: state
    for state in (
        State.FINISHED,
        State.STUMBLED,
        State.FAILED,
        State.STOPPED,
        State.STALLED,
        State.LOST,
    )
}


@dataclass(frozen=True)
class RunFiles:
    """What was read from a run directory; a file that is not there, or is broken, is empty."""

    root: Path
    changed: float = 0.0
    """When one of its files was last written: the last sign of life."""
    job: Mapping[str, Any] = field(default_factory=dict)
    ending: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """The ds_config."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    forecast: Mapping[str, Any] = field(default_factory=dict)
    last_metrics: Mapping[str, Any] = field(default_factory=dict)
    ranks: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    pulses: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    samples: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    errors: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()
    """Files that should be there, or cannot be read."""
    verdict: Mapping[str, Any] = field(default_factory=dict)
    """Why it ended, found again from what is left, where none was written."""

    @property
    def told(self) -> Mapping[str, Any]:
        """The verdict that was written, or else the one that was found again."""
        written = section(self.ending, "verdict")
        return written if text(written, "cause") else self.verdict


@dataclass(frozen=True)
class RunRecord:
    """One run as far as its files tell."""

    found: RunFiles
    state: State
    started: float | None
    seconds: float | None
    """How long it took, has been running, or gave signs of life."""
    script: str | None
    stage: int | None
    offload: Mapping[str, str]
    """`optimizer` or `param` → where it is; what stays on the GPU is not there."""
    world_size: int | None
    step: int | None
    steps: int | None
    """How many it was to take in all."""
    exit_status: int | None
    cause: str | None
    """Why it ended, in one sentence; None if it runs or finished."""

    @property
    def id(self) -> str:
        """The name of its directory."""
        return self.found.root.name


def record_of(found: RunFiles, alive: bool | None, now: float) -> RunRecord:
    """Judge a run; `alive` says whether its zlaunch works, None if that cannot be seen from this host."""
    job, state = found.job, state_of(found, alive, now)
    started = number(job, "started")
    step, steps = _progress(found)
    devices = section(job, "offload")
    return RunRecord(
        found=found,
        state=state,
        started=started,
        seconds=_seconds(found, state, started, now),
        script=script_of(job),
        stage=whole(job.get("stage")),
        offload={part: str(device) for part, device in devices.items() if device},
        world_size=len(job["ranks"]) if isinstance(job.get("ranks"), list) else None,
        step=step,
        steps=steps,
        exit_status=whole(found.ending.get("exit_status")),
        cause=cause_of(found, state),
    )


def state_of(found: RunFiles, alive: bool | None, now: float) -> State:
    """Judge the state of a run: an ending that was written counts, then whether its zlaunch works."""
    if not found.job:
        return State.BROKEN
    if (how := text(found.ending, "how")) in _ENDINGS:
        return _ENDINGS[how]
    if alive is None:
        return State.RUNNING if now - found.changed < SIGN_SECONDS else State.UNKNOWN
    return State.RUNNING if alive else State.LOST


def is_same_process(job: Mapping[str, Any], created: float) -> bool:
    """Whether the process with a run's process id, created at a time, is that run's zlaunch.

    Linux reckons the time from the moment of booting, which shifts when the clock is set. Without
    that time in the record, whoever has the id and is older than the run is it.
    """
    known = number(job, "zlaunch_started")
    if known is not None:
        return abs(created - known) < 2.0
    started = number(job, "started")
    return started is not None and created <= started


def cause_of(found: RunFiles, state: State) -> str | None:
    """Say in one sentence why a run ended; None if there is nothing to explain."""
    if state in (State.RUNNING, State.FINISHED):
        return None
    if said := text(found.told, "cause"):
        return said
    if state is State.BROKEN:
        return "; ".join(found.troubles) or "`job.json` is empty"
    if state is State.LOST:
        pid, host = found.job.get("zlaunch_pid"), found.job.get("host")
        where = f" on {host}" if host else ""
        gone = f"zlaunch (process {pid}{where}) is gone"
        broken = next((trouble for trouble in found.troubles if "how-it-ended" in trouble), None)
        return f"{gone}, and {broken}" if broken else f"{gone} and left no ending: it was killed"
    if state is State.UNKNOWN:
        return f"it was started on {found.job.get('host')}, and has written nothing for a while"
    return str(state.value)


def script_of(job: Mapping[str, Any]) -> str | None:
    """Name the script or the module of a run, as it was given."""
    if module := text(job, "module"):
        return module
    words = job.get("script")
    return str(words[0]) if isinstance(words, list) and words else None


def _progress(found: RunFiles) -> tuple[int | None, int | None]:
    """Say how many steps were taken, of how many, by the ranks' own account or the watch's."""
    seen: Sequence[Mapping[str, Any]] = [*found.pulses.values(), found.last_metrics]
    taken = [step for one in seen if (step := whole(one.get("step"))) is not None]
    planned = [steps for one in seen if (steps := whole(one.get("steps"))) is not None]
    return max(taken, default=None), max(planned, default=None)


def _seconds(found: RunFiles, state: State, started: float | None, now: float) -> float | None:
    if (seconds := number(found.ending, "seconds")) is not None:
        return max(0.0, seconds)
    if started is None:
        return None
    return max(0.0, (now if state is State.RUNNING else found.changed) - started)


def number(members: Mapping[str, Any], name: str) -> float | None:
    """Read a number that can be counted with; None for anything else."""
    value = members.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST < value < _MOST:
        return None
    return float(value) if math.isfinite(value) else None


def text(members: Mapping[str, Any], name: str) -> str | None:
    """Read a text that is not empty; None for anything else."""
    value = members.get(name)
    return value if isinstance(value, str) and value else None


def section(members: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Read an object; anything else is an empty one."""
    value = members.get(name)
    return value if isinstance(value, Mapping) else {}
