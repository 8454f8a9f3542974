"""The only writer: one directory per run, of the shape that `layout` describes, and what a user asks for."""

import contextlib
import hashlib
import json
import os
import shlex
import socket
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zlaunch import __version__
from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL
from zlaunch.config.resolve.compose import OFFLOADS, to_json
from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.errors import Unavailable
from zlaunch.estimate.forecast import Forecast
from zlaunch.files import nearest, read_object, write_whole
from zlaunch.hosts.environment import inherited
from zlaunch.hosts.machine import Machine
from zlaunch.hosts.probe import package_versions
from zlaunch.job.spec import JobSpec
from zlaunch.launch.plan import LaunchPlan, PlanInputs
from zlaunch.process import output_of
from zlaunch.rundir.layout import ROOM_BYTES, RUNS, RunDir, write_ending
from zlaunch.rundir.record import FIRST, Lineage
from zlaunch.units import whole

if TYPE_CHECKING:
    from zlaunch.diagnosis.evidence import StallEvidence
    from zlaunch.diagnosis.outcome import Outcome

PACKAGES = ("torch", "deepspeed", "accelerate", "transformers", "datasets", "pydantic", "typer")


def candidates(chosen: Path | None, name: str, beside: Path = RUNS) -> Iterator[RunDir]:
    """Propose run directories: the one that was asked for, or `runs/<time>-<name>`, numbered if taken."""
    if chosen is not None:
        yield RunDir(chosen.absolute())
        return
    root = beside.absolute()
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    for attempt in range(1, 1000):
        layout = RunDir(root / (name if attempt == 1 else f"{name}-{attempt}"))
        if not layout.root.exists():
            yield layout


def check_writable(directory: Path, flag: str) -> None:
    """Raise Unavailable if a directory does not exist and cannot be made, or cannot be written."""
    found, said = nearest(directory), f"`{flag} {os.path.normpath(directory)}`"
    there = os.path.normpath(found)
    if not found.is_dir():
        raise Unavailable(f"{said}: {there} is not a directory")
    if not os.access(found, os.W_OK | os.X_OK):
        raise Unavailable(f"{said}: {there} cannot be written", f"name another directory with `{flag}`")


