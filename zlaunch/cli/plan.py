"""`zlaunch plan`: find the fastest configuration that fits, with trial runs only if they are asked for."""

import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from zlaunch import console
from zlaunch.cli import options
from zlaunch.cli.estimate_options import EstimateOptions, is_program, request_of
from zlaunch.cli.option_table import with_options
from zlaunch.cli.views.plan_report import report
from zlaunch.errors import WrongUsage
from zlaunch.estimate.request import resolve_request
from zlaunch.job.args import ScriptArgs
from zlaunch.job.recipes import recipe_named
from zlaunch.job.spec import parse_duration

_CHOSEN: Final = re.compile(
    r"zero_optimization(\.(stage|offload_(optimizer|param)(\..*)?))?|gradient_accumulation_steps|train_\w*batch_size\w*"
)
"""Keys that a search decides."""


def _budget(text: str) -> float:
    return parse_duration(text, "--budget")


@with_options(
    EstimateOptions.without(
        *("stage", "offload", "micro_batch", "grad_accum", "activation_checkpointing"),
        *("ds_config", "tries_levers", "plot"),
    ),
    (),
)
def plan(
    trainer: typer.Context,
    model: options.ModelOrScript = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Run the best few of a script or recipe on this machine."),
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(min=1, max=100, metavar="N", help="With --measure: configurations to run (default: 3)."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=10, max=10_000, metavar="N", help="With --measure: steps of a run (default: 20)."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="TIME", parser=_budget, help="With --measure: time for all runs (default: 15m)."
        ),
    ] = None,
    **given: Any,
) -> None:
    """Find the fastest configuration that fits.

    \b
    Examples:
      zlaunch plan Qwen/Qwen2.5-7B --on 8xA100-80GB -o ds_config.json
      zlaunch plan train.py --measure

    Searches stages, offload, micro-batch, activation checkpointing and bucket sizes. Of equally
    fast configurations, chooses the one with the lower stage and less offload. Prints the choice
    and the reasons; -o FILE writes the ds_config.

    With --measure, takes a training script or recipe, and runs the best few stages, offloads and
    micro-batches for some steps, in turn.
    """  # noqa: D301 - the parser heeds `\b`, which keeps lines
    if measure:
        from zlaunch.cli.measured_plan import measured_plan  # what runs jobs is rarely needed

        limits = {"top": top, "steps": steps, "seconds": budget}
        raise typer.Exit(measured_plan(trainer, model, limits, given))
    _refuse_without_measure(model, given["module"], {"top": top, "steps": steps, "budget": budget})
    args, named = ScriptArgs.of(trainer.args).take_ds_config()
    if named is not None:
        raise WrongUsage("`zlaunch plan` writes a ds_config and does not read one", "leave out `--deepspeed`")
    request = request_of(str(model), args, None, given)
    refuse_chosen(request.job.overrides)
    query = resolve_request(request)
    console.say(*query.given.stack.untested())
    raise typer.Exit(report(query, given["global_batch"], given["output"], as_json=given["as_json"]))


def refuse_chosen(overrides: tuple[tuple[str, Any], ...]) -> None:
    """Raise WrongUsage for a key that a search decides."""
    for key, _ in overrides:
        if _CHOSEN.fullmatch(key):
            raise WrongUsage(f"`--set {key}`: `zlaunch plan` chooses it", f"leave out `{key}`")


def _refuse_without_measure(model: str | None, module: str | None, limits: dict[str, Any]) -> None:
    for name, value in limits.items():
        if value is not None:
            raise WrongUsage(f"`--{name}` has no effect without `--measure`", "add `--measure`")
    if model is None and module is None:
        raise WrongUsage("nothing to plan", "name a model; or a script, with `--measure`")
    if model is None or (is_program(model) and (Path(model).exists() or recipe_named(model) is not None)):
        program = model or f"-m {module}"
        raise WrongUsage(
            f"`{program}` is a program, and `zlaunch plan` searches for a model",
            f"`zlaunch estimate {program}` rehearses it, and `--measure` runs its best configurations here; "
            "or name its model",
        )
