"""All records of one run, read at once."""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from zlaunch.files import last_lines
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.record import (
    EndingRecord,
    EnvironmentRecord,
    ErrorRecord,
    ForecastRecord,
    HeartbeatRecord,
    JobRecord,
    MetricsRecord,
    ProvenanceRecord,
    RankRecord,
    SampleRecord,
    parse_record,
    read_rank_records,
    read_record,
)


@dataclass(frozen=True)
class RunFiles:
    """The records of a run directory; one that is missing or damaged is empty."""

    root: Path
    changed: float = 0.0
    """When a file of the run was last written."""
    job: JobRecord = field(default_factory=JobRecord)
    ending: EndingRecord = field(default_factory=EndingRecord)
    environment: EnvironmentRecord = field(default_factory=EnvironmentRecord)
    config: dict[str, object] = field(default_factory=dict)
    """The ds_config."""
    provenance: ProvenanceRecord = field(default_factory=ProvenanceRecord)
    forecast: ForecastRecord = field(default_factory=ForecastRecord)
    last_metrics: MetricsRecord = field(default_factory=MetricsRecord)
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    heartbeats: dict[int, HeartbeatRecord] = field(default_factory=dict)
    samples: dict[int, SampleRecord] = field(default_factory=dict)
    errors: dict[int, ErrorRecord] = field(default_factory=dict)
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
        job=read_record(run_dir.job, JobRecord, troubles, needed=True),
        ending=read_record(run_dir.ending, EndingRecord, troubles),
        environment=read_record(run_dir.environment, EnvironmentRecord, troubles),
        forecast=read_record(run_dir.forecast, ForecastRecord, troubles),
        config=read_record(run_dir.ds_config, dict[str, object], troubles),
        provenance=read_record(run_dir.provenance, ProvenanceRecord, troubles),
        last_metrics=parse_record(b"".join(last_lines(run_dir.metrics, 1)), MetricsRecord),
        ranks=read_rank_records(run_dir, RankRecord, troubles),
        heartbeats=read_rank_records(run_dir, HeartbeatRecord, troubles),
        samples=read_rank_records(run_dir, SampleRecord, troubles),
        errors=read_rank_records(run_dir, ErrorRecord, troubles),
        troubles=tuple(troubles),
    )


def _last_written(run_dir: RunDir) -> float:
    times = [0.0]
    for folder in (run_dir.root, run_dir.logs, run_dir.ranks):
        with contextlib.suppress(OSError):
            times += [entry.stat().st_mtime for entry in os.scandir(folder) if entry.is_file()]
    return max(times)
