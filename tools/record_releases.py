"""Record which keys each DeepSpeed release reads, in `zlaunch/dsconfig/releases.json`.

`python tools/record_releases.py 0.18.9 0.19.8`, or `make releases` for all of them. Each release is
downloaded as source into a temporary folder and imported in its own process; nothing is built or installed.
Requires torch.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "zlaunch" / "dsconfig" / "releases.json"

Recordings = Mapping[str, Mapping[str, Any]]
"""Release → output of `tools.recorder`, oldest first."""


def main(versions: Sequence[str]) -> None:
    """Record these versions, and write the table."""
    with TemporaryDirectory() as folder:
        recordings = {_release(version): _recorded(version, Path(folder)) for version in versions}
    TABLE.write_text(to_json(merge(recordings)), encoding="utf-8")


def merge(recordings: Recordings) -> dict[str, dict[str, Any]]:
    """Convert recordings by release to the history of each key."""
    keys = _by_path({release: recording["keys"] for release, recording in recordings.items()})
    sections = _by_path({release: recording["sections"] for release, recording in recordings.items()})
    refused = _by_path(
        {release: dict.fromkeys(recording["refused"]) for release, recording in recordings.items()}
    )
    releases = list(recordings)
    return {
        "releases": {release: recording["version"] for release, recording in recordings.items()},
        "sections": {path: _changes(kinds) for path, kinds in sections.items()},
        "keys": {path: _history(path, defaults, releases) for path, defaults in keys.items()},
        "refused": {path: next(iter(since)) for path, since in refused.items()},
    }


def to_json(table: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the table as JSON, with one line per key."""
    sections = []
    for name, rows in table.items():
        lines = [f"    {json.dumps(key)}: {json.dumps(row, allow_nan=False)}" for key, row in rows.items()]
        sections.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def _recorded(version: str, folder: Path) -> dict[str, Any]:
    source = _downloaded(version, folder)
    recording = folder / f"{version}.json"
    subprocess.run(
        [sys.executable, "-m", "tools.recorder", str(recording)],
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source), "DS_ACCELERATOR": "cpu"},
        stdout=subprocess.DEVNULL,
    )
    found: dict[str, Any] = json.loads(recording.read_text(encoding="utf-8"))
    if found["version"] != version:
        raise ValueError(f"DeepSpeed {found['version']} was imported instead of {version}")
    return found


def _downloaded(version: str, folder: Path) -> Path:
    """Download the source of a release; without build isolation, because its setup.py imports torch."""
    options = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--quiet")
    pip = (sys.executable, "-m", "pip", "download", *options, "--dest", str(folder))
    subprocess.run([*pip, f"deepspeed=={version}"], check=True)
    shutil.unpack_archive(folder / f"deepspeed-{version}.tar.gz", folder, filter="data")
    return folder / f"deepspeed-{version}"


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _by_path(by_release: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    paths = sorted(set().union(*by_release.values()))
    return {
        path: {release: found[path] for release, found in by_release.items() if path in found}
        for path in paths
    }


def _history(path: str, defaults: Mapping[str, Any], releases: Sequence[str]) -> dict[str, Any]:
    """Return when a key was added, removed, and got another default."""
    first, *_, last = (*defaults, *defaults)
    if [*defaults] != [*releases[releases.index(first) : releases.index(last) + 1]]:
        raise ValueError(f"`{path}` was removed and added again, which the table cannot represent")
    history: dict[str, Any] = {}
    if first != releases[0]:
        history["since"] = first
    if last != releases[-1]:
        history["until"] = last
    if any(default is not None for default in defaults.values()):
        history["defaults"] = _changes(defaults)
    return history


def _changes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop values equal to the previous one; 0 equals 0.0, but not false."""
    changes: dict[str, Any] = {}
    before: tuple[Any, bool] | None = None
    for release, value in values.items():
        now = (value, isinstance(value, bool))
        if now != before:
            changes[release] = value
        before = now
    return changes


if __name__ == "__main__":
    main(sys.argv[1:])
