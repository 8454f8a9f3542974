"""Repeat a run: plan it again from its records, in another directory, and find what differs from then."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from pydantic import TypeAdapter

from zlaunch import __version__
from zlaunch.config.native_ops import OPS
from zlaunch.config.resolve.compose import OFFLOADS
from zlaunch.config.resolve.values import Sourced, Values
from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.dsconfig.text.document import dotted, leaves
from zlaunch.errors import Unavailable
from zlaunch.hosts.environment import Variable, inherited
from zlaunch.hosts.probe import package_versions
from zlaunch.hosts.topology import Host, Topology
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.spec import GpuChoice, JobSpec, Launcher
from zlaunch.launch import rundir_writer
from zlaunch.launch.backends import BACKENDS
from zlaunch.launch.backends.target import Target
from zlaunch.launch.plan import LaunchPlan, swap_name, target_of
from zlaunch.launch.prepare import Prepared, prepare
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.record import GitRecord, JobRecord
from zlaunch.rundir.run_files import RunFiles

_SPEC = TypeAdapter(JobSpec)
_LAUNCHER = TypeAdapter[Launcher](Launcher)


@dataclass(frozen=True)
class RunContext:
    """What a run depends on, at the time of its record or now."""

    script_sha256: str | None
    git: GitRecord | None
    packages: dict[str, str | None]
    python: str
    gpus: Sequence[str]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between then and now."""

    what: str
    then: str
    now: str


def run_context(files: RunFiles) -> RunContext:
    """Read from the records what the run depended on."""
    environment = files.environment
    return RunContext(
        script_sha256=files.job.get("script_sha256"),
        git=environment.get("git"),
        packages={**environment.get("packages", {}), "zlaunch": environment.get("zlaunch")},
        python=environment.get("python", ""),
        gpus=[gpu.get("name", "") for gpu in environment.get("machine", {}).get("gpus", [])],
    )


def changes(then: RunContext, now: RunContext) -> list[Change]:
    """List the differences that may make the repetition another run."""
    found = [*_script_changes(then, now), *_git_changes(then.git or {}, now.git or {})]
    for name in sorted({*then.packages, *now.packages}):
        found += _change(name, then.packages.get(name), now.packages.get(name))
    found += _change("interpreter", then.python, now.python)
    return [*found, *_change("GPUs", ", ".join(then.gpus), ", ".join(now.gpus))]


def _script_changes(then: RunContext, now: RunContext) -> Iterator[Change]:
    if then.script_sha256 is None:
        yield Change("script", "was not recorded", "may be another one")
    else:
        yield from _change("script", then.script_sha256[:12], (now.script_sha256 or "")[:12])


def _git_changes(then: GitRecord, now: GitRecord) -> Iterator[Change]:
    yield from _change("git commit", then.get("commit", "")[:12], now.get("commit", "")[:12])
    if "diff_sha256" in then:
        changed = ((git.get("diff_sha256") or "")[:12] for git in (then, now))
        yield from _change("uncommitted changes", *changed)


def _change(what: str, then: str | None, now: str | None) -> Iterator[Change]:
    if then != now:
        yield Change(what, then or "none", now or "none")


def spec_of(files: RunFiles) -> JobSpec:
    """Read the options of a run; raise Unavailable if the record does not have them.

    The ds_config and the hosts are those in the run directory: the originals may have changed.
    """
    try:
        return _spec(files.job, RunDir(files.root))
    except (LookupError, ValueError) as error:
        raise _too_little(files, error) from None


def _spec(job: JobRecord, run_dir: RunDir) -> JobSpec:
    spec, topology, swap_dirs = job["spec"], topology_of(job), job["swap_dirs"]
    devices, over_ssh = topology.hosts[0].devices, topology.over_ssh
    here = GpuChoice(count=len(devices)) if job["accelerator"] == "cpu" else GpuChoice(devices=devices)
    slots = (f"{host.name}:{','.join(map(str, host.devices))}" for host in topology.hosts)
    return _SPEC.validate_python(
        {
            **spec,
            "script": job["script"][0],
            "nvme_dir": Path(swap_dirs[0]).parent if swap_dirs else None,
            "gpus": None if over_ssh else here,
            "launcher": job["launcher"],
            "ds_config": run_dir.ds_config if spec["ds_config"] else None,
            "hostfile": run_dir.hostfile if over_ssh else None,
            "include": "@".join(slots) if over_ssh else None,
            "module": job["module"],
        }
    )


def plan_rerun(files: RunFiles, run_dir: RunDir, port: int) -> LaunchPlan:
    """Plan the same run in another directory; raise Unavailable if the records do not suffice.

    The ds_config and directories on NVMe that belonged to the old directory belong to the new one.
    """
    try:
        return _plan(files, run_dir, port)
    except (LookupError, ValueError) as error:
        raise _too_little(files, error) from None


