"""`zlaunch config validate`: every mistake in a ds_config, before anything starts."""

from typing import Annotated, Literal

import typer

from zlaunch.cli.config.options import A_CONFIG, Model, Release, Runner, WorldSize


def validate(
    trainer: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE… [-- TRAINER ARGS]",
            help=A_CONFIG,
        ),
    ],
    world_size: WorldSize = None,
    model: Model = None,
    runner: Runner = None,
    deepspeed: Release = None,
    fix: Annotated[bool, typer.Option("--fix", help="Apply every safe fix; show the diff.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Only show what --fix would change.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Ask the installed DeepSpeed too; takes some seconds.")
    ] = False,
    rehearse: Annotated[
        bool,
        typer.Option("--rehearse", help="Let DeepSpeed take two steps without memory; takes some seconds."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 65 for silent findings as well.")
    ] = False,
    output: Annotated[
        Literal["text", "json", "github"], typer.Option("--format", help="How findings are written.")
    ] = "text",
) -> None:
    """Check ds_config files and name every mistake with its place.

    error: DeepSpeed refuses it. late: the job fails after the model is loaded. silent: DeepSpeed
    does something else. advice: there is a better way.
    """
    from zlaunch.cli.views.findings import REPORTS
    from zlaunch.config.report import Report, ReportOptions, context_of, inspect_config
    from zlaunch.errors import WrongUsage

    if fix and diff:
        raise WrongUsage("`--diff` only shows what `--fix` would write", "keep one of them")
    context, wrong = context_of(trainer.args, world_size, model, runner, deepspeed)
    options = ReportOptions(context, deep=deep, fix=fix, show_diff=fix or diff)
    reports = [inspect_config(name, options) for name in files]
    if rehearse:
        from zlaunch.estimate.config_check import add_rehearsal_findings

        reports = [add_rehearsal_findings(report, model, world_size, trainer.args) for report in reports]
    if wrong:
        reports.insert(0, Report("the Trainer's arguments", wrong))
    REPORTS[output](reports)
    raise typer.Exit(max(report.status(strict) for report in reports))
