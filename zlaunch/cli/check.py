"""`zlaunch check`: whether a configuration trains the same as plain torch."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer

from zlaunch import console
from zlaunch.cli import options
from zlaunch.cli.check_script import check_named_script
from zlaunch.cli.estimate_options import EstimateOptions, is_program, request_of
from zlaunch.cli.option_table import with_options
from zlaunch.cli.passthrough import trainer_args
from zlaunch.cli.views.check import lines_of, rows_of_model
from zlaunch.cli.views.dump import to_json
from zlaunch.config.rules.known_defects import known_defects
from zlaunch.dsconfig.native_ops import OPS
from zlaunch.errors import WrongUsage
from zlaunch.estimate.request import resolve_request
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.probe import probe_machine
from zlaunch.job.args import ds_config_of
from zlaunch.launch.op_build import environment_with
from zlaunch.parity.check import check as check_trial
from zlaunch.parity.script import STEPS
from zlaunch.parity.trial import RANKS, Trial, trial_of
from zlaunch.process import signals_as_exceptions

_OF_ANOTHER_COMMAND = (
    *("gpus", "nodes", "on", "hostfile", "host_memory", "network", "stage", "micro_batch", "global_batch"),
    *("seq_len", "images", "module", "trust_remote_code", "output", "tries_levers", "plot"),
)


@with_options(EstimateOptions.without(*_OF_ANOTHER_COMMAND), ())
def check(
    trainer: typer.Context,
    model: options.ModelOrScript = None,
    module: Annotated[
        str | None,
        typer.Option("--module", "-m", metavar="NAME", help="Check a module that trains, like `python -m`."),
    ] = None,
    stage: Annotated[
        Literal["0", "1", "2", "3"] | None,
        typer.Option(help="ZeRO stage (default: from --ds-config, else 2)."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Steps to train.")] = STEPS,
    **given: Any,
) -> None:
    """Check that a configuration trains the same as plain torch.

    Trains a small model of the same architecture for a few steps: on two real ranks of DeepSpeed on
    this machine's CPU, and with plain torch. A training script (`.py`) or module (`-m`) is run as it is,
    with the arguments after `--`, and ended after these steps. Compares losses, gradients and updates of
    each parameter with what rounding explains. Exits with 0 if they are the same, 65 if they differ, 69
    if that cannot be told here.
    """
    if (model is None) == (module is None):
        wrong = f"`{model}` and `-m {module}`: only one of them can be checked"
        if model is None:
            wrong = "nothing to check"
        raise WrongUsage(wrong, "name a model, a script, or a module: `-m NAME`")
    if model is None or is_program(model):
        raise typer.Exit(
            check_named_script(trainer, model, {**given, "module": module, "stage": stage}, steps)
        )
    typed, _ = trainer_args(trainer.args, given["python"])
    args, ds_config = ds_config_of(typed, given["ds_config"])
    request = request_of(model, args, ds_config, {**given, "stage": stage, "hostfile": None, "gpus": RANKS})
    query = resolve_request(request)
    console.say(*query.given.stack.untested())
    trial = trial_of(query, steps)
    view = console.LineReporter(in_pipes=False)
    environment = _environment(trial, given["python"], view)
    view.busy(f"training a small {query.model.name} on two ranks, and with plain torch", "")
    try:
        checked = check_trial(trial, environment, given["python"])
    finally:
        view.clear()
    if given["as_json"]:
        console.data(to_json(checked))
    else:
        console.data(*lines_of(checked, rows_of_model(checked, query)))
    console.say_findings(known_defects(query.resolve().warnings))
    raise typer.Exit(checked.verdict.answer.status)


def _environment(trial: Trial, named: Path | None, view: console.LineReporter) -> dict[str, str]:
    """Compile what the trial needs of the CPU, as `train` does before it starts ranks."""
    if not trial.ops:
        return dict(os.environ)
    python = inspect_python(named)
    machine = probe_machine({**os.environ, "DS_ACCELERATOR": "cpu"}, python)
    with signals_as_exceptions(), TemporaryDirectory(prefix="zlaunch-check-") as folder:
        return environment_with([OPS[name] for name in trial.ops], python, machine, Path(folder), view)
