"""`zlaunch estimate`: estimate the memory of a job before it is started."""

from typing import Any

import typer

from zlaunch import console
from zlaunch.cli import options
from zlaunch.cli.estimate_options import EstimateOptions, is_program, request_of
from zlaunch.cli.option_table import with_options
from zlaunch.cli.passthrough import trainer_args
from zlaunch.cli.views.estimate_report import EstimateView, report
from zlaunch.errors import WrongUsage
from zlaunch.estimate.request import resolve_request
from zlaunch.job.args import ds_config_of


@with_options(EstimateOptions.without("global_batch", "output"), ())
def estimate(trainer: typer.Context, model: options.ModelOrScript = None, **given: Any) -> None:
    """Estimate how much memory a job needs, and whether it fits.

    \b
    Examples:
      zlaunch estimate Qwen/Qwen2.5-7B --on 8xA100-80GB
      zlaunch estimate train.py --stage 3 --gpus 2 -- --max_steps 100

    A training script (`.py`) or module (`-m`) is rehearsed as it is, on fake tensors, with the arguments
    after `--`. For a model without --stage, --offload and --ds-config, compares all stages and offloads
    and names the fastest that fits. With one of them, shows every phase, what uses the memory, and how much
    each change would save. Rehearsals are cached; ZLAUNCH_CACHE=off turns the cache off.
    """  # noqa: D301 - the parser heeds `\b`, which keeps lines
    module = given["module"]
    if (model is None) == (module is None):
        wrong = f"`{model}` and `-m {module}`: only one of them can be estimated"
        if model is None:
            wrong = "nothing to estimate"
        raise WrongUsage(wrong, "name a model, a script, or a module: `-m NAME`")
    if model is None or is_program(model):
        from zlaunch.cli.estimate_program import estimate_program  # what starts a program is rarely needed

        raise typer.Exit(estimate_program(trainer, model, given))
    typed, _ = trainer_args(trainer.args, given["python"])
    request = request_of(model, *ds_config_of(typed, given["ds_config"]), given)
    as_json, tries_levers = given["as_json"], given["tries_levers"]
    if tries_levers is None:
        tries_levers = not as_json
    query = resolve_request(request)
    console.say(*query.given.stack.untested())
    raise typer.Exit(report(query, EstimateView(as_json, tries_levers, given["plot"])))
