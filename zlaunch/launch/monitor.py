"""Following a job while it runs: one quiet line, the output of chosen ranks, metrics, and stalls."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from zlaunch import console
from zlaunch.diagnosis.collect import tail
from zlaunch.diagnosis.evidence import StallEvidence
from zlaunch.diagnosis.stacks import last_stack, odd_ranks, place
from zlaunch.diagnosis.stall import silence, stall_lines
from zlaunch.job.spec import MonitorOptions
from zlaunch.launch import rundir_writer
from zlaunch.launch.log_tail import LogTail
from zlaunch.launch.progress import Progress, Snapshot, no_progress, phase_shown, plain_line, progress_line
from zlaunch.rundir import control, phases
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import read_rank_records, read_record
from zlaunch.rundir.record import HeartbeatRecord, MetricsRecord, SampleRecord

LOOK_SECONDS = 1.0
LOOK_SHARE = 0.05
"""The part of the time that looking at all ranks may take: it is rarer for many, or on a slow file system."""

METRICS_SECONDS = 5.0
METRICS_SECONDS_PER_RANK = 0.3
"""Ranks → the least time between two lines of metrics: a day's are some tens of MiB, however many."""

PLAIN_SECONDS = 30.0
"""How often a line is written where there is no terminal."""

ANSWER_SECONDS = 5.0
"""How long ranks are given to write their stacks: they look for the question every two seconds."""