def _too_little(files: RunFiles, error: Exception) -> Unavailable:
    what = f" (`{error.args[0]}`)" if isinstance(error, KeyError) else ""
    return Unavailable(
        f"the record of {_recorded_root(files)} does not say enough to repeat the run{what}: "
        "it is of another zlaunch, or damaged",
        "its `run.sh` repeats it by hand",
    )


def _recorded_root(files: RunFiles) -> Path:
    """Find the directory that the run was started with; it may have been moved since."""
    return Path(files.job.get("run_directory", files.root))


def _plan(files: RunFiles, run_dir: RunDir, port: int) -> LaunchPlan:
    job, old = files.job, _recorded_root(files)
    moved = {str(RunDir(old).ds_config): str(run_dir.ds_config)}
    topology, launcher = topology_of(job), _LAUNCHER.validate_python(job["launcher"])
    script = tuple(moved.get(word, word) for word in job["script"])
    hostfile = str(run_dir.hostfile) if topology.over_ssh else None
    targets = (
        replace(target_of(script, job.get("module")), hostfile=hostfile),
        Target("zlaunch.worker.rank", (str(run_dir.root),), is_module=True, hostfile=hostfile),
    )
    build = BACKENDS[launcher].build_argv
    argv, watched = (build(target, topology, job["accelerator"], port) for target in targets)
    values = _own_swap_dirs(_values(files), old, run_dir)
    return LaunchPlan(
        layout=run_dir,
        topology=topology,
        accelerator=job["accelerator"],
        launcher=launcher,
        values=values,
        left=files.provenance["left"],
        script=script,
        argv=argv,
        watched_argv=watched,
        environment={
            name: _variable(name, moved.get(value, value)) for name, value in job["environment"].items()
        },
        ops=tuple(OPS[name] for name in job["native_ops"]),
        swap_dirs=tuple(sorted({Path(path) for path in _swapped_to(values)})),
        precision=job["precision"],
        warnings=(),
        module=job.get("module"),
    )


def _variable(name: str, value: str) -> Variable:
    """Take a variable as it was; of PATH, only the first entry was added by zlaunch."""
    return Variable(value, "as it was", value.partition(os.pathsep)[0] if name == "PATH" else None)


def topology_of(job: JobRecord) -> Topology:
    """Read from a record which ranks ran where."""
    hosts = [
        Host(name, tuple(slot["device"] for slot in slots))
        for name, slots in groupby(job["ranks"], key=lambda slot: slot["host"])
    ]
    return Topology(tuple(hosts), job["over_ssh"])


def _values(files: RunFiles) -> Values:
    recorded = files.provenance["set"]
    return Values(
        {
            path: Sourced(
                value,
                Source(SourceKind.EARLIER_RUN, recorded.get(dotted(path), "the run that is repeated")),
            )
            for path, value in leaves(files.config)
        }
    )


def _own_swap_dirs(values: Values, old: Path, run_dir: RunDir) -> Values:
    """Replace directories on NVMe that belonged to the old run by ones of the new run."""
    for path in [(ZERO, name, "nvme_path") for name in OFFLOADS]:
        if isinstance(value := values[path], str) and Path(value).name.startswith(f"zlaunch-{old.name}-"):
            own = Path(value).with_name(swap_name(run_dir))
            values = values.put(path, str(own), values.leaves[path].source)
    return values


def _swapped_to(values: Values) -> Iterator[str]:
    for name in OFFLOADS:
        if values[(ZERO, name, "device")] == "nvme":
            yield str(values[(ZERO, name, "nvme_path")])


def restore_environment(job: JobRecord) -> list[Change]:
    """Enter the directory a run was started in, and set the variables it inherited as they were.

    Returns the variables that differed; those that were not set then are removed.
    """
    directory = job.get("working_directory", "")
    try:
        os.chdir(directory)
    except OSError as error:
        raise Unavailable(f"the run was started in `{directory}`: {error.strerror}") from None
    if "inherited" not in job:
        return []
    then, now = job["inherited"], inherited(os.environ)
    differing = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    for name in differing:
        os.environ.pop(name, None)
        os.environ.update({name: then[name]} if name in then else {})
    return [Change(name, then.get(name, "not set"), now.get(name, "not set")) for name in differing]


def what_changed(files: RunFiles, prepared: Prepared) -> list[Change]:
    """Compare what the run depended on with what is here."""
    now = RunContext(
        script_sha256=rundir_writer.file_sha256(prepared.inputs.job.script),
        git=rundir_writer.git_state(),
        packages={**package_versions(rundir_writer.PACKAGES), "zlaunch": __version__},
        python=sys.executable,
        gpus=[gpu.name for gpu in prepared.inputs.machine.gpus],
    )
    return changes(run_context(files), now)


def prepare_rerun(files: RunFiles, run_dir: Path | None) -> Prepared:
    """Prepare a run again, for a directory beside the old one unless another is given."""
    prepared = prepare(spec_of(files), run_dir, files.root.parent)
    return replace(prepared, make_plan=lambda inputs: plan_rerun(files, inputs.layout, inputs.port))
