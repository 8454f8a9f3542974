"""A run once more: its record → the same plan in another directory, and what is no longer as it was."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from zlaunch import __version__
from zlaunch.config.native_ops import (
    ASYNC_IO,
    CPU_ADAGRAD,
    CPU_ADAM,
    CPU_LION,
    FUSED_ADAM,
    FUSED_LAMB,
    FUSED_LION,
    SHM_COMM,
)
from zlaunch.config.resolve.compose import OFFLOADS
from zlaunch.config.resolve.values import Sourced, Values
from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.dsconfig.text.document import dotted, leaves
from zlaunch.errors import Unavailable
from zlaunch.hosts.environment import Variable, inherited
from zlaunch.hosts.probe import package_versions
from zlaunch.hosts.topology import Host, Topology
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.spec import GpuChoice, JobSpec, Offload, RestartPolicy, RunOptions
from zlaunch.launch import rundir_writer
from zlaunch.launch.backends import BACKENDS
from zlaunch.launch.backends.target import Target
from zlaunch.launch.plan import LaunchPlan, swap_name, target_of
from zlaunch.launch.prepare import Prepared, prepare
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.record import RunFiles

OPS = {
    op.name: op
    for op in (ASYNC_IO, CPU_ADAGRAD, CPU_ADAM, CPU_LION, FUSED_ADAM, FUSED_LAMB, FUSED_LION, SHM_COMM)
}


@dataclass(frozen=True)
class RecordedRun:
    """What a run directory says about how its run was started."""

    root: Path
    """The directory when the run was started; it may have been moved since."""
    job: Mapping[str, Any]
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class RunContext:
    """What a run depends on and its record names: then, or now."""

    script_sha256: str | None
    git: Mapping[str, Any] | None
    packages: Mapping[str, Any]
    python: str
    gpus: Sequence[str]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not what it was."""

    what: str
    then: str
    now: str


def run_context(past: RecordedRun) -> RunContext:
    """Read from a record what the run depended on."""
    recorded = past.environment
    return RunContext(
        script_sha256=past.job.get("script_sha256"),
        git=recorded.get("git"),
        packages={**recorded.get("packages", {}), "zlaunch": recorded.get("zlaunch")},
        python=str(recorded.get("python", "")),
        gpus=[str(gpu.get("name")) for gpu in recorded.get("machine", {}).get("gpus", [])],
    )


def changes(then: RunContext, now: RunContext) -> list[Change]:
    """Name what is not what it was; a difference there may make the repetition another run."""
    found = [*_script_changes(then, now), *_git_changes(then.git, now.git)]
    for name in sorted({*then.packages, *now.packages}):
        found += _change(name, then.packages.get(name), now.packages.get(name))
    found += _change("interpreter", then.python, now.python)
    return [*found, *_change("GPUs", ", ".join(then.gpus), ", ".join(now.gpus))]


def _script_changes(then: RunContext, now: RunContext) -> Iterator[Change]:
    if then.script_sha256 is None:
        yield Change("script", "was not recorded", "may be another one")
    else:
        yield from _change("script", then.script_sha256[:12], (now.script_sha256 or "")[:12])


