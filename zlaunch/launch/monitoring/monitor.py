"""Monitor a running job: progress, the output of chosen ranks, metrics, and stalls."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from zlaunch.diagnosis.collect import tail
from zlaunch.diagnosis.signatures.nan import LostWork, discarded_gradients, idle_steps, skipped_steps
from zlaunch.diagnosis.stacks import last_stack, odd_ranks, place
from zlaunch.diagnosis.stall import StallEvidence, silence
from zlaunch.errors import Finding, Severity
from zlaunch.job.spec import MonitorOptions
from zlaunch.launch import rundir_writer
from zlaunch.launch.monitoring.log_tail import LogTail
from zlaunch.launch.monitoring.progress import Progress, Snapshot, no_progress
from zlaunch.launch.monitoring.speed_watch import SpeedWatch
from zlaunch.launch.reporter import Reporter
from zlaunch.rundir import control, phases
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import read_rank_records, read_record
from zlaunch.rundir.record import HeartbeatRecord, MetricsRecord, RankRecord, SampleRecord, loss_of
from zlaunch.rundir.run_files import RunFiles
from zlaunch.runs.profile import done_before
from zlaunch.worker.cleanup import buffers_here

SAMPLE_SECONDS = 1.0
SAMPLE_SHARE = 0.05
"""Maximum share of time for sampling; it is less frequent with many ranks or a slow file system."""

METRICS_SECONDS = 5.0
METRICS_SECONDS_PER_RANK = 0.3
"""Minimum time between two lines of metrics, per rank: some tens of MiB a day for any number of ranks."""

NAN_STEPS = 5
"""A loss that is not finite for so many steps stays so; one that overflowed in fp16 recovers after a few."""

ANSWER_SECONDS = 5.0
"""How long ranks have to write their stacks: they check for the request every two seconds."""


class JobMonitor:
    """Samples the ranks of a running job and reports what it finds."""

    def __init__(
        self,
        layout: RunDir,
        world_size: int,
        options: MonitorOptions,
        stop: Callable[[], None],
        reporter: Reporter,
    ) -> None:
        """Begin to monitor; `stop` ends the job."""
        self._layout = layout
        self._world_size = world_size
        self._options = options
        self._stop = stop
        self._reporter = reporter
        self._progress = no_progress(time.monotonic())
        self._speed = SpeedWatch(layout.root, time.monotonic(), reporter)
        self.is_saving = False
        """Whether the job was asked to save and stop, which has a time limit of its own: it cannot stall."""
        several = len(options.show_ranks) > 1
        self._logs = [
            LogTail(
                layout.rank_log(rank), reporter.job_output, f"[{rank}] " * several, is_plain=options.is_plain
            )
            for rank in options.show_ranks
        ]
        self._next_sample = self._next_metrics = 0.0
        self._asked_at: float | None = None
        self._is_reported = False
        self.started: dict[int, RankRecord] = {}
        """The first record of each rank: the run directory may be gone at the end."""
        self._sampled: dict[int, float | None] = {}
        """When each rank took its last sample; a host that is lost takes none."""
        self._stacks_before: dict[int, int] = {}
        """Bytes of stacks that each rank had written before it was asked for them."""
        self._is_attachable = self._is_confirmed = self._is_compiling = self._is_profile_checked = False
        self._reported_losses: set[str] = set()
        """What was reported of steps and gradients without effect."""
        self.stall: StallEvidence | None = None
        """The last stall; after the end, only if no step followed it."""
        self.is_diverged = False
        """Whether the job was ended because its loss was not finite any more."""

    def tick(self) -> bool:
        """Pass on new output; return whether it was time to sample the ranks."""
        for log in self._logs:
            log.pump()
        now = time.monotonic()
        if now < self._next_sample:
            return False
        self._sample(now)
        took = time.monotonic() - now
        self._next_sample = now + max(SAMPLE_SECONDS, took / SAMPLE_SHARE)
        sample = read_record(self._layout.rank_sample(0), SampleRecord)
        self._progress = replace(self._progress, sample=sample)
        self._reporter.progressed(self._progress, self._world_size)
        self._check_debugger()
        self._check_profile()
        self._check_loss()
        self._check_gradients()
        self._check_stall(now)
        self._speed.tick(now)
        self._progress = replace(self._progress, mfu=self._speed.mfu)
        return True

    @property
    def progress(self) -> Progress:
        """The state of the job when it was last sampled."""
        return self._progress

    @property
    def buffers(self) -> list[str]:
        """What ranks of this host may have left in shared memory."""
        return list(buffers_here(self.started.values()))

    def confirm_interrupt(self) -> None:
        """Report once that Ctrl-C was received, and what a second one does."""
        if not self._is_confirmed:
            self._is_confirmed = True
            self._reporter.note("ending the ranks; Ctrl-C again ends them at once")

    def end(self) -> None:
        """Pass on the last output and write the last metrics."""
        for log in self._logs:
            log.finish()
        self._note_started()
        self._progress = self._progress.after(Snapshot(time.monotonic(), self._heartbeats()))
        if self.stall is not None and not self.stall.ended_job and self._progress.step != self.stall.step:
            self.stall = None
        rundir_writer.append_metrics(self._layout, self._metrics(self._samples()))

    def _note_started(self) -> None:
        if sum("pid" in record for record in self.started.values()) < self._world_size:
            self.started |= read_rank_records(self._layout, RankRecord)

    def _sample(self, now: float) -> None:
        self._note_started()
        samples, cpu_seconds = {}, None
        if now >= self._next_metrics:
            samples = self._samples()
        if samples:
            cpu_seconds = sum(float(sample.get("cpu_seconds") or 0.0) for sample in samples.values())
            self._is_compiling = any(
                sample.get("compiling") and sample.get("time") != self._sampled.get(rank)
                for rank, sample in samples.items()
            )
            self._sampled = {rank: sample.get("time") for rank, sample in samples.items()}
        snapshot = Snapshot(now, self._heartbeats(), cpu_seconds, self._is_compiling)
        self._progress = self._progress.after(snapshot)
        if samples:
            self._next_metrics = now + max(METRICS_SECONDS, METRICS_SECONDS_PER_RANK * self._world_size)
            rundir_writer.append_metrics(self._layout, self._metrics(samples))

    def _heartbeats(self) -> dict[int, HeartbeatRecord]:
        return read_rank_records(self._layout, HeartbeatRecord)

    def _samples(self) -> dict[int, SampleRecord]:
        return read_rank_records(self._layout, SampleRecord)

    def _metrics(self, samples: Mapping[int, SampleRecord]) -> MetricsRecord:
        progress, heartbeats = self._progress, self._progress.last.heartbeats
        first = progress.first
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
            "loss": loss_of(first),
            "learning_rate": first.get("learning_rate"),
            "tokens_per_second": progress.tokens_per_second(self._world_size),
            "mfu": progress.mfu,
            "seconds_left": progress.seconds_left,
            "seconds_per_step": progress.seconds_per_step,
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

    def _check_debugger(self) -> None:
        """Report once when an editor can attach: earlier attempts would be refused."""
        rank = self._options.debugged
        is_waiting = self._progress.last.heartbeats.get(rank or 0, {}).get("phase") == phases.ATTACHING
        if rank is not None and is_waiting and not self._is_attachable:
            self._is_attachable = True
            self._reporter.note(f"rank {rank} listens: attach now")

    def _check_profile(self) -> None:
        """Report once that the steps to profile were done before the run began."""
        if not self._is_profile_checked and self._progress.first.get("first_step") is not None:
            self._is_profile_checked = True
            if (why := done_before(RunFiles(self._layout.root))) is not None:
                self._reporter.note(why)

    def _check_loss(self) -> None:
        """End the job if every loss that was seen in the last steps is not finite."""
        first = self._progress.first
        since, last = first.get("loss_lost"), first.get("seen_loss_step")
        if not self._options.ends_on_nan or self.is_diverged or since is None or last is None:
            return
        if last - since + 1 >= NAN_STEPS:
            self.is_diverged = True
            loss = loss_of(first)
            self._reporter.note(f"the loss is {loss} since step {since}: ending the job")
            self._stop()

    def _check_gradients(self) -> None:
        """Report once that steps or gradients have no effect."""
        first = self._progress.first
        self._report_lost_work("gradients-discarded", discarded_gradients(first))
        self._report_lost_work("steps-skipped", skipped_steps(first))
        self._report_lost_work("learning-rate-zero", idle_steps(first))

    def _report_lost_work(self, code: str, lost: LostWork | None) -> None:
        if lost is not None and code not in self._reported_losses:
            self._reported_losses.add(code)
            message, hint = "; ".join([lost.cause, *lost.facts]), ", ".join(lost.advice)
            self._reporter.warn([Finding(code, message, hint, severity=Severity.IGNORED)])

    def _check_stall(self, now: float) -> None:
        if self._options.debugged is not None or self.is_saving:
            return
        silent = self._progress.stalled_seconds(now, self._options.stall_after)
        if silent is None:
            self._asked_at, self._is_reported = None, False
        elif self._asked_at is None:
            self._asked_at = now
            self._stacks_before = {rank: self._stacks_size(rank) for rank in range(self._world_size)}
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
        stacks, where = {}, {}
        for rank, size in self._stacks_before.items():
            stacks[rank] = stack = last_stack(tail(self._layout.rank_stacks(rank), after=size))
            if stack:
                where[rank] = place(stack)
            else:
                where[rank] = self._silence(rank)
        self.stall = StallEvidence(
            seconds=silent,
            step=self._progress.step,
            where=where,
            odd=odd_ranks(stacks),
            ended_job=self._options.on_stall == "stop",
        )
        self._reporter.stalled(self.stall, self._progress.seconds_per_step, self._layout.ranks)
        if self.stall.ended_job:
            self._stop()

    def _silence(self, rank: int) -> str:
        file = self._layout.rank_sample(rank)
        age = 0.0
        with contextlib.suppress(OSError):  # both times are those of the file system, whichever host wrote it
            age = self._layout.ask_stacks.stat().st_mtime + ANSWER_SECONDS - file.stat().st_mtime
        return silence(read_record(file, SampleRecord), age)
