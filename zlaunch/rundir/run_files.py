"""All records of one run, read at once."""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from zlaunch.files import read_from, start_of_lines
from zlaunch.rundir import record
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import parse_record, read_rank_records, read_record


@dataclass(frozen=True)
class RunFiles:
    """The records of a run directory; one that is missing or damaged is empty."""

    root: Path
    changed: float = 0.0
    """When a file of the run was last written."""
    job: record.JobRecord = field(default_factory=record.JobRecord)
    ending: record.EndingRecord = field(default_factory=record.EndingRecord)
    environment: record.EnvironmentRecord = field(default_factory=record.EnvironmentRecord)
    config: dict[str, object] = field(default_factory=dict)
    """The ds_config."""
    provenance: record.ProvenanceRecord = field(default_factory=record.ProvenanceRecord)
    forecast: record.ForecastRecord = field(default_factory=record.ForecastRecord)
    last_metrics: record.MetricsRecord = field(default_factory=record.MetricsRecord)
    ranks: dict[int, record.RankRecord] = field(default_factory=dict)
    heartbeats: dict[int, record.HeartbeatRecord] = field(default_factory=dict)
    samples: dict[int, record.SampleRecord] = field(default_factory=dict)
    errors: dict[int, record.ErrorRecord] = field(default_factory=dict)
    programs: dict[int, record.ProgramRecord] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()
    """Files that should be there, or cannot be read."""

    @property
    def world_size(self) -> int | None:
        """Number of ranks; None if the record does not say."""
        return len(self.job["ranks"]) if "ranks" in self.job else None


def read_run_files(root: Path) -> RunFiles:
    """Read the records of a run directory; a missing or damaged one is a trouble, never an error."""
    run_dir, troubles = RunDir(root), list[str]()
    return RunFiles(
        root=root,
        changed=_last_written(run_dir),
        job=read_record(run_dir.job, record.JobRecord, troubles, needed=True),
        ending=read_record(run_dir.ending, record.EndingRecord, troubles),
        environment=read_record(run_dir.environment, record.EnvironmentRecord, troubles),
        forecast=read_record(run_dir.forecast, record.ForecastRecord, troubles),
        config=read_record(run_dir.ds_config, dict[str, object], troubles),
        provenance=read_record(run_dir.provenance, record.ProvenanceRecord, troubles),
        last_metrics=parse_record(_last_line(run_dir.metrics), record.MetricsRecord),
        ranks=read_rank_records(run_dir, record.RankRecord, troubles),
        heartbeats=read_rank_records(run_dir, record.HeartbeatRecord, troubles),
        samples=read_rank_records(run_dir, record.SampleRecord, troubles),
        errors=read_rank_records(run_dir, record.ErrorRecord, troubles),
        programs=read_rank_records(run_dir, record.ProgramRecord, troubles),
        troubles=tuple(troubles),
    )


def _last_line(file: Path) -> bytes:
    try:
        return b"".join(read_from(file, start_of_lines(file, 1)))
    except OSError:
        return b""


def _last_written(run_dir: RunDir) -> float:
    times = [0.0]
    for folder in (run_dir.root, run_dir.logs, run_dir.ranks):
        with contextlib.suppress(OSError):
            times += [entry.stat().st_mtime for entry in os.scandir(folder) if entry.is_file()]
    return max(times)
