"""The records of one run, each read once, when it is first asked for."""

import contextlib
import copy
import os
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zlaunch.files import read_from, start_of_lines
from zlaunch.rundir import record
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import Record, parse_record, read_rank_records, read_record
from zlaunch.secrets import remember

if TYPE_CHECKING:
    from typing_extensions import Self

_PARTS: Final = (
    *("job", "ending", "environment", "forecast", "config", "provenance"),
    *("ranks", "heartbeats", "samples", "errors", "programs"),
)
"""Parts that may have troubles, in the order in which these are listed."""


class RunFiles:
    """The records of a run directory; one that is missing or damaged is empty."""

    def __init__(self, root: Path) -> None:
        """Read nothing yet."""
        self.root = root
        self.troubles_of: dict[str, list[str]] = {}
        """Part → its troubles, as far as it was read."""

    def holding(self, **parts: Any) -> "Self":
        """Return a copy with other contents of some parts; what was read of the others stays."""
        changed = copy.copy(self)
        known = {part: troubles for part, troubles in self.troubles_of.items() if part not in parts}
        vars(changed).update(parts, troubles_of=known)
        return changed

    def read_all(self) -> None:
        """Read all parts now, so that they are of about the same moment."""
        for part in (*_PARTS, "last_metrics", "changed"):
            getattr(self, part)

    def read_plan(self) -> None:
        """Read now what does not change any more."""
        for part in ("job", "environment", "forecast", "config", "provenance"):
            getattr(self, part)

    @property
    def paths(self) -> RunDir:
        """Where the files are."""
        return RunDir(self.root)

    @cached_property
    def changed(self) -> float:
        """When a file of the run was last written."""
        return _last_written(self.paths)

    @cached_property
    def job(self) -> record.JobRecord:
        """Options, script, ranks and environment of the job."""
        job = self._record("job", self.paths.job, record.JobRecord, needed=True)
        remember(job)
        return job

    @cached_property
    def ending(self) -> record.EndingRecord:
        """How the run ended; empty before that."""
        return self._record("ending", self.paths.ending, record.EndingRecord)

    @cached_property
    def environment(self) -> record.EnvironmentRecord:
        """Package versions, git state, machine."""
        return self._record("environment", self.paths.environment, record.EnvironmentRecord)

    @cached_property
    def config(self) -> dict[str, object]:
        """The ds_config."""
        config = self._record("config", self.paths.ds_config, dict[str, object])
        remember(config)
        return config

    @cached_property
    def provenance(self) -> record.ProvenanceRecord:
        """Where each value of the ds_config comes from."""
        return self._record("provenance", self.paths.provenance, record.ProvenanceRecord)

    @cached_property
    def forecast(self) -> record.ForecastRecord:
        """Predicted memory of each rank."""
        return self._record("forecast", self.paths.forecast, record.ForecastRecord)

    @cached_property
    def last_metrics(self) -> record.MetricsRecord:
        """The state of the job at the last moment that was recorded."""
        return parse_record(_last_line(self.paths.metrics), record.MetricsRecord)

    @cached_property
    def ranks(self) -> dict[int, record.RankRecord]:
        """How each rank started and ended."""
        return self._of_ranks("ranks", record.RankRecord)

    @cached_property
    def heartbeats(self) -> dict[int, record.HeartbeatRecord]:
        """The last phase, step and loss of each rank."""
        return self._of_ranks("heartbeats", record.HeartbeatRecord)

    @cached_property
    def samples(self) -> dict[int, record.SampleRecord]:
        """The last sample of the resources of each rank."""
        return self._of_ranks("samples", record.SampleRecord)

    @cached_property
    def errors(self) -> dict[int, record.ErrorRecord]:
        """The exception of each rank that one ended."""
        return self._of_ranks("errors", record.ErrorRecord)

    @cached_property
    def programs(self) -> dict[int, record.ProgramRecord]:
        """What the script of each rank trained with."""
        programs = self._of_ranks("programs", record.ProgramRecord)
        for rank in sorted(programs)[:1]:  # they have the same ds_config
            remember(programs[rank])
        return programs

    @property
    def program(self) -> record.ProgramRecord:
        """What the script of the first rank trained with; empty if no rank has recorded that."""
        if self.programs:
            return self.programs[min(self.programs)]
        return record.ProgramRecord()

    @cached_property
    def troubles(self) -> tuple[str, ...]:
        """Files that should be there, or cannot be read; reads all of them."""
        self.read_all()
        return tuple(chain.from_iterable(self.troubles_of.get(part, ()) for part in _PARTS))

    @property
    def world_size(self) -> int | None:
        """Number of ranks; None if the record does not say."""
        if "ranks" in self.job:
            return len(self.job["ranks"])
        return None

    @property
    def recorded_ranks(self) -> list[int]:
        """The ranks with a record of how they started, what they did, took, or died of."""
        return sorted({*self.ranks, *self.heartbeats, *self.samples, *self.errors})

    @cached_property
    def previous(self) -> "RunFiles | None":
        """The attempt of the same job that this run continues."""
        continued = self.job.get("continues")
        if not continued:
            return None
        root = self.root.with_name(continued)
        if root.is_dir():
            return RunFiles(root)
        return None

    def _record(self, part: str, file: Path, kind: type[Record], *, needed: bool = False) -> Record:
        return read_record(file, kind, self.troubles_of.setdefault(part, []), needed=needed)

    def _of_ranks(self, part: str, kind: type[Record]) -> dict[int, Record]:
        return read_rank_records(self.paths, kind, self.troubles_of.setdefault(part, []))


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
