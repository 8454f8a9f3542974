"""Create a run directory and write its records."""

import contextlib
import hashlib
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

from zlaunch import __version__
from zlaunch.config.resolve.compose import to_json
from zlaunch.errors import Finding, Unavailable
from zlaunch.estimate.query import Estimate
from zlaunch.files import PRIVATE, is_safe_word, write_whole
from zlaunch.hosts.cluster.topology import Reach
from zlaunch.hosts.rank_environment import inherited, may_export
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.node_start import control_port, node_plans
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.plan_record import options_record, plan_record
from zlaunch.launch.shared_output import output_directory
from zlaunch.process import output_of
from zlaunch.rundir import record
from zlaunch.rundir.layout import RESERVE_BYTES, RunDir
from zlaunch.rundir.owner import own_identity
from zlaunch.rundir.read import read_rank_records
from zlaunch.rundir.record import FIRST, Lineage
from zlaunch.rundir.swap import make_swap_dir, remove_unused
from zlaunch.rundir.write import create_root, record_text, write_ending, write_record
from zlaunch.secrets import fingerprints

if TYPE_CHECKING:  # nothing is diagnosed in a dry run
    from zlaunch.diagnosis.outcome import Outcome
    from zlaunch.diagnosis.stall import StallEvidence

PACKAGES = ("torch", "deepspeed", "accelerate", "transformers", "datasets", "pydantic", "typer")


def claim(plan: LaunchPlan, *, is_shared: bool = False) -> None:
    """Create the directories of a run; raise FileExistsError if another run was faster."""
    create_root(plan.layout, is_shared=is_shared)
    plan.layout.logs.mkdir()
    for directory in plan.swap_dirs:
        try:
            make_swap_dir(directory)
        except OSError as error:
            release(plan)
            raise Unavailable(
                f"cannot write to the NVMe directory `{directory.parent}`: {error.strerror}",
                "choose another with `--nvme`",
            ) from None


def write_forecast(run_dir: RunDir, estimate: Estimate) -> None:
    """Record the forecast, to be compared with what the ranks measure."""
    step: record.StepForecast | None = None
    if estimate.speed is not None:
        roofline = estimate.speed.roofline
        terms = {term.name: list(term.likely) for term in roofline.terms}
        step = {"likely": list(roofline.likely), "bound_by": roofline.bound_by, "terms": terms}
    write_record(run_dir.forecast, {**asdict(estimate.forecast), "curve": [], "step": step})


def release(plan: LaunchPlan) -> None:
    """Delete the directories of a run that does not start, with their contents."""
    run_dir = plan.layout
    with contextlib.suppress(OSError):
        for file in run_dir.first_files:
            file.unlink(missing_ok=True)
        for link in run_dir.resume.glob("*"):
            link.unlink()
    for directory in plan.swap_dirs:
        with contextlib.suppress(OSError):
            remove_unused(directory)
    for directory in (run_dir.ranks, run_dir.logs, run_dir.resume, run_dir.root):
        with contextlib.suppress(OSError):
            directory.rmdir()


def write_run_files(
    plan: LaunchPlan,
    asked: Sequence[str],
    lineage: Lineage = FIRST,
    forced: Sequence[Finding] = (),
    *,
    is_shared: bool = False,
) -> None:
    """Write the records of a run before it starts; `forced` is why it would have been refused."""
    run_dir = plan.layout
    run_dir.ranks.mkdir()
    if plan.ds_config.leaves:
        run_dir.ds_config.write_text(to_json(plan.ds_config.config()))
    provenance: record.ProvenanceRecord = {"set": plan.values.sources(), "left": dict(plan.left)}
    if plan.ds_config != plan.values:
        provenance["expected"] = plan.values.config()
    write_record(run_dir.provenance, provenance)
    why_not = [finding.message for finding in forced]
    how = {"forced": why_not, "shared": is_shared}
    write_record(run_dir.job, {**_job_record(plan, asked), **own_identity(), **lineage._asdict(), **how})
    write_record(run_dir.environment, environment_of(plan.facts))
    if (prints := fingerprints()).digests:
        write_whole(run_dir.secrets, record_text(prints._asdict()), PRIVATE)
    if plan.topology.spans_hosts:
        run_dir.hostfile.write_text("".join(f"{host.line()}\n" for host in plan.topology.hosts))
    write_whole(run_dir.command, command_script(plan), mode=0o777)
    if plan.data_position is not None:
        plan.data_position.resumption.link(run_dir)
    if plan.facts.estimate is not None:
        write_forecast(run_dir, plan.facts.estimate)
    run_dir.reserve.write_bytes(b"\n" * RESERVE_BYTES)


