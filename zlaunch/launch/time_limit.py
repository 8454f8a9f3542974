"""When a run must have ended: `--time-limit`, or the limit of the Slurm job that it runs in."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from zlaunch.job.spec import PreemptOptions
from zlaunch.process import output_of
from zlaunch.units import duration

SLURM_JOB, SLURM_END = "SLURM_JOB_ID", "SLURM_JOB_END_TIME"
KUBERNETES = "Kubernetes"
_ASK_SECONDS = 10.0

MARGIN_SECONDS = 15.0
"""Time for the current step and for the end of the ranks."""
MOST_OF_ALL = 0.5
"""Maximum share of the time that is reserved for saving."""


class TimeLimit(NamedTuple):
    """The time at which a run must have ended, and the source of this limit."""

    ends: float
    """Seconds since 1970."""
    source: str
    seconds: float
    """Between the start of the run and its end."""

    save_within: float | None = None
    """Time to save that the user set."""

    def lead(self, save_seconds: float, step_seconds: float = 0.0) -> float:
        """How long before the end the ranks are asked to save."""
        needed = self.save_within or 1.5 * save_seconds + MARGIN_SECONDS
        return min(needed + 3 * step_seconds, MOST_OF_ALL * self.seconds)


def time_limit(
    options: PreemptOptions, environ: Mapping[str, str], process_started: Callable[[], float]
) -> TimeLimit | None:
    """Return the user's limit, counted from the start of zlaunch, or else that of the Slurm job."""
    if (seconds := options.time_limit) is not None:
        return TimeLimit(process_started() + seconds, "`--time-limit`", seconds, options.save_within)
    ends = _slurm_end(environ)
    if ends is None:
        return None
    source = f"the limit of Slurm job {environ[SLURM_JOB]}"
    return TimeLimit(ends, source, max(0.0, ends - process_started()), options.save_within)


def _slurm_end(environ: Mapping[str, str]) -> float | None:
    """Read the end time of the Slurm job; older releases of Slurm set no variable for it."""
    job = environ.get(SLURM_JOB, "")
    if not job.isdecimal():
        return None
    if (ends := environ.get(SLURM_END, "")).isdecimal():
        return float(ends)
    output = output_of(["squeue", "--noheader", f"--jobs={job}", "--format=%e"], _ASK_SECONDS)
    try:
        return time.mktime(time.strptime((output or "").strip(), "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def scheduler_of(environ: Mapping[str, str]) -> str | None:
    """Return the scheduler that started zlaunch, which sends SIGTERM before SIGKILL."""
    if job := environ.get(SLURM_JOB):
        return f"Slurm job {job}"
    return KUBERNETES if environ.get("KUBERNETES_SERVICE_HOST") else None


def saves_at_sigterm(options: PreemptOptions, environ: Mapping[str, str]) -> bool:
    """Whether SIGTERM asks to save and stop."""
    if options.on_preempt is None:
        return scheduler_of(environ) is not None
    return options.on_preempt == "save"


def shields_ranks(options: PreemptOptions, environ: Mapping[str, str]) -> bool:
    """Whether SIGTERM must not reach launchers and scripts: only Kubernetes sends it to zlaunch alone."""
    return saves_at_sigterm(options, environ) and scheduler_of(environ) != KUBERNETES


def limit_words(limit: TimeLimit, save: float | None) -> str:
    """Describe when a run is asked to save, and for which limit; `save` is None if it is unknown where."""
    end = f"{_clock(limit.ends)} ({limit.source}, {duration(limit.seconds)})"
    if save is None:
        return f"ends by {end}, perhaps without a save: it is not known where the script saves"
    return f"saves and stops at {_clock(limit.ends - limit.lead(save))}, in time for {end}"


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))
