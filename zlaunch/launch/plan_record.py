"""A plan as a record, and the plan of a record moved to another run directory."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import cast

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL, OpenReason
from zlaunch.config.resolve.compose import OFFLOADS
from zlaunch.config.resolve.values import Sourced, Values
from zlaunch.dsconfig.native_ops import OPS
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import KeyPath, dotted, leaves
from zlaunch.errors import Unavailable
from zlaunch.hosts.adapters import adapter_of
from zlaunch.hosts.cluster.topology import Host, Reach, Topology
from zlaunch.hosts.rank_environment import Variable, refuse_impossible
from zlaunch.job.args import ScriptArgs
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.spec import GpuChoice, JobSpec, Launcher
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.plan import LaunchPlan, swap_name
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.record import DebugRecord, JobRecord, PlanRecord, ProfileRecord, SlotRecord
from zlaunch.rundir.run_files import RunFiles
from zlaunch.secrets import is_secret
from zlaunch.units import whole

RECORDED_OPTIONS = {
    *("resume", "allow_reshard", "config_flags", "may_ask", "stage", "offload", "precision"),
    *("ds_config", "overrides", "run_options"),
}
"""Options that the plan does not show."""


def options_record(job: JobSpec) -> dict[str, object]:
    """Write the options of a job that its plan does not show."""
    options = adapter_of(JobSpec).dump_python(job, mode="json", include=RECORDED_OPTIONS)
    return {"script_args": list(job.args.words), "wishes": options.pop("run_options"), **options}


def recorded_job(files: RunFiles) -> JobSpec:
    """Read the options of a run; raise Unavailable if the record does not have them.

    The ds_config and the hosts are those in the run directory: the originals may have changed.
    """
    job, run_dir = files.job, RunDir(files.root)
    with enough_is_recorded(files):
        options, topology, swap_dirs = job["spec"], topology_of(job), job["swap_dirs"]
        where: dict[str, object] = {}
        if topology.spans_hosts:
            where = {"hostfile": run_dir.hostfile, "include": topology.selection}
        elif job["accelerator"] == "cpu":
            where = {"gpus": GpuChoice(count=topology.world_size)}
        else:
            where = {"gpus": GpuChoice(devices=topology.hosts[0].devices)}
        job_spec: JobSpec = adapter_of(JobSpec).validate_python(
            {
                **options,
                **where,
                "run_options": options.get("wishes", {}),
                "args": ScriptArgs(adapter_of(tuple[str, ...]).validate_python(options["script_args"])),
                "script": job["script"][0],
                "python": job.get("python"),
                "nvme_dir": Path(swap_dirs[0]).parent if swap_dirs else None,
                "launcher": job["launcher"],
                "ds_config": run_dir.ds_config if options["ds_config"] else None,
                "module": job["module"],
            }
        )
        return job_spec


def plan_record(plan: LaunchPlan) -> PlanRecord:
    """Write what a plan decides; `ds_config.json` and `provenance.json` have the ds_config."""
    values, profile = plan.values, plan.facts.job.profile
    devices = {name.partition("_")[2]: values[(ZERO, name, "device")] for name in OFFLOADS}
    micro, accumulated = whole(values[MICRO]), whole(values[ACCUMULATION])
    total = whole(values[TOTAL])
    if total is None and micro and accumulated and plan.left.get(dotted(TOTAL)) != OpenReason.GROUPS:
        total = micro * accumulated * plan.topology.world_size
    return {
        "run_directory": str(plan.layout.root),
        "launcher": plan.launcher,
        "accelerator": plan.accelerator,
        "python": plan.python.executable,
        "module": plan.module,
        "script": list(plan.script_words),
        "argv": list(plan.watched_argv),
        "precision": plan.precision,
        "interface": plan.script.interface.value,
        "handover": plan.script.handover.value,
        "debug": None if plan.debug is None else cast("DebugRecord", asdict(plan.debug)),
        "profile": None if profile is None else cast("ProfileRecord", asdict(profile)),
        "passes_local_rank": plan.passes_local_rank,
        "local_rank_flag": plan.script.local_rank_flag,
        "shielded": plan.shielded,
        "ranks": [cast("SlotRecord", asdict(slot)) for slot in plan.topology.slots()],
        "over_ssh": plan.topology.spans_hosts,
        "reach": plan.topology.reach.value,
        "rendezvous": [plan.facts.address, str(plan.facts.port)],
        "stage": (whole(values[(ZERO, "stage")]) or 0) if values.leaves else None,
        "offload": {part: None if device == "none" else device for part, device in devices.items()},
        "micro_batch": micro,
        "grad_accum": accumulated,
        "train_batch_size": total,
        "environment": {name: variable.value for name, variable in plan.environment.items()},
        "swap_dirs": [str(directory) for directory in plan.swap_dirs],
        "native_ops": [op.name for op in plan.ops],
        "resumed_step": None if plan.data_position is None else plan.data_position.resumption.saved.step,
    }


def moved_plan(files: RunFiles, facts: JobFacts) -> LaunchPlan:
    """Move the plan of a run to another directory; raise Unavailable if its records do not suffice.

    The ds_config and directories on NVMe that belonged to the old directory belong to the new one.
    """
    job, old = files.job, RunDir(recorded_root(files))
    moved = {str(old.ds_config): str(facts.layout.ds_config)}
    resumed, variables = dict[str, str](), dict[str, Variable]()
    if facts.resumption is not None:
        variables = facts.resumption.variables(facts.layout)
        if option := facts.resumption.words(facts.layout):
            resumed = dict([option])
    with enough_is_recorded(files):
        expected = _values(files, files.provenance.get("expected", files.config))
        # The checkpoint is the one that `latest` names now.
        words = (resumed.get(before, moved.get(word, word)) for before, word in pairwise(job["script"]))
        environment = {
            name: _variable(name, moved.get(value, value), facts.python.programs)
            for name, value in job["environment"].items()
        }
        args = ScriptArgs.of(words)
        recorded = {flag.index: "as recorded" for flag in args.flags}
        return LaunchPlan(
            facts=facts,
            topology=_with_login(topology_of(job), facts.topology),
            accelerator=job["accelerator"],
            launcher=adapter_of(Launcher).validate_python(job["launcher"]),
            values=_in_own_swap_dirs(expected, old, facts.layout),
            ds_config=_in_own_swap_dirs(_values(files, files.config), old, facts.layout),
            left=files.provenance["left"],
            args=replace(args, added=recorded),
            environment={**environment, **variables},
            ops=tuple(OPS[name] for name in job["native_ops"]),
            precision=job.get("precision"),
        )


@contextmanager
def enough_is_recorded(files: RunFiles) -> Iterator[None]:
    """Raise Unavailable if a member of the record is missing or wrong."""
    try:
        yield
    except (LookupError, ValueError) as error:
        what = ""
        if isinstance(error, KeyError):
            what = f" (`{error.args[0]}`)"
        raise Unavailable(
            f"the record of {recorded_root(files)} is incomplete, so the run cannot be repeated{what}: "
            "it is damaged, or from another release of zlaunch",
            "use its `run.sh`",
        ) from None


def recorded_root(files: RunFiles) -> Path:
    """Find the directory that the run was started with; it may have been moved since."""
    return Path(files.job.get("run_directory", files.root))


def reach_of(job: JobRecord) -> Reach:
    """Read from a record how zlaunch reached the hosts; older releases recorded only whether it did."""
    reach = Reach.HERE
    if job["over_ssh"]:
        reach = Reach.SSH
    if "reach" in job:
        reach = Reach(job["reach"])
    return reach


def topology_of(job: JobRecord) -> Topology:
    """Read from a record which ranks ran where; raise ValueError if it has none."""
    if not job["ranks"]:
        raise ValueError("a job has at least one rank")
    hosts = [
        Host(name, tuple(slot["device"] for slot in slots))
        for name, slots in groupby(job["ranks"], key=lambda slot: slot["host"])
    ]
    return Topology(tuple(hosts), reach_of(job))


def _with_login(topology: Topology, now: Topology) -> Topology:
    """Add how ssh reaches the hosts, which the hostfile of the run says."""
    known = {host.name: host for host in now.hosts}
    hosts = (replace(known.get(host.name, host), devices=host.devices) for host in topology.hosts)
    return replace(topology, hosts=tuple(hosts))


def _variable(name: str, value: str, programs: Sequence[str]) -> Variable:
    """Take a variable as it was; in PATH, zlaunch puts the programs of the ranks' Python first."""
    refuse_impossible(name, value)
    prepended: str | None = None
    first = value.partition(os.pathsep)[0]
    if name == "PATH" and first in programs:
        prepended = first
    return Variable(value, "as recorded", prepended, is_secret(name, value))


def _values(files: RunFiles, config: Mapping[str, object]) -> Values:
    recorded = files.provenance["set"]

    def source(path: KeyPath) -> Source:
        return Source(SourceKind.EARLIER_RUN, recorded.get(dotted(path), "the repeated run"))

    return Values({path: Sourced(value, source(path)) for path, value in leaves(config)})


def _in_own_swap_dirs(values: Values, old: RunDir, new: RunDir) -> Values:
    """Replace directories on NVMe that belonged to the old run by ones of the new run."""
    for path in [(ZERO, name, "nvme_path") for name in OFFLOADS]:
        value = values[path]
        if isinstance(value, str) and Path(value).name.startswith(f"zlaunch-{old.root.name}-"):
            directory = Path(value).with_name(swap_name(new))
            values = values.put(path, str(directory), values.leaves[path].source)
    return values
