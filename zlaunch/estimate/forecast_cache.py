"""A disk cache of rehearsed forecasts.

The key is everything a forecast depends on: the workload, custom model code, the installed releases, and the
sources of the rehearsal. `ZLAUNCH_CACHE=DIR` moves the cache, and
`ZLAUNCH_CACHE=off` turns it off. Other files, damaged ones and ones that cannot be written are ignored.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.workload import Workload, to_json
from zlaunch.files import write_whole
from zlaunch.hosts.adapters import adapter_of
from zlaunch.hosts.machine.interpreter import inspect_python

MOST_BYTES: Final = 64 << 20
"""Size above which the least recently used files are deleted."""
PACKAGES: Final = ("deepspeed", "torch", "transformers", "accelerate", "peft")

_SOURCES: Final = (
    "estimate/**/*.py",
    "job/*.py",
    "job/model_families.json",
    "config/resolve/nvme_buffers.py",
    "hosts/machine/gpu_catalog.py",
    "hosts/machine/gpus.json",
)
"""Sources of zlaunch that a forecast depends on."""
_CODE: Final = ("**/*.py", "config.json")
"""Files that a model with its own code depends on."""
_SUFFIX: Final = ".forecast.json"


class ForecastCache:
    """A directory with a file for each forecast."""

    def __init__(
        self, directory: Path | None, python: Path | None = None, most_bytes: int = MOST_BYTES
    ) -> None:
        """Keep forecasts in a directory, which need not exist; None keeps nothing.

        `python` is the interpreter of the rehearsals; None for the one that runs zlaunch.
        """
        self._directory = directory
        self._python = python
        self._most_bytes = most_bytes

    def find(self, workload: Workload) -> Forecast | None:
        """Return the forecast of a workload, if it is there."""
        if self._directory is None:
            return None
        try:
            key = key_of(workload, self._python)
            file = self._directory / f"{key}{_SUFFIX}"
            read = json.loads(file.read_bytes())
            if read["key"] != key:
                return None
            forecast: Forecast = adapter_of(Forecast).validate_python({**read["forecast"], "kept": True})
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        with contextlib.suppress(OSError):
            os.utime(file)  # so that it is not the oldest any more
        return forecast

    def keep(self, workload: Workload, forecast: Forecast) -> None:
        """Keep a forecast, if its rehearsal was complete."""
        if self._directory is None or not _is_complete(forecast):
            return
        with contextlib.suppress(OSError):
            key = key_of(workload, self._python)
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = self._directory / f"{key}{_SUFFIX}"
            write_whole(file, json.dumps({"key": key, "forecast": asdict(forecast)}))
            self._prune(self._directory)

    def _prune(self, directory: Path) -> None:
        files = [(file, file.stat()) for file in directory.glob(f"*{_SUFFIX}*")]  # and partial ones
        total = sum(stat.st_size for _, stat in files)
        for file, stat in sorted(files, key=lambda entry: entry[1].st_mtime_ns):
            if total <= self._most_bytes:
                return
            file.unlink(missing_ok=True)
            total -= stat.st_size


def _is_complete(forecast: Forecast) -> bool:
    """Whether nothing failed; a failure may come from a full disk or memory."""
    if forecast.method != "rehearsal" or forecast.late_error:
        return False
    resume = forecast.resume
    return resume is None or not (resume.error or resume.why_not_rehearsed)


def key_of(workload: Workload, python: Path | None = None) -> str:
    """Hash everything a forecast depends on; raise OSError for code that cannot be read."""
    code = None
    if workload.remote_code is not None:
        code = _digest(Path(workload.remote_code), _CODE)
    depends = {
        "workload": to_json(workload),
        "remote code": code,
        "releases": _releases(python),
        "sources": _digest(Path(__file__).parents[1], _SOURCES),
    }
    return hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()


@cache
def _releases(python: Path | None) -> Mapping[str, str | None]:
    return inspect_python(python).versions(PACKAGES)


@cache
def _digest(root: Path, patterns: tuple[str, ...]) -> str:
    """Hash the names and contents of files below a directory."""
    digest = hashlib.sha256()
    for file in sorted(chain.from_iterable(root.glob(pattern) for pattern in patterns)):
        for part in (os.fsencode(file.relative_to(root)), file.read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
