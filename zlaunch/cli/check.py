"""`zlaunch check`: whether a configuration trains the same as plain torch."""

from typing import Annotated, Any, Literal

import typer

from zlaunch import console
from zlaunch.cli import options
from zlaunch.cli.estimate_options import EstimateOptions, request_of
from zlaunch.cli.option_table import with_options
from zlaunch.cli.passthrough import trainer_args
from zlaunch.cli.views.check import lines_of
from zlaunch.cli.views.dump import to_json
from zlaunch.estimate.request import resolve_request
from zlaunch.job.args import ds_config_of
from zlaunch.parity.check import check as check_trial
from zlaunch.parity.trial import RANKS, trial_of

_OF_ANOTHER_COMMAND = (
    *("gpus", "nodes", "on", "hostfile", "host_memory", "network", "stage", "micro_batch", "global_batch"),
    *("seq_len", "trust_remote_code", "output", "tries_levers", "plot"),
)


@with_options(EstimateOptions.without(*_OF_ANOTHER_COMMAND), ())
def check(
    trainer: typer.Context,
    model: options.Model,
    stage: Annotated[
        Literal["0", "1", "2", "3"] | None,
        typer.Option(help="ZeRO stage (default: from --ds-config, else 2)."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Steps to train.")] = 3,
    **given: Any,
) -> None:
    """Check that a configuration trains the same as plain torch.

    Trains a small model of the same architecture for a few steps: on two real ranks of DeepSpeed on
    this machine's CPU, and with plain torch. Compares losses, gradients and updates of each parameter
    with what rounding explains. Exits with 0 if they are the same, 65 if they differ, 69 if that
    cannot be told here.
    """
    typed, _ = trainer_args(trainer.args, given["python"])
    args, ds_config = ds_config_of(typed, given["ds_config"])
    request = request_of(model, args, ds_config, {**given, "stage": stage, "hostfile": None, "gpus": RANKS})
    query = resolve_request(request)
    console.say(*query.given.stack.untested())
    trial = trial_of(query, steps)
    line = console.ProgressLine(in_pipes=False)
    line.show(f"training a small {query.model.name} on two ranks, and with plain torch")
    try:
        checked = check_trial(trial, given["python"])
    finally:
        line.clear()
    if given["as_json"]:
        console.data(to_json(checked))
    else:
        console.data(*lines_of(checked, query))
    raise typer.Exit(checked.verdict.answer.status)
