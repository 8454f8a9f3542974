"""`zlaunch train`: plan a job, show it, carry it out."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from zlaunch.cli import options


def train(
    context: typer.Context,
    script: Annotated[
        str | None,
        typer.Argument(
            metavar="SCRIPT [-- SCRIPT ARGS]", help="Training program; a small language model if left out."
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("--module", "-m", metavar="NAME", help="Train with a module, as `python -m` runs it."),
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
    show_ranks: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS", help="Whose output is shown: 0,3, all or none; in a pipe 0, else none."
        ),
    ] = None,
    on_stall: Annotated[
        Literal["report", "stop"], typer.Option(help="What to do when no rank moves any more.")
    ] = "report",
    stall_after: Annotated[
        float, typer.Option(metavar="SECONDS", min=1.0, help="The least time without a step that is a stall.")
    ] = 60.0,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often to start again what may heal: a lost rank, a network fault.")
    ] = 0,
    on_oom: Annotated[
        Literal["stop", "retry"],
        typer.Option(help="retry: with a smaller micro-batch, then what costs more; the same global batch."),
    ] = "stop",
    debug: Annotated[
        str | None,
        typer.Option(metavar="RANK[:PORT]", help="Let a rank wait for a debugger; port 5678 if left out."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show everything; write and start nothing.")
    ] = False,
) -> None:
    """Start a ZeRO job and see it through.

    What zlaunch does not know, and all that follows `--`, goes to the script.
    """
    from zlaunch.cli.start import Examined, examine, see, show
    from zlaunch.estimate.estimator import Estimator
    from zlaunch.job.spec import (
        STAGES,
        JobSpec,
        RestartPolicy,
        RunOptions,
        parse_debug,
        parse_gpus,
        parse_offload,
        parse_override,
    )
    from zlaunch.launch.prepare import ds_config_of, prepare

    script_args, ds_config = ds_config_of(context.args, ds_config)
    job = JobSpec(
        script=_program(script, module),
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
        module=module,
        debug=None if debug is None else parse_debug(debug),
        wishes=RunOptions(show_ranks, on_stall, stall_after, RestartPolicy(max_restarts, on_oom)),
    )

    def look_into(job: JobSpec, directory: Path | None) -> Examined:
        return examine(prepare(job, directory), rehearse, force)

    with Estimator() as estimator:
        if stage == "auto":
            from zlaunch import console
            from zlaunch.launch.preflight.memory import choose_stage

            job, why = choose_stage(prepare(job, run_dir), estimator)
            for line in console.table([("stage ", why)], indent=""):
                console.say(line)
        first = examine(prepare(job, run_dir), rehearse, force, estimator)
    if dry_run:
        show(first)
        return
    raise typer.Exit(see(first, look_into).ended.outcome.exit_status)


def _program(script: str | None, module: str | None) -> Path:
    """Find the file of what is trained with."""
    if module is not None:
        from zlaunch.job.module_files import find_module

        return find_module(module, os.environ)
    from zlaunch.launch.prepare import default_recipe

    return default_recipe() if script is None else Path(script)
