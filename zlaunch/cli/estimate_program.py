"""`zlaunch estimate SCRIPT`: estimate a training script as it is."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import chain
from typing import Any, Final

from zlaunch import console
from zlaunch.cli.job_command import typed_args
from zlaunch.cli.job_options import ConfigOptions
from zlaunch.cli.option_table import members, read
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.estimate_json import of_one
from zlaunch.cli.views.estimate_report import NAME_A_GPU, write_picture
from zlaunch.cli.views.estimate_text import estimate_lines, further_findings
from zlaunch.cli.views.memory_plot import phases_picture
from zlaunch.cli.views.picture import check_plot
from zlaunch.cli.views.plan_view import PlanView
from zlaunch.errors import ExitStatus, WrongUsage
from zlaunch.estimate.changes import TRAINING, Options
from zlaunch.estimate.effects import state_of
from zlaunch.estimate.query import Estimate
from zlaunch.estimate.request import EstimateRequest, find_cluster
from zlaunch.estimate.strategies import STRATEGIES
from zlaunch.hosts.machine.interpreter import ESTIMATING, check_packages, find_module_in, inspect_python
from zlaunch.job.args import ds_config_of
from zlaunch.job.model import SEQ_LEN_FLAGS
from zlaunch.job.recipes import recipe_named
from zlaunch.job.script import Handover, Script, setting_of
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import JobSpec, script_path
from zlaunch.launch.estimated_script import estimate_program as rehearse_program

_OF_MODELS: Final = (*TRAINING, "optimizer", "freeze", "trust_remote_code")
"""Options that describe a training, which a script decides itself."""


def estimate_program(context: Any, script: str | None, given: Mapping[str, Any]) -> ExitStatus:
    """Rehearse a script, or the module that is given, show the result, and return the exit status."""
    if script is None:
        path = find_module_in(given["python"], given["module"])
    else:
        path = recipe_named(script) or script_path(script)
    source = read_script(path)
    if wrong := [name for name in _OF_MODELS if given.get(name)]:
        raise _belongs_to_script({name: given[name] for name in wrong}, source)
    if given["tries_levers"]:
        raise WrongUsage("`--levers` tries changes to the training of a model", "estimate its model instead")
    plot = given["plot"]
    if plot is not None:
        check_plot(plot)
    job = _job_of(context, source, given)
    python = inspect_python(job.python)
    check_packages(python, ESTIMATING)
    cluster, machine = find_cluster(
        EstimateRequest(**members(EstimateRequest, {**given, "model": job.shown_name, "job": job})), python
    )
    found = rehearse_program(job, cluster, machine, PlanView(as_json=True))
    estimate = found.estimate
    if given["as_json"]:
        console.data(to_json(of_one(estimate, None)))
    else:
        console.data(*estimate_lines(estimate))
        console.say_findings([*found.remarks, *further_findings(estimate)])
        console.say(*_other_strategies(estimate, source))
    if plot is not None:
        write_picture(phases_picture(estimate), plot)
    if cluster.gpu is None:
        console.say(NAME_A_GPU)
    return estimate.fit.status


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


def _belongs_to_script(wrong: Mapping[str, Any], script: Script) -> WrongUsage:
    hints: dict[str, list[str]] = {}
    for name, value in wrong.items():
        hints.setdefault(_instead(name, value, script), []).append(f"`--{name.replace('_', '-')}`")
    options = ", ".join(chain.from_iterable(hints.values()))
    hint = "; ".join(f"for {', '.join(names)}, {instead}" for instead, names in hints.items())
    message = f"{options}: for the training of a model; {script.path.name} decides itself how it trains"
    return WrongUsage(message, hint)


def _instead(name: str, value: Any, script: Script) -> str:
    """Say how a script is told the same."""
    setting = setting_of(script.interface, script.handover)
    if name in TRAINING and (words := Options(**{name: value}).for_train(setting)):
        if name == "micro_batch" and setting == "key":
            return f"write `{words}`, and feed batches of this size in the script"
        return f"write `{words}`"
    arguments = {"seq_len": SEQ_LEN_FLAGS, "attention": ("attn_implementation",)}.get(name, ())
    if name == "optimizer" and setting == "argument":
        arguments = ("optim",)
    elif script.has_other_modules:
        arguments = ()  # which may define any
    else:
        arguments = tuple(argument for argument in arguments if script.may_define(f"--{argument}"))
    if arguments:
        return f"write `-- --{arguments[0]} {value}`"
    return "change the script, or give its own argument for it after `--`"


def _job_of(context: Any, script: Script, given: Mapping[str, Any]) -> JobSpec:
    typed = typed_args(context)
    args, ds_config = ds_config_of(typed, given["ds_config"], script.switches)
    config_flags: tuple[str, ...] = ()
    if args != typed:  # it named a ds_config
        config_flags = typed.config_flags
    return JobSpec(
        script=script.path,
        args=args,
        ds_config=ds_config,
        python=given["python"],
        module=given["module"],
        config_flags=config_flags,
        **read(ConfigOptions, given).job_members,
    )
