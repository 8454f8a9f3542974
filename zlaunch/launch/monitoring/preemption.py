"""Save and stop a job on request: choose the step after which all ranks save, and wait for their end.

Saving is collective, so all ranks must save after the same step. They do not negotiate it: zlaunch chooses a
step that no rank has ended when all ranks have read the request.
"""

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from zlaunch.checkpoint.summary import Summary
from zlaunch.diagnosis.evidence import SaveEvidence
from zlaunch.files import shown
from zlaunch.frozen import dataclass
from zlaunch.job.spec import PreemptOptions
from zlaunch.launch.monitoring.progress import Progress
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.reporter import Reporter
from zlaunch.launch.time_limit import saves_at_sigterm
from zlaunch.process import SAVES
from zlaunch.resume.newest import newest_complete
from zlaunch.resume.saved_by_run import output_dir_of
from zlaunch.rundir import control, phases
from zlaunch.rundir.read import read_rank_records, read_record
from zlaunch.rundir.record import HeartbeatRecord, JobRecord, ProgramRecord, RankRecord
from zlaunch.rundir.run_files import RunFiles
from zlaunch.units import duration

LATENCY_SECONDS = 0.25
"""Time between reading the heartbeats and all ranks of this host having read the chosen step."""
SHARED_LATENCY_SECONDS = 4.0
"""The same on several hosts, which read and write records about once a second, and up to two later."""

CLOCK_SECONDS = 6.0
"""Difference of the clocks of two hosts, at most."""

MOST_OF_WITHIN = 1 / 3
"""Maximum share of the time to save that is spent on further steps, so that steps may vary."""

END_SECONDS = 10.0
"""How long before a time limit a job is ended if it cannot save."""

FASTEST_STEP_SECONDS = 1e-4


def save_step(last: int, elapsed: float, seconds_per_step: float, latency: float, within: float) -> int:
    """Choose the step after which all ranks save.

    `last` is the last step that any rank has reported, and `elapsed` the longest possible time since its end.
    All ranks read the chosen step within `latency` seconds, and none may have ended it by then; a step is
    assumed to take at least half of the usual time, or all of it if that would leave too little of `within`,
    the time until the end. The earliest such step is chosen, as steps may be long.
    """
    each = max(seconds_per_step, FASTEST_STEP_SECONDS)
    needed = elapsed + latency
    return last + int(max(needed, min(2 * needed, MOST_OF_WITHIN * within)) / each) + 1


@dataclass(frozen=True, slots=True)
class _Request:
    """Who asked to save and stop, and when."""

    by: str
    within: float
    """Seconds that the ranks have for it."""
    is_limit: bool
    """Whether a time limit asked."""
    at: float
    """Seconds since 1970."""


