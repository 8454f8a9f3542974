"""`zlaunch estimate SCRIPT`: estimate a training script as it is."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from zlaunch import console
from zlaunch.cli.option_table import members
from zlaunch.cli.script_job import job_of, read_named_script
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.estimate_json import of_one
from zlaunch.cli.views.estimate_report import NAME_A_GPU, write_picture
from zlaunch.cli.views.estimate_text import estimate_lines, further_findings
from zlaunch.cli.views.memory_plot import phases_picture
from zlaunch.cli.views.picture import check_plot
from zlaunch.cli.views.plan_view import PlanView
from zlaunch.errors import ExitStatus, WrongUsage
from zlaunch.estimate.effects import state_of
from zlaunch.estimate.query import Estimate
from zlaunch.estimate.request import EstimateRequest, find_cluster
from zlaunch.estimate.strategies import STRATEGIES
from zlaunch.hosts.machine.interpreter import ESTIMATING, check_packages, inspect_python
from zlaunch.job.script import Handover, Script
from zlaunch.job.spec import JobSpec
from zlaunch.job.train_command import train_words
from zlaunch.launch.estimated_script import estimate_program as rehearse_program


def estimate_program(context: Any, script: str | None, given: Mapping[str, Any]) -> ExitStatus:
    """Rehearse a script, or the module that is given, show the result, and return the exit status."""
    source = read_named_script(script, given)
    if given["tries_levers"]:
        raise WrongUsage("`--levers` tries changes to the training of a model", "estimate its model instead")
    plot = given["plot"]
    if plot is not None:
        check_plot(plot)
    job = job_of(context, source, given)
    python = inspect_python(job.python)
    check_packages(python, ESTIMATING)
    cluster, machine = find_cluster(
        EstimateRequest(**members(EstimateRequest, {**given, "model": job.shown_name, "job": job})), python
    )
    found = rehearse_program(job, cluster, machine, PlanView(as_json=True))
    estimate = found.estimate
    if given["as_json"]:
        console.data(to_json(of_one(estimate, None, found.remarks)))
    else:
        console.data(*estimate_lines(estimate))
        console.say_findings([*found.remarks, *further_findings(estimate)])
        console.say(*_other_strategies(estimate, source))
    if plot is not None:
        write_picture(phases_picture(estimate), plot)
    if cluster.gpu is None:
        console.say(NAME_A_GPU)
        console.say(*console.paragraph(f"hint: {_on_this_machine(job)}"))
    return estimate.fit.status


def _on_this_machine(job: JobSpec) -> str:
    command = console.shell_line(train_words(job, job.program, ["--rehearse", "--dry-run"], ()))
    return f"these are numbers for GPUs; for the CPU of this machine, `{command}` takes the same options"


def _other_strategies(estimate: Estimate, script: Script) -> Iterator[str]:
    """Say how to compare the stage with others, each of which is another rehearsal."""
    if estimate.query.given.handover is Handover.NOT:
        return
    now = state_of(estimate.query, estimate.resolved)
    others = []
    for strategy in STRATEGIES:
        offload = {part: device for part, device in asdict(strategy.offload).items() if device != "none"}
        is_refused = bool(offload) and script.own_optimizer is not None
        if not (strategy.on_nvme or is_refused or (strategy.stage, offload) == (now.stage, now.offload)):
            others.append(f"`{strategy.options}`")
    yield from console.paragraph(f"hint: to compare, repeat it with {', '.join(others)}")
