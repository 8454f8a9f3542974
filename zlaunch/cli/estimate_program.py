"""`zlaunch estimate SCRIPT`: estimate a training script as it is."""

from collections.abc import Mapping
from typing import Any, Final

from zlaunch import console
from zlaunch.cli.job_command import typed_args
from zlaunch.cli.job_options import ConfigOptions
from zlaunch.cli.option_table import members, read
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.estimate_json import of_one
from zlaunch.cli.views.estimate_report import NAME_A_GPU, write_picture
from zlaunch.cli.views.estimate_text import estimate_lines
from zlaunch.cli.views.memory_plot import phases_picture
from zlaunch.cli.views.picture import check_plot
from zlaunch.cli.views.plan_view import PlanView
from zlaunch.errors import ExitStatus, WrongUsage
from zlaunch.estimate.changes import TRAINING
from zlaunch.estimate.request import EstimateRequest, find_cluster
from zlaunch.hosts.machine.interpreter import ESTIMATING, check_packages, find_module_in, inspect_python
from zlaunch.job.args import ds_config_of
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import JobSpec, script_path
from zlaunch.launch.estimated_script import estimate_program as rehearse_program

_OF_MODELS: Final = (*TRAINING, "optimizer", "freeze", "trust_remote_code")
"""Options that describe a training, which a script decides itself."""


def estimate_program(context: Any, script: str | None, given: Mapping[str, Any]) -> ExitStatus:
    """Rehearse a script, or the module that is given, show the result, and return the exit status."""
    name = script or f"-m {given['module']}"
    for member in _OF_MODELS:
        if given.get(member):
            option = f"--{member.replace('_', '-')}"
            raise WrongUsage(
                f"`{option}` describes the training of a model, but {name} decides itself how it trains",
                "give the script its own argument, after `--`",
            )
    if given["tries_levers"]:
        raise WrongUsage("`--levers` tries changes to the training of a model", "estimate its model instead")
    plot = given["plot"]
    if plot is not None:
        check_plot(plot)
    job = _job_of(context, script, given)
    python = inspect_python(job.python)
    check_packages(python, ESTIMATING)
    cluster, machine = find_cluster(
        EstimateRequest(**members(EstimateRequest, {**given, "model": name, "job": job})), python
    )
    found = rehearse_program(job, cluster, machine, PlanView(as_json=True))
    estimate = found.estimate
    if given["as_json"]:
        console.data(to_json(of_one(estimate, None)))
    else:
        console.data(*estimate_lines(estimate))
        console.say_findings([*found.remarks, *estimate.findings])
    if plot is not None:
        write_picture(phases_picture(estimate), plot)
    if cluster.gpu is None:
        console.say(NAME_A_GPU)
    return estimate.fit.status


def _job_of(context: Any, script: str | None, given: Mapping[str, Any]) -> JobSpec:
    if script is None:
        path = find_module_in(given["python"], given["module"])
    else:
        path = script_path(script)
    typed = typed_args(context)
    args, ds_config = ds_config_of(typed, given["ds_config"], read_script(path).switches)
    config_flags: tuple[str, ...] = ()
    if args != typed:  # it named a ds_config
        config_flags = typed.config_flags
    return JobSpec(
        script=path,
        args=args,
        ds_config=ds_config,
        python=given["python"],
        module=given["module"],
        config_flags=config_flags,
        **read(ConfigOptions, given).job_members,
    )
