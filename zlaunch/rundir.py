"""The only writer: one directory per run, of the shape that `layout` describes, and what a user asks for."""

import contextlib
import json
import os
import shlex
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zlaunch import __version__
from zlaunch.compose import to_json
from zlaunch.errors import Unavailable
from zlaunch.layout import RunLayout, write_whole
from zlaunch.machine import Machine
from zlaunch.memory.forecast import Forecast
from zlaunch.outcome import Outcome
from zlaunch.plan import LaunchPlan
from zlaunch.probe import package_versions
from zlaunch.process import output_of

PACKAGES = ("torch", "deepspeed", "accelerate", "transformers", "datasets", "pydantic", "typer")


def candidates(chosen: Path | None, script: Path) -> Iterator[RunLayout]:
    """Propose run directories: the one that was asked for, or `runs/<time>-<script>`, numbered if taken."""
    if chosen is not None:
        yield RunLayout(chosen.absolute())
        return
    root = Path("runs").absolute()
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{script.stem}"
    for attempt in range(1, 1000):
        layout = RunLayout(root / (name if attempt == 1 else f"{name}-{attempt}"))
        if not layout.root.exists():
            yield layout


def check_writable(directory: Path, flag: str) -> None:
    """Raise Unavailable if a directory does not exist and cannot be made, or cannot be written."""
    nearest = directory.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir():
        raise Unavailable(f"`{flag} {directory}`: {nearest} is not a directory")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise Unavailable(
            f"`{flag} {directory}`: {nearest} cannot be written", f"name another directory with `{flag}`"
        )


def check_unused(directory: Path) -> None:
    """Raise Unavailable if a run directory holds anything already."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Unavailable(
            f"`--run-dir {directory}` is not empty", "name a new directory: nothing is ever overwritten"
        )


def claim(plan: LaunchPlan) -> None:
    """Make a run's directories; raise FileExistsError if another run was faster."""
    layout = plan.layout
    layout.root.mkdir(parents=True, exist_ok=True)
    layout.logs.mkdir()
    for directory in plan.swap_dirs:
        try:
            directory.mkdir(parents=True)
        except OSError as error:
            release(plan)
            raise Unavailable(
                f"cannot write to the NVMe directory `{directory.parent}`: {error.strerror}",
                "name another with `--nvme`",
            ) from None


def write_forecast(layout: RunLayout, forecast: Forecast) -> None:
    """Keep what was predicted, so that it can be compared with what the ranks measure."""
    write_whole(layout.forecast, json.dumps({**asdict(forecast), "curve": []}, indent=2) + "\n")


def release(plan: LaunchPlan) -> None:
    """Take back a claim on directories in which nothing was written yet."""
    for directory in (*plan.swap_dirs, plan.layout.logs, plan.layout.root, plan.layout.root.parent):
        with contextlib.suppress(OSError):
            directory.rmdir()


def fill(plan: LaunchPlan, machine: Machine, asked: Sequence[str]) -> None:
    """Write all that is known of a run before it starts."""
    layout = plan.layout
    layout.ranks.mkdir()
    layout.ds_config.write_text(to_json(plan.values.config()))
    _write(layout.provenance, {"set": plan.values.sources(), "left": dict(plan.left)})
    _write(layout.job, _job(plan, asked))
    _write(layout.environment, _environment(machine))
    if plan.topology.over_ssh:
        hosts = (f"{host.name} slots={max(host.devices) + 1}\n" for host in plan.topology.hosts)
        layout.hostfile.write_text("".join(hosts))
    layout.command.write_text(command_script(plan))
    layout.command.chmod(0o755)


def check_new(file: Path) -> None:
    """Raise Unavailable if a file exists already."""
    if file.exists():
        raise Unavailable(f"`{file}` exists already", "name another file: nothing is ever overwritten")


def write_new(file: Path, text: str | bytes) -> None:
    """Write a file that does not exist yet; raise Unavailable if it does, or cannot be written."""
    check_new(file)
    try:
        with file.open("xb") as new:
            new.write(text.encode() if isinstance(text, str) else text)
    except OSError as error:
        raise Unavailable(f"`{file}` cannot be written: {error.strerror}") from None


