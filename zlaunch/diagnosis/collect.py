"""Collect the evidence of how a run ended from its run directory."""

import os
import re
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

from zlaunch.checkpoint.pointer import pointers_in
from zlaunch.diagnosis.evidence import (
    DiskEvidence,
    ErrorEvidence,
    Evidence,
    HostEvidence,
    JobEvidence,
    RankEvidence,
    SaveEvidence,
    filled,
)
from zlaunch.diagnosis.log_text import exception_in
from zlaunch.diagnosis.root_cause import first_stopped, follows, lost_a_stopped_rank
from zlaunch.diagnosis.stall import StallEvidence
from zlaunch.errors import ZlaunchError
from zlaunch.estimate.changes import CHECKPOINTING_FLAGS
from zlaunch.files import open_regular, shown
from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs
from zlaunch.job.model import model_flag
from zlaunch.job.script import RESUME, ConfigInterface, Handover, Script
from zlaunch.job.script_reader import read_script
from zlaunch.rundir import phases
from zlaunch.rundir.control import stopping_command
from zlaunch.rundir.printed_records import printed_records, without_records
from zlaunch.rundir.read import read_record
from zlaunch.rundir.record import (
    HeartbeatRecord,
    JobRecord,
    MachineSample,
    NodeRecord,
    PrintedRecord,
    RankRecord,
    SampleRecord,
    SlotRecord,
)
from zlaunch.rundir.run_files import RunFiles
from zlaunch.worker.sampling import NOT_COUNTED, OomKills, disk_space

Choice = TypeVar("Choice", bound=Enum)

LOG_BYTES = 64 * 1024
"""How much of the end of each log counts as evidence."""

LAUNCHER_LOG_BYTES = 1 << 20
"""The same for the launcher's, where ranks print what they cannot record."""


@dataclass(frozen=True, slots=True)
class LauncherEnd:
    """What only the zlaunch knows that has waited for the launcher."""

    returncode: int
    stopped_by: int | None = None
    """The signal that zlaunch was stopped with."""
    stall: StallEvidence | None = None
    is_diverged: bool = False
    """Whether zlaunch ended the job because its loss was not finite any more."""
    save: SaveEvidence | None = None
    stopped_at: float | None = None
    oom_kills: OomKills = NOT_COUNTED
    """Those of this host during the whole job: lost ranks cannot count theirs."""
    log: str | None = None
    """The end of the launcher's log, which may be all that is left; None if it is read from the run."""
    started: Mapping[int, RankRecord] = field(default_factory=dict)
    """The records that ranks wrote when they started."""


def collect_evidence(run: RunFiles, end: LauncherEnd) -> Evidence:
    """Collect all that is known; what cannot be read is left out."""
    run = run.holding(ranks={**end.started, **run.ranks})
    launcher_log = tail(run.paths.launcher_log, LAUNCHER_LOG_BYTES) if end.log is None else end.log
    stopped_by = end.stopped_by
    is_open = stopped_by is None and end.stall is None and not end.is_diverged
    printed = printed_records(launcher_log)
    launcher_log = without_records(launcher_log)[-LOG_BYTES:]
    has_succeeded = is_open and end.returncode == 0 and end.log is not None
    are_finished = has_succeeded and _proves_success(run, launcher_log)
    # A directory that went as soon as the ranks had started has shown no record of some of them.
    takes_records = end.log is None or run.paths.takes_records
    is_lost_unseen = not takes_records and _RANK_KILLED.search(launcher_log) is not None
    ranks = _rank_evidence(run, printed, are_finished=are_finished, is_lost_unseen=is_lost_unseen)
    hosts = tuple(filled(HostEvidence, read_record(file, NodeRecord)) for file in run.paths.node_records())
    stopped_at, stopped_on = end.stopped_at, socket.gethostname()
    if is_open and not any(host.has_failed for host in hosts):  # after which the coordinator stops the others
        first = first_stopped(ranks)
        stopped_by = _stopped_by_others(ranks, first, end.returncode, launcher_log)
        if first is not None:
            stopped_at, stopped_on = first.stopped_at, first.host
    return Evidence(
        job=job_evidence(run),
        ranks=ranks,
        hosts=hosts,
        machines=_machines(ranks, disk_space(run.root)[1]),
        oom_kills=_oom_kills(ranks, run.ranks, end.oom_kills),
        launcher_returncode=end.returncode,
        launcher_log=launcher_log,
        stopped_by=stopped_by,
        stopped_at=stopped_at,
        stopped_on=stopped_on,
        command=stopping_command(run.paths),
        stall=end.stall,
        is_diverged=end.is_diverged,
        save=end.save,
        save_disk=_save_disk(run),
        takes_records=takes_records or ((bool(printed) or is_lost_unseen) and not _is_remote(run)),
    )


