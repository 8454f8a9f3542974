"""Repeat a run: plan it again from its records in a new directory, and list what has changed."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path

from pydantic import TypeAdapter

from zlaunch.config.resolve.compose import OFFLOADS
from zlaunch.config.resolve.values import Sourced, Values
from zlaunch.dsconfig.native_ops import OPS
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import KeyPath, dotted, leaves
from zlaunch.errors import Unavailable
from zlaunch.hosts.cluster.topology import Host, Reach, Topology
from zlaunch.hosts.environment import Variable, inherited
from zlaunch.job.args import ScriptArgs
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.spec import GpuChoice, JobSpec, Launcher
from zlaunch.launch import rundir_writer
from zlaunch.launch.plan import LaunchPlan, PlanInputs, position_of, swap_name
from zlaunch.launch.prepare import Prepared, prepare
from zlaunch.launch.reporter import Reporter
from zlaunch.launch.surroundings import refuse_several
from zlaunch.launch.time_limit import shields_ranks, time_limit
from zlaunch.process import process_started
from zlaunch.resume.save_plan import plan_saves
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.record import EnvironmentRecord, GitRecord, JobRecord
from zlaunch.rundir.run_files import RunFiles
from zlaunch.secrets import is_secret

_SPEC = TypeAdapter(JobSpec)
_WORDS = TypeAdapter(tuple[str, ...])
_LAUNCHER = TypeAdapter[Launcher](Launcher)


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between the recorded run and now."""

    what: str
    then: str
    now: str


def script_changes(then: str | None, now: str | None) -> Iterator[Change]:
    """Compare the hashes of a script."""
    if then is None:
        yield Change("script", "not recorded", "possibly a different one")
    else:
        yield from _change("script", then[:12], (now or "")[:12])


def environment_changes(then: EnvironmentRecord, now: EnvironmentRecord) -> Iterator[Change]:
    """Compare the software and the hardware that a run depends on."""
    yield from _git_changes(then.get("git") or {}, now.get("git") or {})
    old, new = _versions(then), _versions(now)
    for name in sorted({*old, *new}):
        yield from _change(name, old.get(name), new.get(name))
    yield from _change("interpreter", then.get("python"), now.get("python"))
    yield from _change("GPUs", *(", ".join(_gpu_names(one)) for one in (then, now)))


def _versions(environment: EnvironmentRecord) -> dict[str, str | None]:
    return {**environment.get("packages", {}), "zlaunch": environment.get("zlaunch")}


def _gpu_names(environment: EnvironmentRecord) -> list[str]:
    return [gpu.get("name", "") for gpu in environment.get("machine", {}).get("gpus", [])]


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
    job, run_dir = files.job, RunDir(files.root)
    with _enough_is_recorded(files):
        spec, topology, swap_dirs = dict(job["spec"]), topology_of(job), job["swap_dirs"]
        devices, over_ssh = topology.hosts[0].devices, topology.spans_hosts
        here = GpuChoice(count=len(devices)) if job["accelerator"] == "cpu" else GpuChoice(devices=devices)
        return _SPEC.validate_python(
            {
                **spec,
                "args": ScriptArgs(_WORDS.validate_python(spec.pop("script_args"))),
                "script": job["script"][0],
                "python": job.get("python"),
                "nvme_dir": Path(swap_dirs[0]).parent if swap_dirs else None,
                "gpus": None if over_ssh else here,
                "launcher": job["launcher"],
                "ds_config": run_dir.ds_config if spec["ds_config"] else None,
                "hostfile": run_dir.hostfile if over_ssh else None,
                "include": topology.selection if over_ssh else None,
                "module": job["module"],
            }
        )


def plan_rerun(files: RunFiles, inputs: PlanInputs) -> LaunchPlan:
    """Plan the same run in another directory; raise Unavailable if the records do not suffice.

    The ds_config and directories on NVMe that belonged to the old directory belong to the new one.
    """
    job, old, run_dir = files.job, _recorded_root(files), inputs.layout
    moved = {str(RunDir(old).ds_config): str(run_dir.ds_config)}
    arguments, variables = _resume_words(inputs), _resume_variables(inputs)
    with _enough_is_recorded(files):
        expected, ds_config = (
            _own_swap_dirs(_values(files, config), old, run_dir)
            for config in (files.provenance.get("expected", files.config), files.config)
        )
        position = position_of(inputs, expected)
        return LaunchPlan(
            layout=run_dir,
            python=inputs.python,
            topology=_with_login(topology_of(job), inputs.topology),
            accelerator=job["accelerator"],
            launcher=_LAUNCHER.validate_python(job["launcher"]),
            port=inputs.port,
            address=inputs.address,
            started_by=inputs.started_by,
            software=inputs.software,
            program=inputs.script,
            values=expected,
            ds_config=ds_config,
            left=files.provenance["left"],
            args=ScriptArgs.of(
                arguments.get(before, moved.get(word, word)) for before, word in pairwise(job["script"])
            ),
            environment={
                **{
                    name: _variable(name, moved.get(one, one), inputs.python.programs)
                    for name, one in job["environment"].items()
                },
                **variables,
            },
            ops=tuple(OPS[name] for name in job["native_ops"]),
            precision=job.get("precision"),
            warnings=(),
            module=job.get("module"),
            op_cache=inputs.op_cache,
            resume=position,
            saves=plan_saves(inputs.script, inputs.job.args, position),
            limit=time_limit(inputs.job.wishes.preempt, inputs.environ, process_started()),
            shielded=shields_ranks(inputs.job.wishes.preempt, inputs.environ),
        )