def write_back(file: Path, text: str) -> None:
    """Swap a new text in for an old one, whole, with the permissions the file had; links are followed."""
    target = file.resolve()
    if not os.access(target, os.W_OK):
        raise Unavailable(f"`{file}` cannot be written", "change its permissions first")
    try:
        mode = target.stat().st_mode
        write_whole(target, text)
        target.chmod(mode)
    except OSError as error:
        raise Unavailable(f"`{file}` cannot be written: {error.strerror}") from None


def write_stop(layout: RunLayout, number: int) -> None:
    """Tell the ranks on all hosts to stop, as a signal would."""
    if not layout.stop.exists():
        write_whole(layout.stop, str(number))


def write_outcome(layout: RunLayout, outcome: Outcome, started: float) -> None:
    """Write how the run ended."""
    times = {"started": started, "seconds": time.time() - started}
    _write(layout.ending, {**asdict(outcome), **times, "ranks": read_ranks(layout)})


def read_ranks(layout: RunLayout) -> list[dict[str, Any]]:
    """Read the records that the ranks left."""
    files = [file for file in layout.ranks.glob("rank-*.json") if file.name.count(".") == 1]
    records = [json.loads(file.read_text("utf-8")) for file in files]
    return sorted(records, key=lambda record: int(record["rank"]))


def remove_swap(plan: LaunchPlan) -> None:
    """Delete this run's own directories on NVMe; DeepSpeed leaves them behind."""
    for directory in plan.swap_dirs:
        shutil.rmtree(directory, ignore_errors=True)


def command_script(plan: LaunchPlan) -> str:
    """Write a shell script that repeats the run by hand.

    Over ssh it goes through zlaunch's rank program: it brings the arguments to the other hosts,
    which DeepSpeed's runner would hand to their shells unquoted.
    """
    exports = [f"export {name}={variable.shown(name)}" for name, variable in plan.environment.items()]
    argv = plan.watched_argv if plan.topology.over_ssh else plan.argv
    swap = shlex.quote(f"rm -rf {shlex.join(map(str, plan.swap_dirs))}")
    lines = [
        "#!/bin/sh",
        f"# Repeats this run by hand. Written by zlaunch {__version__}.",
        f"cd {shlex.quote(str(Path.cwd()))} || exit",
        f"PATH={shlex.quote(sysconfig.get_path('scripts'))}:$PATH",
        *exports,
        *([f"trap {swap} EXIT"] if plan.swap_dirs else []),
        *([f"rm -f {shlex.quote(str(plan.layout.stop))}"] if plan.topology.over_ssh else []),
        shlex.join(argv),
    ]
    return "\n".join(lines) + "\n"


def _job(plan: LaunchPlan, asked: Sequence[str]) -> dict[str, Any]:
    return {
        "asked": list(asked),
        "started": time.time(),
        "working_directory": str(Path.cwd()),
        "script": list(plan.script),
        "argv": list(plan.watched_argv),
        "launcher": plan.launcher,
        "accelerator": plan.accelerator,
        "precision": plan.precision,
        "ranks": [asdict(slot) for slot in plan.topology.slots()],
        "environment": {name: variable.value for name, variable in plan.environment.items()},
        "swap_dirs": [str(directory) for directory in plan.swap_dirs] if plan.topology.over_ssh else [],
        "native_ops": [op.name for op in plan.ops],
        "zlaunch_pid": os.getpid(),
    }


def _environment(machine: Machine) -> dict[str, Any]:
    return {
        "zlaunch": __version__,
        "packages": package_versions(PACKAGES),
        "python": sys.executable,
        "machine": asdict(machine),
        "git": _git(),
    }


def _git() -> dict[str, Any] | None:
    """Read the state of the repository the job is started from; None outside of one."""
    commit = _ask_git("rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _ask_git("status", "--porcelain") or ""
    return {
        "commit": commit,
        "branch": _ask_git("rev-parse", "--abbrev-ref", "HEAD"),
        "changed": changed.splitlines(),
    }


def _ask_git(*args: str) -> str | None:
    return output_of(["git", *args], timeout=10)


def _write(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n")