class JobMonitor:
    """What is seen of a running job, and shown."""

    def __init__(
        self, layout: RunDir, world_size: int, manner: MonitorOptions, stop: Callable[[], None]
    ) -> None:
        """Begin to watch; `stop` ends the job."""
        self._layout = layout
        self._manner = manner
        self._stop = stop
        self._course = no_progress(time.monotonic())
        self._world_size = world_size
        shown = manner.show_ranks
        several = len(shown) > 1
        self._followers = [LogTail(layout.rank_log(rank), f"[{rank}] " * several) for rank in shown]
        self._quiet = not shown
        self._progress = console.ProgressLine()
        self._next_look = self._next_metrics = self._plain = 0.0
        self._milestones = 0
        self._asked_at: float | None = None
        self._is_reported = False
        self._written: dict[int, int] = {}
        """How many bytes of stacks each rank had written when they were asked."""
        self._is_attachable = self._is_answered = False
        self.stall: StallEvidence | None = None
        """The last stall; at the end, unless steps were taken after it."""

    def tick(self) -> bool:
        """Show what is new; look at all ranks now and then, and say whether that was done."""
        for follower in self._followers:
            follower.pump()
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._look(now)
        took = time.monotonic() - now
        self._next_look = now + max(LOOK_SECONDS, took / LOOK_SHARE)
        self._show(now)
        self._heed_debugger()
        self._heed_stall(now)
        return True

    def answer_interrupt(self) -> None:
        """Say once that Ctrl-C was heard, and what a second one does."""
        if not self._is_answered:
            self._is_answered = True
            self._say(["ending the ranks; Ctrl-C again ends them at once"])

    def _look(self, now: float) -> None:
        samples = self._samples() if now >= self._next_metrics else {}
        computed = [float(sample.get("cpu_seconds") or 0.0) for sample in samples.values()]
        self._course = self._course.after(
            Snapshot(now, self._heartbeats(), sum(computed) if computed else None)
        )
        if samples:
            self._next_metrics = now + max(METRICS_SECONDS, METRICS_SECONDS_PER_RANK * self._world_size)
            rundir_writer.append_metrics(self._layout, self._metrics(samples))

    def end(self) -> None:
        """Show what came last, and take the line away."""
        for follower in self._followers:
            follower.finish()
        self._course = self._course.after(Snapshot(time.monotonic(), self._heartbeats()))
        if self.stall is not None and not self.stall.ended_job and self._course.step != self.stall.step:
            self.stall = None
        rundir_writer.append_metrics(self._layout, self._metrics(self._samples()))
        self._progress.clear()

    def _heartbeats(self) -> dict[int, HeartbeatRecord]:
        return read_rank_records(self._layout, HeartbeatRecord)

    def _samples(self) -> dict[int, SampleRecord]:
        return read_rank_records(self._layout, SampleRecord)

    def _show(self, now: float) -> None:
        if console.is_interactive():
            if self._quiet:
                rss = read_record(self._layout.rank_sample(0), SampleRecord).get("rss_bytes")
                self._progress.show(progress_line(self._course, self._world_size, rss, console.width() - 1))
        elif self._course.step:
            if now - self._plain >= PLAIN_SECONDS:
                self._plain = now
                self._say([plain_line(self._course, self._world_size)])
        elif (reached := milestone(self._course)) > self._milestones:
            self._milestones, self._plain = reached, now
            self._say([phase_shown(self._course.first)])

    def _say(self, lines: Sequence[str]) -> None:
        """Say something, in lines of its own: a line that the job has begun is ended first."""
        self._progress.clear()
        if console.is_one_stream() and any(follower.is_within_a_line for follower in self._followers):
            console.say("")
            for follower in self._followers:
                follower.is_within_a_line = False
        for line in lines:
            console.say(line)

    def _metrics(self, samples: Mapping[int, SampleRecord]) -> MetricsRecord:
        course, heartbeats = self._course, self._course.look.pulses
        first = course.first
        machines = {
            sample.get("host", ""): machine
            for sample in samples.values()
            if (machine := sample.get("machine"))
        }
        return {
            "time": time.time(),
            "step": first.get("step"),
            "steps": first.get("steps"),
            "phase": first.get("phase"),
            "loss": first.get("loss"),
            "learning_rate": first.get("learning_rate"),
            "tokens_per_second": course.tokens_per_second(self._world_size),
            "seconds_left": course.seconds_left,
            "ranks": [
                {
                    "rank": rank,
                    "phase": heartbeats.get(rank, {}).get("phase"),
                    "step": heartbeats.get(rank, {}).get("step"),
                    "rss_bytes": sample.get("rss_bytes"),
                    "gpu_used_bytes": (sample.get("gpu") or {}).get("used_bytes"),
                }
                for rank, sample in samples.items()
            ],
            "machines": machines,
        }

    def _heed_debugger(self) -> None:
        """Say once when an editor can attach: before, it would be refused."""
        rank = self._manner.debugged
        is_waiting = self._course.look.pulses.get(rank or 0, {}).get("phase") == phases.ATTACHING
        if rank is not None and is_waiting and not self._is_attachable:
            self._is_attachable = True
            self._say([f"rank {rank} listens: attach now"])

    def _heed_stall(self, now: float) -> None:
        if self._manner.debugged is not None:
            return
        silent = self._course.stalled_seconds(now, self._manner.stall_after)
        if silent is None:
            self._asked_at, self._is_reported = None, False
        elif self._asked_at is None:
            self._asked_at = now
            self._written = {rank: self._stacks_size(rank) for rank in range(self._world_size)}
            with contextlib.suppress(OSError, ValueError):
                control.ask_for_stacks(self._layout)
        elif self._is_reported and self.stall is not None:
            self.stall = replace(self.stall, seconds=silent)
        elif now - self._asked_at >= ANSWER_SECONDS:
            self._is_reported = True
            self._report_stall(silent)

    def _stacks_size(self, rank: int) -> int:
        with contextlib.suppress(OSError):
            return self._layout.rank_stacks(rank).stat().st_size
        return 0

    def _report_stall(self, silent: float) -> None:
        stacks = {
            rank: last_stack(tail(self._layout.rank_stacks(rank), after=size))
            for rank, size in self._written.items()
        }
        self.stall = StallEvidence(
            seconds=silent,
            step=self._course.step,
            where={rank: place(stack) if stack else self._silence(rank) for rank, stack in stacks.items()},
            odd=odd_ranks(stacks),
            ended_job=self._manner.on_stall == "stop",
        )
        lines = stall_lines(self.stall, self._course.seconds_per_step, console.width())
        self._say([*lines, f"all stacks are in {os.path.relpath(self._layout.ranks)}"])
        if self.stall.ended_job:
            self._stop()

    def _silence(self, rank: int) -> str:
        file = self._layout.rank_sample(rank)
        age = 0.0
        with contextlib.suppress(OSError):  # both moments are those of the file system, whoever wrote it
            age = self._layout.ask_stacks.stat().st_mtime + ANSWER_SECONDS - file.stat().st_mtime
        return silence(read_record(file, SampleRecord), age)


def milestone(course: Progress) -> int:
    """Count how far a job has come before its first step; what it goes back to is not worth a line."""
    phase = course.first.get("phase")
    return phases.ALL.index(phase) if phase in phases.ALL and phase != phases.EXITING else 0