class SaveAndStop:
    """The request to save and stop one job, from the request to the end of the ranks."""

    def __init__(
        self,
        plan: LaunchPlan,
        options: PreemptOptions,
        environ: Mapping[str, str],
        stop: Callable[[], None],
        reporter: Reporter,
    ) -> None:
        """Begin without a request; `stop` ends the job."""
        self._plan, self._layout, self._options = plan, plan.layout, options
        self._stop, self._reporter = stop, reporter
        self._sigterm_saves = saves_at_sigterm(options, environ)
        self._latency = SHARED_LATENCY_SECONDS if plan.topology.spans_hosts else LATENCY_SECONDS
        self._known = plan.training.save_directory
        self._request: _Request | None = None
        self._deadline = 0.0
        self._step: int | None = None
        self._why_not = self._advice = ""
        self._is_over = False
        """Whether the job was stopped."""
        self._seen: tuple[int, float, float] = (0, 0.0, 0.0)
        """The last step, the most recent time at which it had not ended, and when it was last looked."""
        self._saving: float | None = None
        self._save_seconds = plan.training.save_seconds

    def on_signal(self, number: int) -> bool:
        """Whether a signal asks to save rather than to stop; called within a signal handler."""
        if number != SAVES and not (number == signal.SIGTERM and self._sigterm_saves):
            return False
        if number != SAVES and control.read_stop(self._layout) is not None:  # `zlaunch runs stop` sends both
            return False
        within = self._options.seconds(is_preempted=number != SAVES)
        if self._request is None:
            self._ask(signal.Signals(number).name, within)
        elif number != SAVES and (deadline := time.monotonic() + within) < self._deadline:
            taken = self._request.within - (self._deadline - deadline)
            self._deadline, self._request = deadline, replace(self._request, within=taken)
        return True

    @property
    def is_asked(self) -> bool:
        """Whether the job was asked to save and stop."""
        return self._request is not None

    def tick(self, progress: Progress) -> None:
        """Check for a request, or advance the current one."""
        now = time.monotonic()
        self._observe(progress)
        if (request := self._request) is None:
            self._look(progress)
        elif self._is_over:
            return
        elif self._step is None and not self._why_not:
            self._choose(request, now, progress)
        elif now > self._deadline:
            failure = "the ranks have not ended"
            if self._step is not None:
                failure = f"step {self._step} is not saved"
            self._end(request, f"{failure} within {duration(request.within)}: ending the job")

    def evidence(self) -> SaveEvidence | None:
        """Return the outcome of the request, after the end of the job."""
        if (request := self._request) is None:
            return None
        saved = None
        if self._step is not None and not self._is_trained():
            saved = self._saved(request)
        if saved is None and not self._is_over:
            self._explain_end()
        return SaveEvidence(
            by=request.by,
            step=self._step,
            why_not=self._why_not,
            advice=self._advice,
            within=request.within,
            checkpoint=None if saved is None else shown(saved.checkpoint.folder),
            is_limit=request.is_limit,
            resumed_step=read_record(self._layout.job, JobRecord).get("resumed_step"),
        )

    @property
    def has_ended_scripts(self) -> bool:
        """Whether scripts have ended because of the request, and not at their own end."""
        heartbeat = read_record(self._layout.rank_heartbeat(0), HeartbeatRecord)
        return "saves_step" in heartbeat and not self._is_trained()

    def _ask(self, by: str, within: float, *, is_limit: bool = False) -> None:
        if self._plan.limit is not None:  # Slurm's signal may come later than `within` before its limit
            within = min(within, max(0.0, self._plan.limit.ends - time.time()))
        self._deadline = time.monotonic() + within
        self._request = _Request(by, within, is_limit, time.time())

    def _look(self, progress: Progress) -> None:
        limit, now = self._plan.limit, time.time()
        if (by := control.who_asked_for_save(self._layout)) is not None:
            self._ask(by, self._options.seconds(is_preempted=by == signal.SIGTERM.name))
        elif limit is not None:
            each, left = progress.seconds_per_step or 0.0, limit.ends - now
            is_end = left <= min(END_SECONDS, limit.lead(0.0))
            is_time = left <= limit.lead(self._save_seconds, each + self._latency)
            if is_end or (is_time and self._directory() is not None):  # which reads a file
                self._ask(f"{limit.source} ({duration(limit.seconds)})", left, is_limit=True)

    def _observe(self, progress: Progress) -> None:
        """Note when the last step was first seen, and how long a save takes."""
        step, not_before, looked = self._seen
        if progress.last.time > looked:
            if progress.step != step:
                not_before = looked
            self._seen = (progress.step, not_before, progress.last.time)
        phase, since = progress.first.get("phase"), progress.first.get("since", 0.0)
        if phase == phases.SAVING:
            self._saving = since
        elif self._saving is not None:
            self._save_seconds, self._saving = max(0.0, since - self._saving), None

    def _choose(self, request: _Request, now: float, progress: Progress) -> None:
        heartbeats = read_rank_records(self._layout, HeartbeatRecord)
        first = heartbeats.get(0, HeartbeatRecord())
        last = max((one.get("step", 0) for one in heartbeats.values()), default=0)
        if first.get("trained"):
            self._why_not = "its training was over, but the script had not ended"
            self._say(request, f"the training is over, and its script has {duration(request.within)} to end")
        elif last <= first.get("first_step", last):
            self._cannot(request, "it had not taken its first step, so there was nothing to save")
        elif (directory := self._directory()) is None:
            advice = self._plan.script.how_to_save
            self._cannot(request, "it is not known where its script saves", advice)
        else:
            step, not_before, looked = self._seen
            elapsed = now - (looked if last > step else not_before)
            each = progress.seconds_per_step
            if each is None and elapsed < 2 * self._latency:
                return  # until it is known whether steps are fast
            self._step = save_step(last, elapsed, each or elapsed, self._latency, request.within)
            self._write(request, directory)

    def _write(self, request: _Request, directory: str) -> None:
        try:
            control.write_save_at(self._layout, self._step, directory)
        except OSError as error:
            self._step = None
            self._cannot(request, f"{shown(self._layout.save_at)} could not be written: {error.strerror}")
        else:
            within = duration(request.within)
            self._say(request, f"saving after step {self._step}, then stopping, within {within}")

    def _directory(self) -> str | None:
        """Return where an engine saves first; empty if a Trainer or the script decides, None if unknown."""
        program = read_record(self._layout.rank_program(0), ProgramRecord)
        if program.get("trainer_args") or program.get("saved_checkpoint"):
            return ""
        return None if self._known is None else str(self._known)

    def _explain_end(self) -> None:
        """Record why the ranks ended without a checkpoint before the time for saving was over."""
        ranks = read_rank_records(self._layout, RankRecord).values()
        if any(rank.get("stopped_by") for rank in ranks):
            self._step, self._why_not = None, "its ranks were stopped before they had saved"
        elif self._step is None:
            self._why_not = "its ranks ended before a step to save could be chosen"

    def _cannot(self, request: _Request, why: str, advice: str = "") -> None:
        self._why_not, self._advice = why, advice
        self._end(request, f"ending the job: {why}")

    def _end(self, request: _Request, why: str) -> None:
        self._is_over = True
        self._say(request, why)
        self._stop()

    def _say(self, request: _Request, text: str) -> None:
        self._reporter.note(f"{request.by}: {text}")

    def _is_trained(self) -> bool:
        heartbeat = read_record(self._layout.rank_heartbeat(0), HeartbeatRecord)
        return 0 < (heartbeat.get("steps") or 0) <= heartbeat.get("step", 0)

    def _saved(self, request: _Request) -> Summary | None:
        folder = output_dir_of(RunFiles(self._layout.root)) or self._known
        if folder is None:
            return None
        since = request.at - CLOCK_SECONDS
        return newest_complete(folder, since, lambda saved: saved.step in (None, self._step))