@contextmanager
def _enough_is_recorded(files: RunFiles) -> Iterator[None]:
    """Raise Unavailable if a member of the record is missing or wrong."""
    try:
        yield
    except (LookupError, ValueError) as error:
        what = f" (`{error.args[0]}`)" if isinstance(error, KeyError) else ""
        raise Unavailable(
            f"the record of {_recorded_root(files)} is incomplete, so the run cannot be repeated{what}: "
            "it is damaged, or from another release of zlaunch",
            "use its `run.sh`",
        ) from None


def _resume_words(inputs: PlanInputs) -> dict[str, str]:
    """Return the argument for the checkpoint and its value now: `latest` may name another tag than it did."""
    words = () if inputs.resume is None else inputs.resume.words(inputs.layout)
    return dict([words]) if words else {}


def _resume_variables(inputs: PlanInputs) -> dict[str, Variable]:
    return {} if inputs.resume is None else inputs.resume.variables(inputs.layout)


def _recorded_root(files: RunFiles) -> Path:
    """Find the directory that the run was started with; it may have been moved since."""
    return Path(files.job.get("run_directory", files.root))


def _variable(name: str, value: str, programs: Sequence[str]) -> Variable:
    """Take a variable as it was; in PATH, zlaunch puts the programs of the ranks' Python first."""
    first = value.partition(os.pathsep)[0]
    is_ours = name == "PATH" and first in programs
    return Variable(value, "as recorded", first if is_ours else None, is_secret(name, value))


def topology_of(job: JobRecord) -> Topology:
    """Read from a record which ranks ran where."""
    hosts = [
        Host(name, tuple(slot["device"] for slot in slots))
        for name, slots in groupby(job["ranks"], key=lambda slot: slot["host"])
    ]
    recorded = Reach.SSH if job["over_ssh"] else Reach.HERE  # by releases that did not record it
    reach = Reach(job.get("reach", recorded.value))
    return Topology(tuple(hosts), reach)


def _with_login(topology: Topology, now: Topology) -> Topology:
    """Add how ssh reaches the hosts, which the hostfile of the run says."""
    known = {host.name: host for host in now.hosts}
    hosts = (replace(known.get(host.name, host), devices=host.devices) for host in topology.hosts)
    return replace(topology, hosts=tuple(hosts))


def _values(files: RunFiles, config: Mapping[str, object]) -> Values:
    recorded = files.provenance["set"]

    def source(path: KeyPath) -> Source:
        return Source(SourceKind.EARLIER_RUN, recorded.get(dotted(path), "the repeated run"))

    return Values({path: Sourced(value, source(path)) for path, value in leaves(config)})


def _own_swap_dirs(values: Values, old: Path, run_dir: RunDir) -> Values:
    """Replace directories on NVMe that belonged to the old run by ones of the new run."""
    for path in [(ZERO, name, "nvme_path") for name in OFFLOADS]:
        if isinstance(value := values[path], str) and Path(value).name.startswith(f"zlaunch-{old.name}-"):
            own = Path(value).with_name(swap_name(run_dir))
            values = values.put(path, str(own), values.leaves[path].source)
    return values


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
    now = rundir_writer.environment_of(prepared.inputs)
    script = rundir_writer.file_sha256(prepared.inputs.job.script)
    return [
        *script_changes(files.job.get("script_sha256"), script),
        *environment_changes(files.environment, now),
    ]


def prepare_rerun(files: RunFiles, run_dir: Path | None, reporter: Reporter) -> Prepared:
    """Prepare a run again, for a directory beside the old one unless another is given."""
    refuse_several(os.environ, "zlaunch runs rerun")
    if files.job.get("reach") in (Reach.JOINED.value, Reach.SRUN.value):
        raise Unavailable(
            f"{files.root.name} ran on the nodes of a job that has ended",
            "start `zlaunch train` in a new one, with the same words: `zlaunch runs show` has them",
        )
    prepared = prepare(spec_of(files), run_dir, reporter, files.root.parent)
    return replace(prepared, make_plan=lambda inputs: plan_rerun(files, inputs))
