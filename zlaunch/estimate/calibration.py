"""What configurations took on this machine when they were measured, to correct the forecasts of others.

Step times are multiplied by measured / predicted. Memory keeps its forecast: its error bounds grow to what
was measured, so that a job that may not fit is not said to fit.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final, TypedDict

from zlaunch.config.resolve.compose import OFFLOADS
from zlaunch.dsconfig.precision import precision_of
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import value_at
from zlaunch.errors import Finding, Severity
from zlaunch.estimate.query import Estimate, EstimateQuery
from zlaunch.estimate.workload import Workload
from zlaunch.files import append_to_cache, cache_directory, cached_lines, typed
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.measured_speeds import NOTHING_MEASURED
from zlaunch.rundir.read import parse_record
from zlaunch.rundir.record import Finite
from zlaunch.units import brief, memory

CALIBRATED: Final = "calibrated"
"""Code of the finding about it."""
FILE: Final = "measured.jsonl"
"""In the cache, a line for each configuration."""


class MeasuredRecord(TypedDict, total=False):
    """One configuration: what was predicted of it without any correction, and measured."""

    run: str
    host: str
    device: str
    ranks: int
    precision: str
    model: str
    """A digest of its config: how far off a forecast is depends on the sizes of a model."""
    strategy: str
    speeds: str
    """Measured ones that the prediction used; empty if it used data sheets alone."""
    predicted_seconds: Finite | None
    seconds: Finite | None
    predicted_memory: int | None
    memory: int | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """How far off a forecast was on this machine."""

    record: MeasuredRecord
    speeds: str
    """Those that the forecast uses."""

    @property
    def is_of_same_speeds(self) -> bool:
        """Whether a time was predicted with them, too; another prediction was not as far off."""
        return self.record.get("speeds", "") == self.speeds

    @property
    def time(self) -> float:
        """By how much predicted step times are multiplied."""
        if not self.is_of_same_speeds:
            return 1.0
        return _ratio(self.record.get("seconds"), self.record.get("predicted_seconds"))

    @property
    def memory_error(self) -> float:
        """How much more memory it took than predicted, as a fraction; 0 if it took less."""
        return max(0.0, _ratio(self.record.get("memory"), self.record.get("predicted_memory")) - 1)

    @property
    def took(self) -> list[str]:
        """What was measured and predicted, in words."""
        record, parts = self.record, []
        seconds, expected = record.get("seconds"), record.get("predicted_seconds")
        if seconds and expected and self.is_of_same_speeds:
            parts.append(f"{brief(seconds)} a step where {brief(expected)} were predicted")
        took, expected_memory = record.get("memory"), record.get("predicted_memory")
        if took and expected_memory:
            parts.append(f"{memory(took)} of memory where {memory(expected_memory)} were predicted")
        return parts

    @property
    def finding(self) -> Finding:
        """Say what was measured, and how to leave it out."""
        message = f"calibrated by {self.record.get('run')}, which took {' and '.join(self.took)}"
        file = calibration_file()
        hint = None if file is None else f"`rm {typed(file)}` leaves out what was measured here"
        return Finding(CALIBRATED, message, hint, severity=Severity.ADVICE)


def _ratio(measured: float | None, predicted: float | None) -> float:
    if not measured or not predicted:
        return 1.0
    return measured / predicted


def calibration_file() -> Path | None:
    """Find the file of this user; None if the cache is off."""
    directory = cache_directory(os.environ)
    return None if directory is None else directory / FILE


def measured_record(estimate: Estimate, run: str) -> MeasuredRecord:
    """Describe the configuration of an estimate, and the time of a step that was predicted of it."""
    record: MeasuredRecord = {**_place(estimate.query, estimate.workload), "run": run}
    record["speeds"] = _speeds(estimate.query)
    if estimate.speed is not None:
        roofline = estimate.speed.roofline
        record["predicted_seconds"] = roofline.middle / roofline.correction
    return record


def keep(records: Iterable[MeasuredRecord]) -> None:
    """Add what was measured; a file that cannot be written is ignored."""
    append_to_cache(FILE, map(json.dumps, records))


def kept_records() -> list[MeasuredRecord]:
    """Read what was measured, the oldest first."""
    return [parse_record(line, MeasuredRecord) for line in cached_lines(FILE)]


def calibrated(estimate: Estimate, records: Sequence[MeasuredRecord]) -> Estimate:
    """Correct an estimate by what was measured on its machine, and have it say so."""
    calibration, speed = _calibration_of(estimate.query, estimate.workload, records), estimate.speed
    if calibration is None:
        return estimate
    if speed is not None:
        speed = replace(speed, roofline=speed.roofline.corrected(calibration.time))
    forecast = estimate.forecast
    forecast = replace(forecast, error=max(forecast.error, calibration.memory_error))
    return replace(estimate, forecast=forecast, speed=speed, remarks=(*estimate.remarks, calibration.finding))


def _calibration_of(
    query: EstimateQuery, workload: Workload, records: Sequence[MeasuredRecord]
) -> Calibration | None:
    """Choose the newest measurement of this model here on as many ranks, at best of its strategy."""
    if not records:
        return None
    wanted = _place(query, workload)
    here = [
        record for record in records if {**record, "strategy": wanted["strategy"]}.items() >= wanted.items()
    ]
    if not here:
        return None
    same = [record for record in here if record.get("strategy") == wanted["strategy"]]
    found = Calibration((same or here)[-1], _speeds(query))
    return found if found.took else None


def _place(query: EstimateQuery, workload: Workload) -> MeasuredRecord:
    """Say where a job runs, and how it is partitioned."""
    gpu, config = query.cluster.gpu, workload.ds_config
    model = json.dumps(workload.model, sort_keys=True, default=str)
    devices = [value_at(config, (ZERO, offload, "device")) or "none" for offload in OFFLOADS]
    return {
        "host": query.given.machine.hostname,
        "device": "CPU" if gpu is None else gpu.name,
        "ranks": query.cluster.world_size,
        "precision": precision_of(config),
        "model": sha256(model.encode()).hexdigest()[:16],
        "strategy": f"stage {value_at(config, (ZERO, 'stage')) or 0}, offload {' '.join(map(str, devices))}",
    }


def _speeds(query: EstimateQuery) -> str:
    """Name the measured speeds that forecasts use; empty if they use data sheets alone."""
    measured = query.cluster.measured
    return "" if measured == NOTHING_MEASURED else str(measured)
