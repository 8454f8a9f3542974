"""Collect the evidence of how a run ended from its run directory."""

import re
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

from zlaunch.diagnosis.evidence import (
    ErrorEvidence,
    Evidence,
    HostEvidence,
    JobEvidence,
    RankEvidence,
    SaveEvidence,
    StallEvidence,
    filled,
)
from zlaunch.errors import ZlaunchError
from zlaunch.estimate.changes import CHECKPOINTING_FLAGS
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface, Handover, Script
from zlaunch.job.script_reader import read_script
from zlaunch.rundir import phases
from zlaunch.rundir.control import was_commanded
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import read_record
from zlaunch.rundir.record import (
    HeartbeatRecord,
    JobRecord,
    MachineSample,
    NodeRecord,
    RankRecord,
    SampleRecord,
    SlotRecord,
)
from zlaunch.rundir.run_files import RunFiles, read_run_files
from zlaunch.worker.sampling import disk_space

Choice = TypeVar("Choice", bound=Enum)

LOG_BYTES = 64 * 1024
"""How much of the end of each log counts as evidence."""


def collect_evidence(
    run_dir: RunDir,
    launcher_returncode: int,
    stopped_by: int | None,
    stall: StallEvidence | None = None,
    *,
    oom_kills: int = 0,
    is_diverged: bool = False,
    save: SaveEvidence | None = None,
) -> Evidence:
    """Collect all that is known; what cannot be read is left out.

    `oom_kills` is the count of this host for the whole job, because lost ranks cannot count.
    """
    files = read_run_files(run_dir.root)
    slots = {slot["rank"]: slot for slot in files.job.get("ranks", ()) if "rank" in slot}
    nodes = [*dict.fromkeys(slot.get("host", "") for slot in slots.values())]
    ranks = tuple(
        replace(_rank(run_dir, files, slot), node=nodes.index(slot.get("host", "")))
        for slot in slots.values()
    )
    launcher_log = tail(run_dir.launcher_log)
    hosts = tuple(filled(HostEvidence, read_record(file, NodeRecord)) for file in run_dir.node_records())
    is_open = stopped_by is None and stall is None and not is_diverged
    if is_open and not any(host.has_failed for host in hosts):  # after which the coordinator stops the others
        stopped_by = _stopped_by_others(ranks, launcher_returncode, launcher_log)
    return Evidence(
        job=_job(files),
        ranks=ranks,
        hosts=hosts,
        machines=_machines(ranks, files.ranks, oom_kills, disk_space(run_dir.root)[1]),
        launcher_returncode=launcher_returncode,
        launcher_log=launcher_log,
        stopped_by=stopped_by,
        by_command=was_commanded(run_dir),
        stall=stall,
        is_diverged=is_diverged,
        save=save,
    )


def _stopped_by_others(
    ranks: Sequence[RankEvidence], launcher_returncode: int, launcher_log: str
) -> int | None:
    """Find the signal with which somebody ended the launcher or a rank; None if a rank ended by itself.

    A launcher that fails by itself tells its ranks to stop, too, so it must say what it received.
    """
    told = [rank.stopped_by for rank in ranks if rank.stopped_by is not None]
    ended_alone = any(
        rank.stopped_by is None and not rank.finished and not rank.never_started for rank in ranks
    )
    was_killed = launcher_returncode == -signal.SIGKILL  # whatever then ended the others
    if ended_alone or was_killed or all(rank.finished for rank in ranks):
        return None
    if said := _RECEIVED.search(launcher_log):
        return int(said[1]) if said[1] else signal.Signals[said[2]]
    if launcher_log.rstrip().endswith("\nKeyboardInterrupt"):  # it came while the launcher itself started
        return signal.SIGINT
    if told and "ChildFailedError" in launcher_log:
        return min(told)
    # DeepSpeed's runner exits with the status of the node launcher: -15 becomes 241.
    passed_on = (
        {status: number for number in _STOPS for status in (128 + number, 256 - number)} if told else {}
    )
    return {**passed_on, **{-number: number for number in _STOPS}}.get(launcher_returncode)


_RECEIVED = re.compile(
    r"SignalException: Process \d+ got signal: (\d+)|Main process received (SIGINT|SIGTERM), exiting"
)
"""What torchrun and DeepSpeed's node launcher say of a signal."""

_STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def tail(file: Path, num_bytes: int = LOG_BYTES, after: int = 0) -> str:
    """Read the end of a log, and only what lies `after` so many bytes; empty if there is none."""
    try:
        with file.open("rb") as log:
            log.seek(max(after, file.stat().st_size - num_bytes))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _job(files: RunFiles) -> JobEvidence:
    job = files.job
    script = job.get("script") or [""]
    source = _source(Path(script[0]))
    return JobEvidence(
        launcher=job.get("launcher", ""),
        reach=job.get("reach", ""),
        stage=job.get("stage") or 0,
        offload={part: at for part, at in job.get("offload", {}).items() if at not in (None, "none")},
        micro_batch=job.get("micro_batch") or 1,
        grad_accum=job.get("grad_accum") or 1,
        world_size=files.world_size or 0,
        precision=job.get("precision") or "",
        accelerator=job.get("accelerator", ""),
        script=script[0],
        appended=_appended(job),
        interface=_named(ConfigInterface, job.get("interface")) or _interface(source),
        handover=_named(Handover, job.get("handover")) or Handover.ARGUMENTS,
        gradient_checkpointing=_recomputes(ScriptArgs.of(script[1:]), source),
        forecast=files.forecast or None,
        config=files.config,
        forced=tuple(job.get("forced", ())),
    )


def _appended(job: JobRecord) -> tuple[str, ...]:
    """Return the arguments that zlaunch added; none if the record does not say what the user typed."""
    typed, words = job.get("spec", {}).get("script_args"), job.get("script", [])[1:]
    return tuple(words[len(typed) :]) if isinstance(typed, list) and words[: len(typed)] == typed else ()


def _named(kind: type[Choice], value: str | None) -> Choice | None:
    """Look up a recorded value; older records do not have it."""
    return next((choice for choice in kind if choice.value == value), None)


def _interface(source: Script | None) -> ConfigInterface:
    return ConfigInterface.DEEPSPEED if source is None else source.interface


def _source(script: Path) -> Script | None:
    """Read the script as it is now; it may have been deleted since."""
    try:
        return read_script(script)
    except ZlaunchError:
        return None


def _recomputes(typed: ScriptArgs, source: Script | None) -> bool | None:
    """Whether activations are recomputed; None if the script may decide that itself."""
    if (given := typed.is_on(*CHECKPOINTING_FLAGS)) is not None:
        return given
    return None if source is None or any(map(source.mentions, CHECKPOINTING_FLAGS)) else False


def _rank(run_dir: RunDir, files: RunFiles, slot: SlotRecord) -> RankEvidence:
    rank = slot["rank"]
    record, heartbeat = files.ranks.get(rank, RankRecord()), files.heartbeats.get(rank, HeartbeatRecord())
    sample = files.samples.get(rank, SampleRecord())
    return RankEvidence(
        rank=rank,
        host=record.get("host") or slot.get("host", ""),
        returncode=record.get("returncode"),
        stopped_by=None if _was_exiting(record, heartbeat) else record.get("stopped_by"),
        ended=record.get("ended"),
        phase=heartbeat.get("phase", ""),
        step=heartbeat.get("step", 0),
        error=filled(ErrorEvidence, files.errors[rank]) if rank in files.errors else None,
        log=tail(run_dir.rank_log(rank)),
        stacks=tail(run_dir.rank_stacks(rank)),
        peak_rss_bytes=record.get("peak_rss_bytes") or sample.get("peak_rss_bytes"),
        heartbeat=heartbeat,
        sample=sample,
    )


def _was_exiting(record: RankRecord, heartbeat: HeartbeatRecord) -> bool:
    """Whether the script had reached its end before the rank was told to stop."""
    stopped = record.get("stopped_at")
    if stopped is None or "since" not in heartbeat:
        return False
    return heartbeat.get("phase") == phases.EXITING and heartbeat["since"] < stopped


def _machines(
    ranks: Sequence[RankEvidence], records: Mapping[int, RankRecord], kills_here: int, disk_free: int | None
) -> dict[str, MachineSample]:
    """Describe each host by the first sample of its ranks.

    All of them write to one disk; its free space now counts as well, since a full disk takes no sample.
    """
    machines: dict[str, MachineSample] = {}
    for host in dict.fromkeys(rank.host for rank in ranks):
        here = [rank for rank in ranks if rank.host == host]
        sample = next((found for rank in here if (found := rank.sample.get("machine"))), MachineSample())
        counted = [records.get(rank.rank, RankRecord()).get("oom_kills") or 0 for rank in here]
        free = [size for size in (sample.get("disk_free_bytes"), disk_free) if size is not None]
        kills = max(*counted, kills_here if host == socket.gethostname() else 0)
        machines[host] = {**sample, "oom_kills": kills, "disk_free_bytes": min(free, default=None)}
    return machines
