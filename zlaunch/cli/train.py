"""`zlaunch train`: plan a job, show it, carry it out."""

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from zlaunch.cli import options

if TYPE_CHECKING:
    from zlaunch.answers import Answer
    from zlaunch.attempts import Tried
    from zlaunch.job import JobSpec
    from zlaunch.manner import Manner
    from zlaunch.memory.forecast import Forecast
    from zlaunch.plan import LaunchPlan
    from zlaunch.prepare import Prepared
    from zlaunch.record import Lineage


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
    from zlaunch.attempts import see_through
    from zlaunch.job import STAGES, JobSpec, parse_debug, parse_gpus, parse_offload, parse_override
    from zlaunch.manner import Policy
    from zlaunch.prepare import ds_config_of

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
    )
    consider = partial(_consider, rehearse=rehearse, force=force)
    considered = consider(job, run_dir, chooses_stage=stage == "auto")
    if dry_run:
        _show(considered)
        return
    manner = _manner(considered.prepared, show_ranks, on_stall, stall_after)
    start = partial(_start, manner=manner)
    raise typer.Exit(see_through(considered, start, consider, Policy(max_restarts, on_oom)))


@dataclass(frozen=True)
class _Considered:
    """A job that was looked into: what it takes, and whether it starts all the same."""

    prepared: "Prepared"
    answer: "Answer | None"
    force: bool

    @property
    def forecast(self) -> "Forecast | None":
        """What was predicted, if anything was."""
        return None if self.answer is None else self.answer.forecast

    def look(self, plan: "LaunchPlan") -> None:
        """Look at the machine; raise Refused for what is missing."""
        from zlaunch.readiness import look_first

        look_first(self.prepared, self.forecast, self.force, plan)


def _program(script: str | None, module: str | None) -> Path:
    """Find the file of what is trained with."""
    if module is not None:
        from zlaunch.modules import find_module

        return find_module(module, os.environ)
    from zlaunch.prepare import default_recipe

    return default_recipe() if script is None else Path(script)


def _consider(
    job: "JobSpec", run_dir: Path | None, rehearse: bool, force: bool, chooses_stage: bool = False
) -> _Considered:
    """Look into a job; raise what speaks against it."""
    from zlaunch.prepare import prepare

    prepared = prepare(job, run_dir)
    if chooses_stage:
        from zlaunch.precheck import choose_stage

        prepared = prepare(choose_stage(prepared), run_dir)
    return _Considered(prepared, _answer(prepared, rehearse, force), force)


def _manner(
    prepared: "Prepared", show_ranks: str | None, on_stall: Literal["report", "stop"], stall_after: float
) -> "Manner":
    from zlaunch import console
    from zlaunch.manner import Manner, ranks_to_show

    shown = ranks_to_show(show_ranks, prepared.inputs.topology.world_size, console.is_interactive())
    debug = prepared.inputs.job.debug
    return Manner(shown, on_stall, stall_after, debugged=None if debug is None else debug.rank)


def _answer(prepared: "Prepared", rehearse: bool, force: bool) -> "Answer | None":
    """Rehearse the job, if that was asked for or there are GPUs it must fit; refuse what cannot work."""
    if not rehearse and (force or not prepared.inputs.machine.gpus or prepared.model is None):
        return None
    from zlaunch.precheck import rehearse_first

    return rehearse_first(prepared)


def _show(considered: _Considered) -> None:
    """Show all that would be done, and all that speaks against it."""
    from zlaunch import console
    from zlaunch.cli.show_plan import plan_lines

    plan = considered.prepared.plan()
    for line in plan_lines(plan, complete=True):
        console.data(line)
    if considered.answer is not None:
        from zlaunch.cli.show_estimate import start_lines

        for line in start_lines(considered.answer):
            console.data(line)
    considered.look(plan)


def _start(considered: _Considered, lineage: "Lineage", manner: "Manner") -> "Tried":
    """Write the run directory, show it, and run the job."""
    from zlaunch import console, rundir
    from zlaunch.attempts import Tried
    from zlaunch.cli.show_plan import plan_lines
    from zlaunch.debugger import attach_lines
    from zlaunch.launch import carry_out
    from zlaunch.prepare import reserve

    plan = reserve(considered.prepared, sys.argv, considered.look, lineage)
    if considered.forecast is not None:
        rundir.write_forecast(plan.layout, considered.forecast)
    for line in plan_lines(plan, complete=False):
        console.say(line)
    for line in attach_lines(plan, str(Path.cwd())):
        console.say(line)
    return Tried(considered.prepared, plan.layout.root, carry_out(plan, manner))
