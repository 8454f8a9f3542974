"""Find run directories and judge the runs in them."""

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

from zlaunch.diagnosis.collect import collect_evidence
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.diagnosis.root_cause import RankRole, role_of, root_cause
from zlaunch.errors import InputMissing, WrongUsage
from zlaunch.rundir.layout import RUNS, RunDir
from zlaunch.rundir.owner import is_running
from zlaunch.rundir.read import read_record
from zlaunch.rundir.record import StartRecord
from zlaunch.rundir.run_files import read_run_files
from zlaunch.runs.state import RunSummary, State, summarize

LATEST_RUN = "latest"

_RUN = RunDir(Path())
_NAMES = {file.name for file in (_RUN.job, _RUN.ending, _RUN.ds_config, _RUN.logs, _RUN.ranks)}
"""One of these is in every run directory that is not empty."""


def all_runs(directory: Path | None) -> list[Path]:
    """List the run directories in a directory, the newest first; none if nothing was ever run."""
    folder = RUNS if directory is None else directory
    if not folder.is_dir():
        if directory is not None:
            raise InputMissing(f"there is no directory `{directory}`")
        return []
    roots = [one for one in folder.iterdir() if not one.name.startswith(".") and _is_run(one)]
    return sorted(roots, key=lambda root: (_started(root), root.name), reverse=True)


def find_run(name: str, directory: Path | None) -> Path:
    """Find a run by its name, the beginning of it, its path, or as the latest."""
    named = Path(name)
    if "/" in name or (named.is_dir() and RunDir(named).job.exists()):
        if not named.is_dir():
            raise InputMissing(f"there is no run directory `{name}`")
        return named.absolute()
    folder, runs = RUNS if directory is None else directory, all_runs(directory)
    if name == LATEST_RUN and runs:
        return runs[0].absolute()
    matching = [root for root in runs if root.name == name] or [
        root for root in runs if name and root.name.startswith(name)
    ]
    if not matching:
        what = "no run" if name == LATEST_RUN else f"no run `{name}`"
        raise InputMissing(f"there is {what} in `{folder}`", "see `zlaunch runs list`, or name `--runs-dir`")
    if len(matching) > 1:
        names = ", ".join(f"`{root.name}`" for root in matching[:4])
        rest = f" and {len(matching) - 4} more" if len(matching) > 4 else ""
        raise WrongUsage(f"`{name}` is ambiguous: {names}{rest}", "write more of the name")
    return matching[0].absolute()


def load_run(root: Path) -> RunSummary:
    """Read a run directory and judge the run."""
    run = _judged(root)
    if run.state.is_over and not run.files.ending:
        run = _judged(root)  # it may have ended between the two looks
    if run.verdict is not None or not run.state.is_over or run.state in (State.FINISHED, State.BROKEN):
        return run
    return _diagnosed(run)


def _judged(root: Path) -> RunSummary:
    files = read_run_files(root)
    return summarize(files, is_running(files.job), time.time())


def _diagnosed(run: RunSummary) -> RunSummary:
    """Derive the verdict of a run that has none, if its records suffice.

    Those of a lost run do if a rank failed of itself: otherwise zlaunch was killed, and its ranks after it.
    """
    returncode = run.files.ending.get("returncode", 0)
    stopped_by = -returncode if run.state is State.STOPPED and returncode < 0 else None
    evidence = collect_evidence(RunDir(run.files.root), returncode, stopped_by)
    rank = root_cause(evidence)
    has_failed = rank is not None and role_of(rank, evidence) is RankRole.FAILED
    if not has_failed and run.state not in (State.FAILED, State.STOPPED, State.STUMBLED):
        return run
    verdict = diagnose(evidence)
    return replace(run, verdict=verdict, cause=verdict.cause)


def _is_run(root: Path) -> bool:
    """Whether a directory is a run directory, even a damaged one."""
    with contextlib.suppress(OSError):
        names = set(os.listdir(root))  # noqa: PTH208 - the names alone are much faster
        return not names or bool(names & _NAMES)
    return root.is_dir()


def _started(root: Path) -> float:
    """Read when a run started; if its record does not say, take the time of the directory."""
    if (started := read_record(RunDir(root).job, StartRecord).get("started")) is not None:
        return started
    with contextlib.suppress(OSError):
        return root.stat().st_mtime
    return 0.0