def _git_changes(then: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> Iterator[Change]:
    before, after = then or {}, now or {}
    commits = [str(git.get("commit") or "")[:12] for git in (before, after)]
    yield from _change("git commit", *commits)
    if before.get("diff_sha256") != after.get("diff_sha256") and "diff_sha256" in before:
        told = [str(git.get("diff_sha256") or "")[:12] for git in (before, after)]
        yield Change("uncommitted changes", told[0] or "none", told[1] or "none")


def _change(what: str, then: Any, now: Any) -> Iterator[Change]:
    if then != now:
        yield Change(what, str(then or "none"), str(now or "none"))


def spec_of(past: RecordedRun, now: RunDir) -> JobSpec:
    """Read what was asked for; raise Unavailable if the record does not say it.

    Files and machines may be others by now: the ds_config and the hosts are those of the record, which is
    where `now` says.
    """
    try:
        return _spec(past.job, now)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _too_little(past, error) from None


def _spec(job: Mapping[str, Any], now: RunDir) -> JobSpec:
    said, topology = job["spec"], topology_of(job)
    devices = topology.hosts[0].devices
    here = GpuChoice(count=len(devices)) if job["accelerator"] == "cpu" else GpuChoice(devices=devices)
    slots = (f"{host.name}:{','.join(map(str, host.devices))}" for host in topology.hosts)
    wishes = said["wishes"]
    return JobSpec(
        script=Path(job["script"][0]),
        script_args=tuple(said["script_args"]),
        stage=said["stage"],
        offload=said["offload"] and Offload(**said["offload"]),
        nvme_dir=Path(job["swap_dirs"][0]).parent if job["swap_dirs"] else None,
        precision=said["precision"],
        gpus=None if topology.over_ssh else here,
        launcher=job["launcher"],
        ds_config=now.ds_config if said["ds_config"] else None,
        overrides=tuple((key, value) for key, value in said["overrides"]),
        hostfile=now.hostfile if topology.over_ssh else None,
        include="@".join(slots) if topology.over_ssh else None,
        module=job["module"],
        wishes=RunOptions(**{**wishes, "policy": RestartPolicy(**wishes["policy"])}),
    )


def plan_rerun(past: RecordedRun, layout: RunDir, port: int) -> LaunchPlan:
    """Plan the same run in another directory; raise Unavailable if the record does not say enough.

    What names the old directory names the new one: the ds_config, and directories on NVMe.
    """
    try:
        return _plan(past, layout, port)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _too_little(past, error) from None


def _too_little(past: RecordedRun, error: Exception) -> Unavailable:
    what = f" (`{error.args[0]}`)" if isinstance(error, KeyError) else ""
    return Unavailable(
        f"the record of {past.root} does not say enough to repeat the run{what}: "
        "it is of another zlaunch, or damaged",
        "its `run.sh` repeats it by hand",
    )


def _plan(past: RecordedRun, layout: RunDir, port: int) -> LaunchPlan:
    job, moved = past.job, {str(RunDir(past.root).ds_config): str(layout.ds_config)}
    topology, launcher, accelerator = topology_of(job), job["launcher"], str(job["accelerator"])
    script = tuple(moved.get(word, word) for word in job["script"])
    hostfile = str(layout.hostfile) if topology.over_ssh else None
    targets = (
        replace(target_of(script, job.get("module")), hostfile=hostfile),
        Target("zlaunch.worker.rank", (str(layout.root),), is_module=True, hostfile=hostfile),
    )
    argv, watched = (BACKENDS[launcher].build_argv(target, topology, accelerator, port) for target in targets)
    values = _own_swap_dirs(_values(past), past.root, layout)
    variables = {name: _variable(name, moved.get(value, value)) for name, value in job["environment"].items()}
    return LaunchPlan(
        layout=layout,
        topology=topology,
        accelerator=accelerator,
        launcher=launcher,
        values=values,
        left=past.provenance["left"],
        script=script,
        argv=argv,
        watched_argv=watched,
        environment=variables,
        ops=tuple(OPS[name] for name in job["native_ops"]),
        swap_dirs=tuple(sorted({Path(path) for path in _swapped_to(values)})),
        precision=str(job["precision"]),
        warnings=(),
        module=job.get("module"),
    )


def _variable(name: str, value: str) -> Variable:
    """Take a variable as it was; all that is ever changed of a path to programs is put before it."""
    return Variable(value, "as it was", value.partition(os.pathsep)[0] if name == "PATH" else None)


def topology_of(job: Mapping[str, Any]) -> Topology:
    """Read from a record which ranks ran where."""
    hosts = [
        Host(str(name), tuple(int(slot["device"]) for slot in slots))
        for name, slots in groupby(job["ranks"], key=lambda slot: slot["host"])
    ]
    return Topology(tuple(hosts), bool(job["over_ssh"]))


def _values(past: RecordedRun) -> Values:
    """Read the ds_config with who set each value of it."""
    recorded = past.provenance["set"]
    return Values(
        {
            path: Sourced(
                value,
                Source(SourceKind.EARLIER_RUN, recorded.get(dotted(path), "the run that is repeated")),
            )
            for path, value in leaves(past.config)
        }
    )


def _own_swap_dirs(values: Values, old: Path, layout: RunDir) -> Values:
    """Give the repetition directories of its own where the run had directories of its own."""
    for path in [(ZERO, name, "nvme_path") for name in OFFLOADS]:
        if isinstance(value := values[path], str) and Path(value).name.startswith(f"zlaunch-{old.name}-"):
            own = Path(value).with_name(swap_name(layout))
            values = values.put(path, str(own), values.leaves[path].source)
    return values


def _swapped_to(values: Values) -> Iterator[str]:
    for name in OFFLOADS:
        if values[(ZERO, name, "device")] == "nvme":
            yield str(values[(ZERO, name, "nvme_path")])


def recorded_run(found: RunFiles) -> RecordedRun:
    """Take from what was read of a run how it was started; its directory may have been moved since."""
    recorded = found.job.get("run_directory")
    root = Path(recorded) if isinstance(recorded, str) else found.root
    return RecordedRun(root, found.job, found.config, found.provenance, found.environment)


def restore_environment(past: RecordedRun) -> list[Change]:
    """Enter the directory a run was started in, and set the variables it inherited as they were.

    Returns the variables that differed; those that were not set then are taken away.
    """
    directory = str(past.job.get("working_directory", ""))
    try:
        os.chdir(directory)
    except OSError as error:
        raise Unavailable(f"the run was started in `{directory}`: {error.strerror}") from None
    if "inherited" not in past.job:
        return []
    then, now = dict(past.job["inherited"]), inherited(os.environ)
    differing = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    for name in differing:
        os.environ.pop(name, None)
        os.environ.update({name: then[name]} if name in then else {})
    return [Change(name, then.get(name, "not set"), now.get(name, "not set")) for name in differing]


def what_changed(past: RecordedRun, prepared: Prepared) -> list[Change]:
    """Compare what the run depended on with what is here."""
    then = run_context(past)
    now = replace(
        then,
        script_sha256=rundir_writer.file_sha256(prepared.inputs.job.script),
        git=rundir_writer.git_state(),
        packages={**package_versions(rundir_writer.PACKAGES), "zlaunch": __version__},
        python=sys.executable,
        gpus=[gpu.name for gpu in prepared.inputs.machine.gpus],
    )
    return changes(then, now)


def prepare_rerun(found: RunFiles, run_dir: Path | None) -> Prepared:
    """Look into a run once more, for a directory beside the old one if none was asked for."""
    past = recorded_run(found)
    prepared = prepare(spec_of(past, RunDir(found.root)), run_dir, found.root.parent)
    return replace(prepared, decide=lambda inputs: plan_rerun(past, inputs.layout, inputs.port))