def _is_remote(run: RunFiles) -> bool:
    """Whether ranks are on other hosts, from which only the last part of a log arrives."""
    return len({slot.get("host") for slot in run.job.get("ranks", ())}) > 1


def _proves_success(run: RunFiles, launcher_log: str) -> bool:
    """Whether a launcher that returned 0 shows that ranks without a record have finished.

    It does where no record can be written. DeepSpeed's runner also returns 0 if its node launcher was killed;
    that says which ranks have succeeded, unless its log cannot be written either.
    """
    log = run.paths.launcher_log
    is_silent = log.exists() and not os.access(log, os.W_OK)
    says_success = run.job.get("launcher") != "deepspeed" or is_silent or "exits successfully" in launcher_log
    return not run.paths.takes_records and says_success


def _rank_evidence(
    run: RunFiles, printed: Mapping[int, PrintedRecord], *, are_finished: bool, is_lost_unseen: bool
) -> tuple[RankEvidence, ...]:
    slots = {slot["rank"]: slot for slot in run.job.get("ranks", ()) if "rank" in slot}
    nodes = list(dict.fromkeys(slot.get("host", "") for slot in slots.values()))
    ranks = []
    for rank, slot in slots.items():
        evidence = _rank(run, slot, nodes.index(slot.get("host", "")), printed.get(rank, PrintedRecord()))
        if are_finished and evidence.returncode is None:
            evidence = replace(evidence, returncode=0)
        if is_lost_unseen and evidence.never_started:
            evidence = replace(evidence, has_started=True)
        ranks.append(evidence)
    return tuple(ranks)


def _stopped_by_others(
    ranks: Sequence[RankEvidence], first: RankEvidence | None, launcher_returncode: int, launcher_log: str
) -> int | None:
    """Find the signal with which somebody ended the launcher or a rank; None if a rank ended by itself.

    `first` is the rank that was told to stop first. A launcher that fails by itself stops its ranks, too, so
    its log must say what it received, or that a rank has ended.
    """
    alone = [
        rank for rank in ranks if rank.stopped_by is None and not rank.finished and not rank.never_started
    ]
    if launcher_returncode < 0:  # then the kernel kills rank programs, which cannot record an end
        alone = [rank for rank in alone if rank.returncode is not None]
    ended_alone = not all(_follows_from(rank, first, ranks) for rank in alone)
    was_killed = launcher_returncode == -signal.SIGKILL  # whatever then ended the others
    if ended_alone or was_killed or all(rank.finished for rank in ranks):
        return None
    if -launcher_returncode in _STOPS:  # the others were told to stop after that
        return -launcher_returncode
    if received := _RECEIVED.search(launcher_log):
        number, name = received.groups()
        return int(number or signal.Signals[name])
    if launcher_log.rstrip().endswith("\nKeyboardInterrupt"):  # it came while the launcher itself started
        return signal.SIGINT
    passed_on = [rank.stopped_by for rank in ranks if rank.stopped_by is not None]
    has_lost_rank = _RANK_ENDED.search(launcher_log) is not None
    if has_lost_rank and any(rank.never_started for rank in ranks):
        return None  # which ended before it could record why
    if has_lost_rank and first is not None:
        return first.stopped_by
    if has_lost_rank and passed_on and not alone:
        return min(passed_on)
    if alone:
        return None
    statuses: dict[int, int] = {}
    if passed_on:  # DeepSpeed's runner exits with the status of the node launcher: -15 becomes 241
        statuses = {256 - number: number for number in _STOPS}
        statuses |= {128 + number: number for number in _STOPS}
    return statuses.get(launcher_returncode)


