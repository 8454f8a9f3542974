"""What was measured: kept so that the same question continues where it stopped, and for later forecasts."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from zlaunch import __version__
from zlaunch.estimate.calibration import MeasuredRecord, measured_record
from zlaunch.estimate.forecast_cache import PACKAGES
from zlaunch.files import cache_directory, write_whole
from zlaunch.hosts.adapters import adapter_of
from zlaunch.launch.measure.race import Limits, Measurement
from zlaunch.launch.measure.runner import Sample
from zlaunch.launch.measure.trials import TrialJobs
from zlaunch.launch.rundir_writer import file_sha256

_SUFFIX: Final = ".measured.json"


def records_of(result: Measurement) -> Iterator[MeasuredRecord]:
    """Write what was predicted and measured, for the next forecasts here; the fastest comes last."""
    for one in reversed(result.measured):
        if one.trial.estimate is not None:
            record = measured_record(one.trial.estimate, "/".join(Path(one.samples[-1].run).parts[-2:]))
            record |= {"seconds": one.seconds, "memory": one.memory}
            record["predicted_memory"] = one.predicted_memory
            if record.get("predicted_seconds") or one.predicted_memory:
                yield record


class KeptSamples:
    """A file with the runs of one question, in the cache of this user."""

    def __init__(self, trials: TrialJobs, limits: Limits) -> None:
        """Find the file; nothing is kept if the cache is off."""
        self._file: Path | None = None
        directory = cache_directory(os.environ)
        if directory is not None:
            self._file = directory / f"{_question(trials, limits)}{_SUFFIX}"

    def read(self) -> Mapping[str, Sequence[Sample]]:
        """Return the runs so far, by options."""
        kept: Mapping[str, Sequence[Sample]] = {}
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError):
                kept = adapter_of(dict[str, list[Sample]]).validate_json(self._file.read_bytes())
        return kept

    def keep(self, samples: Mapping[str, Sequence[Sample]]) -> None:
        """Write all runs."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            written = {name: [asdict(sample) for sample in runs] for name, runs in samples.items()}
            write_whole(self._file, json.dumps(written))


def _question(trials: TrialJobs, limits: Limits) -> str:
    """Hash everything that a measurement depends on."""
    facts, job = trials.facts, trials.facts.job
    depends = {
        "zlaunch": __version__,
        "program": [file_sha256(job.script), job.module, *job.args.words],
        "options": [job.precision, str(job.nvme_dir), list(job.overrides), list(job.env)],
        "packages": facts.python.versions(PACKAGES),
        "python": str(facts.python.executable),
        "machine": asdict(facts.machine),
        "ranks": facts.topology.world_size,
        "steps": limits.steps,
        "samples": trials.per_rank,
    }
    return hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()
