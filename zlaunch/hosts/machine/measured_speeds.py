"""Speeds that `zlaunch doctor --collective` and `zlaunch nvme tune` measured on hosts.

Estimates of step times for the same hosts use them in place of data sheets.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypedDict

from zlaunch.files import append_to_cache, cached_lines, nearest
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.resources import Machine
from zlaunch.rundir.read import parse_record
from zlaunch.rundir.record import Finite

FILE: Final = "speeds.jsonl"
"""In the cache, a line for each measurement."""
Part = Literal["links", "network", "nvme"]


class SpeedRecord(TypedDict, total=False):
    """A measurement of hosts, which have the names that a job gives them; a single one has its own."""

    part: str
    hosts: list[str]
    bytes_per_second: Finite
    of: str
    """The GPU model of links, or the directory on NVMe."""


@dataclass(frozen=True, slots=True)
class MeasuredSpeeds:
    """The newest measurements, in bytes per second; None if there is none."""

    links: float | None = None
    """What each rank sends in an all-reduce of the GPUs of one host."""
    network: float | None = None
    """What each host sends in an all-reduce with one rank on each."""
    nvme: float | None = None
    """What the drive of a directory reads and writes, as much of both."""


NOTHING_MEASURED: Final = MeasuredSpeeds()


def keep_speed(part: Part, hosts: Sequence[str], bytes_per_second: float, of: str = "") -> None:
    """Add a measurement; a cache that cannot be written is ignored."""
    record = SpeedRecord(part=part, hosts=sorted(hosts), bytes_per_second=round(bytes_per_second), of=of)
    append_to_cache(FILE, [json.dumps(record)])


def measured_speeds(hosts: Sequence[str], machine: Machine, directory: Path | None = None) -> MeasuredSpeeds:
    """Find what was measured on the hosts of a job, of which `machine` is one, and on a directory's drive."""
    found: dict[str, float] = {}
    names, gpus = sorted(hosts), {gpu.name for gpu in machine.gpus}
    if len(names) < 2:
        names = [machine.hostname]
    for record in map(_parsed, cached_lines(FILE)):
        part, of, speed = record.get("part", ""), record.get("of", ""), record.get("bytes_per_second", 0.0)
        is_there = {
            "links": gpus == {of},
            "network": True,
            "nvme": directory is not None and _is_same_drive(Path(of), directory),
        }
        if record.get("hosts") == names and speed > 0 and is_there.get(part):
            found[part] = speed
    return MeasuredSpeeds(found.get("links"), found.get("network"), found.get("nvme"))


def _parsed(line: bytes) -> SpeedRecord:
    return parse_record(line, SpeedRecord)


def _is_same_drive(first: Path, second: Path) -> bool:
    with suppress(OSError, ValueError):  # the job makes a directory that is not there yet
        return nearest(first).stat().st_dev == nearest(second).stat().st_dev
    return False