def _follows_from(rank: RankEvidence, first: RankEvidence | None, ranks: Sequence[RankEvidence]) -> bool:
    return (first is not None and follows(rank, first)) or lost_a_stopped_rank(rank, ranks)


_RECEIVED = re.compile(
    r"SignalException: Process \d+ got signal: (\d+)|Main process received (SIGINT|SIGTERM), exiting"
)
"""What torchrun and DeepSpeed's node launcher say of a signal."""

_RANK_ENDED = re.compile(r"ChildFailedError|exits with return code = ")
"""What torchrun and DeepSpeed's node launcher say when they end because a rank has ended."""

_RANK_KILLED = re.compile(r"failed \(exitcode: -9\)|exits with return code = -9\b")
"""What they say of a rank program that was killed."""

_STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def tail(file: Path, num_bytes: int = LOG_BYTES, after: int = 0) -> str:
    """Read the end of a log, and only what lies `after` so many bytes; empty if there is none."""
    try:
        with open_regular(file) as log:
            log.seek(max(after, file.stat().st_size - num_bytes))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""


_NAMES_WORKERS = re.compile(r"\bnum_workers\s*=\s*(?!0\b|None\b)")


def job_evidence(run: RunFiles) -> JobEvidence:
    """Describe the job of a run: as its engine trained, or else as it was planned."""
    job, engine = run.job, run.program.get("engine", {})
    script, *words = job.get("script") or [""]
    source = _source(Path(script))
    interface = source.interface if source else ConfigInterface.DEEPSPEED
    return JobEvidence(
        launcher=job.get("launcher", ""),
        reach=job.get("reach", ""),
        stage=engine.get("stage", job.get("stage")) or 0,
        offload={part: at for part, at in job.get("offload", {}).items() if at not in (None, "none")},
        micro_batch=engine.get("micro_batch") or job.get("micro_batch") or 1,
        grad_accum=engine.get("grad_accum") or job.get("grad_accum") or 1,
        world_size=run.world_size or 0,
        precision=job.get("precision") or "",
        accelerator=job.get("accelerator", ""),
        script=script,
        appended=_appended(job, words),
        interface=_recorded(ConfigInterface, job.get("interface")) or interface,
        handover=_recorded(Handover, job.get("handover")) or Handover.ARGUMENTS,
        gradient_checkpointing=_recomputed(run, ScriptArgs.of(words), source),
        names_workers=source is not None and _NAMES_WORKERS.search(source.source) is not None,
        forecast=run.forecast or None,
        config=engine.get("ds_config") or run.config,
        forced=tuple(job.get("forced", ())),
        pointers=_pointers(job, ScriptArgs.of(words)),
    )


def _pointers(job: JobRecord, args: ScriptArgs) -> dict[str, str]:
    pointers: dict[str, str] = {}
    for named in (model_flag(args), job.get("spec", {}).get("resume"), args.value(RESUME)):
        if isinstance(named, str):
            folder = Path(job.get("working_directory", ""), named)
            pointers.update((shown(file), text) for file, text in pointers_in(folder))
    return pointers


def _appended(job: JobRecord, words: list[str]) -> tuple[str, ...]:
    typed = job.get("spec", {}).get("script_args")
    if not isinstance(typed, list) or words[: len(typed)] != typed:
        return ()
    return tuple(words[len(typed) :])


def _recorded(kind: type[Choice], value: str | None) -> Choice | None:
    return next((choice for choice in kind if choice.value == value), None)


def _source(script: Path) -> Script | None:
    try:
        return read_script(script)
    except ZlaunchError:
        return None


def _recomputed(run: RunFiles, typed: ScriptArgs, source: Script | None) -> bool | None:
    """Whether activations were recomputed; None if the script may have decided that itself."""
    if (told := run.program.get("engine", {}).get("gradient_checkpointing")) is not None:
        return told
    recorded = run.program.get("trainer_args", {})
    if trained := [value for name in CHECKPOINTING_FLAGS if isinstance(value := recorded.get(name), bool)]:
        return any(trained)
    if (asked := typed.is_on(*CHECKPOINTING_FLAGS)) is not None:
        return asked
    if source is None or any(map(source.mentions, CHECKPOINTING_FLAGS)):
        return None
    return False


