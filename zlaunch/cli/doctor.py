"""`zlaunch doctor`: examine this machine, or the hosts of a job, before anything starts."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.checks.across_hosts import HostResult
from zlaunch.checks.config_at_hand import AtHand, find_at_hand, with_mistakes
from zlaunch.checks.report import judge
from zlaunch.checks.requirements import ConfigAtHand
from zlaunch.checks.result import Status
from zlaunch.checks.software import SHOWN
from zlaunch.cli import options
from zlaunch.cli.job_command import find_job_file
from zlaunch.cli.views.doctor import DoctorView, as_json, table_lines
from zlaunch.errors import ExitStatus, Finding, InputMissing, Refused, WrongUsage
from zlaunch.hosts.agent.examination import examine
from zlaunch.hosts.cluster.slurm import allocated_hosts
from zlaunch.hosts.cluster.topology import Host, Reach, Topology, read_hosts
from zlaunch.hosts.machine.interpreter import inspect_python, stack_of
from zlaunch.hosts.machine.question import FOR_DOCTOR, Question


def doctor(
    script: Annotated[
        Path | None,
        typer.Argument(metavar="SCRIPT", help="Training script, whose bytes must be equal on all hosts."),
    ] = None,
    ds_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="ds_config whose needs are checked (default: the one that `train` would use).",
        ),
    ] = None,
    hostfile: options.Hostfile = None,
    hosts: Annotated[str | None, typer.Option(metavar="A,B", help="Hosts to examine over ssh.")] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Examine all hosts of this allocation of Slurm, with srun.")
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            metavar="N",
            help="Port of the rendezvous (default: any free one).",
            show_default=False,
        ),
    ] = 0,
    collective: Annotated[
        bool,
        typer.Option(
            "--collective", help="Also measure a real all-reduce over all hosts; takes half a minute."
        ),
    ] = False,
    python: options.Python = None,
    as_json_: options.AsJson = False,
) -> None:
    """Check this machine, or all hosts of a job.

    Checks versions, CUDA, GPUs, memory, disks, native ops and the network. With several hosts, also logs in
    to each without a password, compares versions, files and clocks, and connects to the first one.

    Exits with 69 if training is impossible.
    """
    asked_hosts = _hosts(hostfile, hosts, slurm=slurm)
    if script is not None and not script.is_file():
        raise InputMissing(f"there is no script `{script}`")
    at_hand = _at_hand(ds_config, python)
    needs = replace(at_hand.needs, crosses_hosts=len(asked_hosts) > 1)
    files = [file.absolute() for file in (script, ds_config) if file is not None]
    question = Question(
        FOR_DOCTOR,
        python=python,
        packages=SHOWN,
        paths=tuple(needs.directories.values()),
        compared=tuple(files) if len(asked_hosts) > 1 else (),
        ops=at_hand.ops,
    )
    view = DoctorView(len(asked_hosts))
    reach = Reach.SRUN if slurm else Reach.SSH
    examined = examine(Topology(asked_hosts, reach), port, question, view.waiting)
    more: list[HostResult] = []
    if collective:
        from zlaunch.checks.collective import all_reduce  # few examinations measure anything

        more = all_reduce(examined, reach, view.reducing)
    view.done()
    report = judge(examined, needs, None if script is None else script.absolute(), more)
    if as_json_:
        console.data(as_json(report))
    else:
        console.data(*table_lines(report))
    if report.status is Status.ERROR:
        raise typer.Exit(ExitStatus.UNAVAILABLE)


def _hosts(hostfile: Path | None, hosts: str | None, *, slurm: bool) -> tuple[Host, ...]:
    ways = {"--hostfile": hostfile, "--hosts": hosts, "--slurm": slurm or None}
    given = [flag for flag, value in ways.items() if value is not None]
    if len(given) > 1:
        raise WrongUsage(f"`{given[0]}` and `{given[1]}` both name the hosts", "keep one of them")
    if slurm:
        return tuple(allocated_hosts(os.environ))
    if not given:
        return (Host("localhost", ()),)
    return tuple(line.host for line in read_hosts(hostfile, hosts))


def _at_hand(ds_config: Path | None, python: Path | None) -> AtHand:
    """What a job here would need; mistakes in `zlaunch.yaml` keep no machine from being examined."""
    job_file, job = find_job_file(), None
    try:
        if job_file is not None:
            from zlaunch.cli.job_file import job_at_hand  # what reads YAML is needed for such a file alone

            job = job_at_hand()
        return find_at_hand(ds_config, job, job_file, stack_of(inspect_python(python)))
    except Refused as error:
        findings = tuple(error.findings)
    except InputMissing as error:
        if ds_config is not None:
            raise
        findings = (Finding("bad-option", error.message, error.hint),)
    return with_mistakes(ConfigAtHand(str(job_file), findings, shown_by="zlaunch train --dry-run"))
