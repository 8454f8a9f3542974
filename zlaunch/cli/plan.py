"""`zlaunch plan`: find the fastest configuration that fits, without a trial run."""

import re
from typing import Any, Final

import typer

from zlaunch import console
from zlaunch.cli import options
from zlaunch.cli.estimate_options import EstimateOptions, request_of
from zlaunch.cli.option_table import with_options
from zlaunch.cli.views.plan_report import report
from zlaunch.errors import WrongUsage
from zlaunch.estimate.request import resolve_request
from zlaunch.job.args import ScriptArgs

_CHOSEN: Final = re.compile(
    r"zero_optimization(\.(stage|offload_(optimizer|param)(\..*)?))?|gradient_accumulation_steps|train_\w*batch_size\w*"
)
"""Keys that a search decides."""


@with_options(
    EstimateOptions.without(
        *("module", "stage", "offload", "micro_batch", "grad_accum", "activation_checkpointing"),
        *("ds_config", "tries_levers", "plot"),
    ),
    (),
)
def plan(trainer: typer.Context, model: options.Model, **given: Any) -> None:
    """Find the fastest configuration that fits.

    Searches stages, offload, micro-batch, activation checkpointing and bucket sizes. Of equally
    fast configurations, chooses the one with the lower stage and less offload. Prints the choice
    and the reasons; -o FILE writes the ds_config.
    """
    args, named = ScriptArgs.of(trainer.args).take_ds_config()
    if named is not None:
        raise WrongUsage("`zlaunch plan` writes a ds_config and does not read one", "leave out `--deepspeed`")
    request = request_of(model, args, None, given)
    for key, _ in request.job.overrides:
        if _CHOSEN.fullmatch(key):
            raise WrongUsage(f"`--set {key}`: `zlaunch plan` chooses it", f"leave out `{key}`")
    query = resolve_request(request)
    console.say(*query.given.stack.untested())
    raise typer.Exit(report(query, given["global_batch"], given["output"], as_json=given["as_json"]))
