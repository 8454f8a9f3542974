"""`zlaunch train`: plan a job, show it, carry it out."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from zlaunch.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from zlaunch.memory.forecast import Forecast
    from zlaunch.plan import LaunchPlan
    from zlaunch.prepare import Prepared


def train(
    context: typer.Context,
    script: Annotated[
        str | None,
        typer.Argument(
            metavar="SCRIPT [-- SCRIPT ARGS]", help="Training program; a small language model if left out."
        ),
    ] = None,
    stage: Annotated[
        Literal["0", "1", "2", "3", "auto"] | None,
        typer.Option(help="ZeRO stage; 2 if no --ds-config says otherwise; auto: the fastest that fits."),
    ] = None,
    offload: options.Offload = None,
    nvme: options.Nvme = None,
    precision: Annotated[
        Literal["bf16", "fp16", "fp32"] | None,
        typer.Option(help="Number format; the best the accelerator has."),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="N|LIST", help="How many GPUs, or which: 2 or 0,2; all if left out.")
    ] = None,
    launcher: Annotated[
        Literal["torchrun", "deepspeed"] | None,
        typer.Option(help="Who starts the ranks; torchrun on one host."),
    ] = None,
    ds_config: options.DsConfig = None,
    overrides: options.Overrides = None,
    hostfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Hosts to run on: `HOST slots=N` on each line.")
    ] = None,
    include: Annotated[
        str | None, typer.Option(metavar="HOST:SLOTS", help="Use only these: w0@w1:0,2.")
    ] = None,
    exclude: Annotated[str | None, typer.Option(metavar="HOST:SLOTS", help="Use all but these.")] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the run is recorded; runs/<time>-<name> if left out."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Start on GPUs even if the memory will not suffice.")
    ] = False,
    rehearse: Annotated[
        bool,
        typer.Option("--rehearse", help="First let DeepSpeed take two steps without memory."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show everything; write and start nothing.")
    ] = False,
) -> None:
    """Start a ZeRO job and see it through.

    What zlaunch does not know, and all that follows `--`, goes to the script.
    """
    from zlaunch import console
    from zlaunch.cli.show_plan import plan_lines
    from zlaunch.job import STAGES, JobSpec, parse_gpus, parse_offload, parse_override
    from zlaunch.prepare import default_recipe, ds_config_of, prepare
    from zlaunch.readiness import look_first

    script_args, ds_config = ds_config_of(context.args, ds_config)
    job = JobSpec(
        script=default_recipe() if script is None else Path(script),
        script_args=script_args,
        stage=None if stage in (None, "auto") else STAGES[stage],
        offload=None if offload is None else parse_offload(offload),
        nvme_dir=None if nvme is None else nvme.absolute(),
        precision=precision,
        gpus=None if gpus is None else parse_gpus(gpus),
        launcher=launcher,
        ds_config=ds_config,
        overrides=tuple(parse_override(text) for text in overrides or ()),
        hostfile=hostfile,
        include=include,
        exclude=exclude,
    )
    prepared = prepare(job, run_dir)
    if stage == "auto":
        from zlaunch.precheck import choose_stage

        prepared = prepare(choose_stage(prepared), run_dir)
    if dry_run:
        for line in plan_lines(prepared.plan(), complete=True):
            console.data(line)
        look_first(prepared, None, force, prepared.plan())
        return
    if rehearse or (not force and prepared.inputs.machine.gpus and prepared.model is not None):
        from zlaunch.precheck import rehearse_first

        forecast = rehearse_first(prepared).forecast
    else:
        forecast = None
    look = partial(look_first, prepared, forecast, force)
    raise typer.Exit(_start(prepared, forecast, look))


def _start(
    prepared: "Prepared", forecast: "Forecast | None", look: "Callable[[LaunchPlan], None]"
) -> int:
    """Write the run directory and run the job; return the exit status."""
    from zlaunch import console, rundir
    from zlaunch.cli.show_plan import plan_lines
    from zlaunch.launch import carry_out
    from zlaunch.prepare import reserve

    plan = reserve(prepared, sys.argv, look)
    if forecast is not None:
        rundir.write_forecast(plan.layout, forecast)
    for line in plan_lines(plan, complete=False):
        console.say(line)
    return carry_out(plan)