def check_unused(directory: Path) -> None:
    """Raise Unavailable if a run directory holds anything already."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Unavailable(
            f"`--run-dir {os.path.normpath(directory)}` is not empty",
            "name a new directory: nothing is ever overwritten",
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


def write_forecast(layout: RunDir, forecast: Forecast) -> None:
    """Keep what was predicted, so that it can be compared with what the ranks measure."""
    write_whole(layout.forecast, json.dumps({**asdict(forecast), "curve": []}, indent=2) + "\n")


def release(plan: LaunchPlan) -> None:
    """Take back a claim on directories, and what was written in them before the start."""
    layout = plan.layout
    with contextlib.suppress(OSError):
        for file in layout.first_files:
            file.unlink(missing_ok=True)
    for directory in (*plan.swap_dirs, layout.ranks, layout.logs, layout.root):
        with contextlib.suppress(OSError):
            directory.rmdir()


def write_run_files(
    plan: LaunchPlan, inputs: PlanInputs, asked: Sequence[str], lineage: Lineage = FIRST
) -> None:
    """Write all that is known of a run before it starts."""
    layout = plan.layout
    layout.ranks.mkdir()
    layout.ds_config.write_text(to_json(plan.values.config()))
    _write(layout.provenance, {"set": plan.values.sources(), "left": dict(plan.left)})
    _write(layout.job, {**_job(plan, asked), "spec": _spec(inputs.job), **_identity(plan), **asdict(lineage)})
    _write(layout.environment, _environment(inputs.machine))
    if plan.topology.over_ssh:
        hosts = (f"{host.name} slots={max(host.devices) + 1}\n" for host in plan.topology.hosts)
        layout.hostfile.write_text("".join(hosts))
    layout.command.write_text(command_script(plan))
    layout.command.chmod(0o755)
    layout.room.write_bytes(b"\n" * ROOM_BYTES)


def append_metrics(layout: RunDir, facts: Mapping[str, Any]) -> None:
    """Add a line to what was seen of the job; on a full disk there is none."""
    with contextlib.suppress(OSError), layout.metrics.open("a") as file:
        file.write(json.dumps(facts) + "\n")


def write_outcome(
    layout: RunDir, outcome: "Outcome", started: float, stall: "StallEvidence | None" = None
) -> None:
    """Write how the run ended, and where its ranks stood still before."""
    times = {"started": started, "seconds": time.time() - started}
    told = {"stall": None if stall is None else asdict(stall)}
    ending = {**asdict(outcome), **times, **told, "ranks": read_ranks(layout)}
    write_ending(layout, json.dumps(ending, indent=2) + "\n")


def read_ranks(layout: RunDir) -> list[dict[str, Any]]:
    """Read the records that the ranks left; one that a full disk cut short is left out."""
    files = [file for file in layout.ranks.glob("rank-*.json") if file.name.count(".") == 1]
    records = (read_object(file) for file in files)
    return sorted((record for record in records if "rank" in record), key=lambda record: int(record["rank"]))


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
        "module": plan.module,
        "debug": None if plan.debug is None else asdict(plan.debug),
        "argv": list(plan.watched_argv),
        "launcher": plan.launcher,
        "accelerator": plan.accelerator,
        "precision": plan.precision,
        "ranks": [asdict(slot) for slot in plan.topology.slots()],
        "environment": {name: variable.value for name, variable in plan.environment.items()},
        "swap_dirs": [str(directory) for directory in plan.swap_dirs],
        "native_ops": [op.name for op in plan.ops],
        **_sizes(plan),
    }


def _spec(job: JobSpec) -> dict[str, Any]:
    """Keep what was asked for, as far as the plan does not say it, so that it can be asked for again."""
    return {
        "script_args": job.script_args,
        "stage": job.stage,
        "offload": None if job.offload is None else asdict(job.offload),
        "precision": job.precision,
        "ds_config": None if job.ds_config is None else str(job.ds_config),
        "overrides": job.overrides,
        "wishes": asdict(job.wishes),
    }


def _sizes(plan: LaunchPlan) -> dict[str, Any]:
    """Say in a few numbers what kind of job it is."""
    values = plan.values
    devices = {name.partition("_")[2]: values[(ZERO, name, "device")] for name in OFFLOADS}
    micro, accumulated = whole(values[MICRO]), whole(values[ACCUMULATION])
    total = micro * accumulated * plan.topology.world_size if micro and accumulated else None
    return {
        "stage": whole(values[(ZERO, "stage")]) or 0,
        "offload": {part: None if device == "none" else device for part, device in devices.items()},
        "micro_batch": micro,
        "grad_accum": accumulated,
        "train_batch_size": whole(values[TOTAL]) or total,
    }


def _identity(plan: LaunchPlan) -> dict[str, Any]:
    """Tell the run from every other: its process, its place, its script, and what it inherited."""
    import psutil  # which a dry run need not wait for

    return {
        "host": socket.gethostname(),
        "zlaunch_pid": os.getpid(),
        "zlaunch_started": psutil.Process().create_time(),
        "run_directory": str(plan.layout.root),
        "over_ssh": plan.topology.over_ssh,
        "script_sha256": file_sha256(Path(plan.script[0])),
        "inherited": inherited(os.environ),
    }


def file_sha256(file: Path) -> str | None:
    """Sum a file up; None if it cannot be read."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(file.read_bytes()).hexdigest()
    return None


def _environment(machine: Machine) -> dict[str, Any]:
    return {
        "zlaunch": __version__,
        "packages": package_versions(PACKAGES),
        "python": sys.executable,
        "machine": asdict(machine),
        "git": git_state(),
    }


def git_state() -> dict[str, Any] | None:
    """Read the state of the repository the job is started from; None outside of one."""
    named = _ask_git("rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    if named is None:
        return None
    commit, branch = named.splitlines()
    changed = _ask_git("status", "--porcelain") or ""
    difference = changed and (_ask_git("diff", "--no-ext-diff", "HEAD") or "")
    return {
        "commit": commit,
        "branch": branch,
        "changed": changed.splitlines(),
        "diff_sha256": hashlib.sha256(difference.encode()).hexdigest() if difference else None,
    }


def _ask_git(*args: str) -> str | None:
    return output_of(["git", *args], timeout=10)


def _write(file: Path, value: Any) -> None:
    write_whole(file, json.dumps(value, indent=2) + "\n")