def _rank(run: RunFiles, slot: SlotRecord, node: int, printed: PrintedRecord) -> RankEvidence:
    rank = slot["rank"]
    record = printed.get("record") or run.ranks.get(rank, RankRecord())
    heartbeat = run.heartbeats.get(rank, HeartbeatRecord())
    sample, error = run.samples.get(rank, SampleRecord()), run.errors.get(rank)
    log = tail(run.paths.rank_log(rank)) or printed.get("log", "")
    stopped_by, raised = record.get("stopped_by"), filled(ErrorEvidence, error) if error else None
    if _was_exiting(record, heartbeat):
        stopped_by = None
        if printed and record.get("returncode"):  # the exception could not be recorded either
            raised = raised or exception_in(log)
    return RankEvidence(
        rank=rank,
        host=record.get("host") or slot.get("host", ""),
        has_started="pid" in record,
        returncode=record.get("returncode"),
        stopped_by=stopped_by,
        stopped_at=record.get("stopped_at"),
        signalled=record.get("signalled", False),
        ended=record.get("ended"),
        phase=heartbeat.get("phase", ""),
        step=heartbeat.get("step", 0),
        error=raised,
        log=log,
        stacks=tail(run.paths.rank_stacks(rank)),
        peak_rss_bytes=record.get("peak_rss_bytes") or sample.get("peak_rss_bytes"),
        heartbeat=heartbeat,
        sample=sample,
        node=node,
    )


def _was_exiting(record: RankRecord, heartbeat: HeartbeatRecord) -> bool:
    stopped = record.get("stopped_at")
    if stopped is None or "since" not in heartbeat:
        return False
    return heartbeat.get("phase") == phases.EXITING and heartbeat["since"] < stopped


def _oom_kills(
    ranks: Sequence[RankEvidence], records: Mapping[int, RankRecord], here: OomKills
) -> dict[str, OomKills]:
    """Count the kills on each host: the most that any of its ranks, or zlaunch, has counted."""
    kills: dict[str, OomKills] = {}
    for host in dict.fromkeys(rank.host for rank in ranks):
        ended = [records.get(rank.rank, RankRecord()) for rank in ranks if rank.host == host]
        counted = [OomKills(rank.get("group_oom_kills"), rank.get("machine_oom_kills")) for rank in ended]
        if host == socket.gethostname():
            counted.append(here)
        kills[host] = OomKills(
            max((count.group for count in counted if count.group is not None), default=None),
            max((count.machine for count in counted if count.machine is not None), default=None),
        )
    return kills


def named_output_dir(run: RunFiles) -> Path | None:
    """Return the directory that the Trainer of a run was told to save to; None if it is not recorded."""
    reported = run.program.get("trainer_args", {}).get("output_dir")
    given = reported or ScriptArgs.of(run.job.get("script", [])).value("output_dir")
    if not isinstance(given, str):
        return None
    return Path(run.job.get("working_directory", ""), given)


def _save_disk(run: RunFiles) -> DiskEvidence | None:
    """Measure the file system of the checkpoints; other hosts may have another one of that name."""
    here = socket.gethostname()
    if any(slot.get("host") != here for slot in run.job.get("ranks", ())):
        return None
    folder, saved = named_output_dir(run), run.program.get("saved_checkpoint")
    if saved:
        folder = Path(run.job.get("working_directory", ""), saved).parent
    if folder is None:
        return None
    total, free = disk_space(folder)
    if total is None or free is None:
        return None
    return DiskEvidence(folder, total, free)


def _machines(ranks: Sequence[RankEvidence], disk_free: int | None) -> dict[str, MachineSample]:
    """Describe each host by the first sample of its ranks.

    All of them write to one disk; its free space now counts as well, since a full disk takes no sample.
    """
    machines: dict[str, MachineSample] = {}
    for host in dict.fromkeys(rank.host for rank in ranks):
        here = [rank for rank in ranks if rank.host == host]
        samples = [machine for rank in here if (machine := rank.sample.get("machine"))]
        sample = samples[0] if samples else MachineSample()
        free = [size for size in (sample.get("disk_free_bytes"), disk_free) if size is not None]
        machines[host] = {**sample, "disk_free_bytes": min(free, default=None)}
    return machines
