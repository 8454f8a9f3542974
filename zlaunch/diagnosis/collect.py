"""Reading what a run left in its directory, as evidence of how it ended."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zlaunch.diagnosis.evidence import (
    ErrorEvidence,
    Evidence,
    JobEvidence,
    MachineEvidence,
    RankEvidence,
    StallEvidence,
)
from zlaunch.errors import ZlaunchError
from zlaunch.estimate.changes import CHECKPOINTING_FLAGS
from zlaunch.files import read_object
from zlaunch.job.script import ConfigInterface, Script, read_script
from zlaunch.job.trainer_args import flags, is_switched_on
from zlaunch.rundir import phases
from zlaunch.rundir.control import was_commanded
from zlaunch.rundir.layout import RunDir
from zlaunch.worker.sampling import disk_space

LOG_BYTES = 64 * 1024
"""How much of the end of each log counts as evidence."""


def collect_evidence(
    layout: RunDir,
    launcher_returncode: int,
    stopped_by: int | None,
    stall: StallEvidence | None = None,
    oom_kills: int = 0,
) -> Evidence:
    """Collect all that is known; what cannot be read is left out.

    `oom_kills` were counted on this host around the whole job: ranks that are lost could not count.
    """
    job = read_object(layout.job)
    slots = job.get("ranks", ())
    records = [read_object(layout.rank_record(int(slot["rank"]))) for slot in slots]
    ranks = tuple(_rank(layout, slot, record) for slot, record in zip(slots, records, strict=True))
    disk = dict(disk_space("disk", layout.root))
    return Evidence(
        job=_job(layout, job),
        ranks=ranks,
        machines=tuple(_machines(ranks, records, {socket.gethostname(): oom_kills}, disk)),
        launcher_returncode=launcher_returncode,
        launcher_log=tail(layout.launcher_log),
        stopped_by=stopped_by,
        by_command=was_commanded(layout),
        stall=stall,
    )


def tail(file: Path, num_bytes: int = LOG_BYTES, after: int = 0) -> str:
    """Read the end of a log, and only what lies `after` so many bytes; empty if there is none."""
    try:
        with file.open("rb") as log:
            log.seek(max(after, file.stat().st_size - num_bytes))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _job(layout: RunDir, job: Mapping[str, Any]) -> JobEvidence:
    script = [str(word) for word in job.get("script") or [""]]
    source = _source(Path(script[0]))
    return JobEvidence(
        launcher=str(job.get("launcher", "")),
        stage=int(job.get("stage") or 0),
        offload={part: device for part, device in (job.get("offload") or {}).items() if device},
        micro_batch=int(job.get("micro_batch") or 1),
        grad_accum=int(job.get("grad_accum") or 1),
        world_size=len(job.get("ranks", ())),
        precision=str(job.get("precision", "")),
        accelerator=str(job.get("accelerator", "")),
        script=script[0],
        uses_trainer=source is not None and source.interface is ConfigInterface.TRAINER,
        gradient_checkpointing=_recomputes(script[1:], source),
        forecast=read_object(layout.forecast) or None,
        config=read_object(layout.ds_config),
    )


def _source(script: Path) -> Script | None:
    """Read the script as it is now; it may have gone meanwhile."""
    try:
        return read_script(script)
    except ZlaunchError:
        return None


def _recomputes(argv: Sequence[str], source: Script | None) -> bool | None:
    """Whether activations are recomputed; None if the script may decide that itself."""
    given = dict(flags(argv))
    for name in CHECKPOINTING_FLAGS:
        if name in given:
            return is_switched_on(given[name] or "true")
    return None if source is None or any(map(source.mentions, CHECKPOINTING_FLAGS)) else False


def _rank(layout: RunDir, slot: Mapping[str, Any], record: Mapping[str, Any]) -> RankEvidence:
    rank = int(slot["rank"])
    pulse = read_object(layout.rank_pulse(rank))
    return RankEvidence(
        rank=rank,
        host=str(record.get("host") or slot.get("host", "")),
        returncode=record.get("returncode"),
        stopped_by=None if _was_leaving(record, pulse) else record.get("stopped_by"),
        ended=record.get("ended"),
        phase=str(pulse.get("phase", "")),
        step=int(pulse.get("step") or 0),
        error=_error(layout.rank_error(rank)),
        log=tail(layout.rank_log(rank)),
        stacks=tail(layout.rank_stacks(rank)),
        peak_rss_bytes=record.get("peak_rss_bytes"),
        pulse=pulse,
        sample=read_object(layout.rank_sample(rank)),
    )


def _was_leaving(record: Mapping[str, Any], pulse: Mapping[str, Any]) -> bool:
    """Whether the script had come to its end before the rank was told to stop."""
    left, told = pulse.get("since"), record.get("stopped_at")
    if not (isinstance(left, float) and isinstance(told, float)):
        return False
    return pulse.get("phase") == phases.EXITING and left < told


def _error(file: Path) -> ErrorEvidence | None:
    found = read_object(file)
    if not found:
        return None
    known = ("message", "traceback", "frame", "phase", "time")
    return ErrorEvidence(type=str(found.get("type")), **{name: found.get(name) for name in known})  # type: ignore[arg-type]


def _machines(
    ranks: Sequence[RankEvidence],
    records: Sequence[Mapping[str, Any]],
    kills_seen: Mapping[str, int],
    disk: Mapping[str, int],
) -> Iterator[MachineEvidence]:
    """Each host is described by its first rank; its ranks count what the kernel has killed meanwhile.

    All of them write to one run directory. What its disk has now counts, too: a full one took no sample.
    """
    hosts: dict[str, list[tuple[RankEvidence, Mapping[str, Any]]]] = {}
    for rank, record in zip(ranks, records, strict=True):
        hosts.setdefault(rank.host, []).append((rank, record))
    for host, here in hosts.items():
        counted = [int(record.get("oom_kills") or 0) for _, record in here]
        samples = (rank.sample.get("machine") for rank, _ in here)
        machine: Mapping[str, Any] = next((sample for sample in samples if sample), {})
        known = {name: machine.get(name) for name in set(MachineEvidence.__slots__) - {"host", "oom_kills"}}
        free = [seen["disk_free_bytes"] for seen in (machine, disk) if "disk_free_bytes" in seen]
        known["disk_free_bytes"] = min(free, default=None)
        yield MachineEvidence(host=host, oom_kills=max(*counted, kills_seen.get(host, 0)), **known)