def append_metrics(run_dir: RunDir, metrics: record.MetricsRecord) -> None:
    """Add a line of metrics; on a full disk there is none."""
    with contextlib.suppress(OSError), run_dir.metrics.open("a") as file:
        file.write(record_text(metrics, indent=None))


def write_outcome(
    run_dir: RunDir, outcome: "Outcome", started: float, stall: "StallEvidence | None" = None
) -> None:
    """Record how the run ended, and where its ranks were if it stalled."""
    verdict = None if outcome.verdict is None else asdict(outcome.verdict)
    ending: record.EndingRecord = {
        "how": outcome.how,
        "exit_status": outcome.exit_status,
        "returncode": outcome.returncode,
        "verdict": cast("record.VerdictRecord | None", verdict),
        "started": started,
        "seconds": time.time() - started,
        "stall": None if stall is None else cast("record.StallRecord", asdict(stall)),
        "ranks": list(read_rank_records(run_dir, record.RankRecord).values()),
    }
    write_ending(run_dir, ending)


def command_script(plan: LaunchPlan) -> str:
    """Write a shell script that repeats the run by hand.

    Over ssh it goes through zlaunch's rank program: it brings directory, arguments and variables to the other
    hosts, which DeepSpeed's runner would hand to their shells unquoted.
    """
    by_runner = plan.topology.spans_hosts and not plan.on_each_host
    exports: list[str] = []
    for name, variable in plan.environment.items():
        if variable.is_secret or (by_runner and not may_export(name, variable.value)):
            exports.append(f"# {name} is in job.json alone")
        else:
            exports.append(f"export {name}={variable.shown(name)}")
    directory, argv = str(Path.cwd()), plan.argv
    if plan.topology.reach in (Reach.SSH, Reach.SRUN):
        argv = plan.watched_argv
    swap = shlex.quote(f"rm -rf {shlex.join(map(str, plan.swap_dirs))}")
    asked = [str(plan.layout.stop), str(plan.layout.save_at)]
    if by_runner and not is_safe_word(directory):
        directory = "/"
    lines = [
        "#!/bin/sh",
        f"# Repeats this run by hand. Written by zlaunch {__version__}.",
        f"cd {shlex.quote(directory)} || exit",
        f"PATH={shlex.quote(os.pathsep.join(plan.python.programs))}:$PATH",
        *exports,
    ]
    if plan.swap_dirs:
        lines.append(f"trap {swap} EXIT")
    if plan.topology.spans_hosts:
        lines.append(f"rm -f {shlex.join(asked)}")
    lines.append(shlex.join(argv))
    return "\n".join(lines) + "\n"


def _job_record(plan: LaunchPlan, asked: Sequence[str]) -> record.JobRecord:
    """The record of a plan, and what else depends on this start."""
    directory = output_directory(plan)
    started: record.JobRecord = {
        "saves_to": None if directory is None else str(directory),
        "asked": list(asked),
        "started": time.time(),
        "working_directory": str(Path.cwd()),
        "nodes": node_plans(plan),
        "control_port": control_port(plan),
        "spec": options_record(plan.facts.job),
        "script_sha256": file_sha256(plan.script.path),
        "inherited": inherited(os.environ),
    }
    return {**started, **plan_record(plan)}


def file_sha256(file: Path) -> str | None:
    """Hash a file; None if it cannot be read."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(file.read_bytes()).hexdigest()
    return None


def environment_of(facts: JobFacts) -> record.EnvironmentRecord:
    """Describe the software and the hardware that a run depends on."""
    return {
        "zlaunch": __version__,
        "packages": facts.python.versions(PACKAGES),
        "python": facts.python.executable,
        "machine": cast("record.MachineRecord", asdict(facts.machine)),
        "git": _git_state(),
    }


def _git_state() -> record.GitRecord | None:
    """Read the state of the repository the job is started from; None outside of one."""
    head = _ask_git("rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    if head is None:
        return None
    commit, branch = head.splitlines()
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
