"""Find run directories, and judge the runs in them."""

import contextlib
import os
from pathlib import Path

from zlaunch.errors import InputMissing, Unavailable, WrongUsage
from zlaunch.files import why_not_directory
from zlaunch.rundir.layout import RUNS, RunDir
from zlaunch.rundir.read import read_record
from zlaunch.rundir.record import SecretsRecord, StartRecord
from zlaunch.runs.run import Run
from zlaunch.secrets import Fingerprints, remember_fingerprints
from zlaunch.units import listed

LATEST_RUN = "latest"

_RUN = RunDir(Path())
_NAMES = {file.name for file in (_RUN.job, _RUN.ending, _RUN.ds_config, _RUN.logs, _RUN.ranks)}
"""One of these is in every run directory that is not empty."""


def all_runs(directory: Path | None) -> list[Path]:
    """List the run directories in a directory that this user may read, the newest first.

    There are none if nothing was ever run.
    """
    folder = RUNS if directory is None else directory
    if (why := why_not_directory(folder)) is not None:
        if directory is None:
            return []
        raise InputMissing(why)
    roots = [root for root in folder.iterdir() if not root.name.startswith(".") and _is_run(root)]
    return sorted(roots, key=lambda root: (_started(root), root.name), reverse=True)


def find_run(name: str, directory: Path | None) -> Path:
    """Find a run by its name, a prefix of its name, its path, or `latest`; hide its secrets from then on."""
    root = _find(name, directory)
    _hide_secrets(root)
    return root


def open_run(name: str, directory: Path | None) -> Run:
    """Find a run as `find_run` does, and judge it as it is now."""
    return load_run(_find(name, directory))


def _hide_secrets(root: Path) -> None:
    known = read_record(RunDir(root).secrets, SecretsRecord)
    with contextlib.suppress(ValueError):  # of a damaged record
        remember_fingerprints(Fingerprints.of(known.get("salt", ""), known.get("digests", {})))


def _find(name: str, directory: Path | None) -> Path:
    named = Path(name)
    if "/" in name or (named.is_dir() and (_is_closed(named) or RunDir(named).job.exists())):
        if not named.is_dir():
            raise InputMissing(f"there is no run directory `{name}`")
        return _open(named)
    folder, runs = RUNS if directory is None else directory, all_runs(directory)
    if name == LATEST_RUN and runs:
        return runs[0].absolute()
    matching = [root for root in runs if root.name == name]
    if name and not matching:
        matching = [root for root in runs if root.name.startswith(name)]
    if not matching and name and _is_closed(folder / name):
        return _open(folder / name)
    if not matching:
        what = "no run" if name == LATEST_RUN else f"no run `{name}`"
        raise InputMissing(f"there is {what} in `{folder}`", "see `zlaunch runs list`, or name `--runs-dir`")
    if len(matching) > 1:
        names = listed([f"`{root.name}`" for root in matching], 4)
        raise WrongUsage(f"`{name}` is ambiguous: {names}", "write more of the name")
    return matching[0].absolute()


def load_run(root: Path) -> Run:
    """Judge the run in a directory as it is now; hide its secrets from then on."""
    _hide_secrets(root)
    run = Run(root)
    if run.state.is_over and not run.ending:
        return Run(root)  # it may have ended between the two looks
    return run


def closed_runs(directory: Path | None) -> int:
    """Count the directories in a directory that only their users may read."""
    folder = RUNS if directory is None else directory
    return sum(map(_is_closed, folder.iterdir())) if folder.is_dir() else 0


def _is_closed(root: Path) -> bool:
    return root.is_dir() and not os.access(root, os.R_OK | os.X_OK)


def _open(root: Path) -> Path:
    if _is_closed(root):
        raise Unavailable(
            f"only its user may read the run directory `{root}`",
            "ask for a copy; `zlaunch train --share` lets others read a run",
        )
    return root.absolute()


def _is_run(root: Path) -> bool:
    """Whether a directory is a run directory that this user may read, even a damaged one."""
    if _is_closed(root):
        return False
    with contextlib.suppress(OSError):
        names = set(os.listdir(root))  # noqa: PTH208 - the names alone are much faster
        return not names or bool(names & _NAMES)
    return root.is_dir()


def _started(root: Path) -> float:
    if (started := read_record(RunDir(root).job, StartRecord).get("started")) is not None:
        return started
    with contextlib.suppress(OSError):
        return root.stat().st_mtime
    return 0.0
