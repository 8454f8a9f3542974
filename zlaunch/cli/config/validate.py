"""`zlaunch config validate`: check ds_config files before anything starts."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from zlaunch import console
from zlaunch.cli import options
from zlaunch.cli.options import A_CONFIG, ModelDir, Release, Runner, WorldSize
from zlaunch.cli.passthrough import trainer_args
from zlaunch.cli.views.findings import REPORTS, as_text
from zlaunch.config.report import Report, ReportOptions, context_of, inspect_config
from zlaunch.errors import InputMissing, WrongUsage
from zlaunch.job.script import Script
from zlaunch.job.stack import SoftwareStack
from zlaunch.units import plural


def validate(
    trainer: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE… [-- ARGS]",
            help=f"{A_CONFIG} Default: the ds_configs of this directory.",
            show_default=False,
        ),
    ] = None,
    world_size: WorldSize = None,
    model: ModelDir = None,
    runner: Runner = None,
    deepspeed: Release = None,
    script: Annotated[
        Path | None,
        typer.Option(
            "--for-script",
            metavar="SCRIPT",
            help="Also find what this training script does in vain with the config; it is not run.",
        ),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Apply safe fixes, show the diff, and keep FILE.bak.")
    ] = False,
    diff: Annotated[
        bool,
        typer.Option("--diff", help="Show what --fix would change, write nothing, exit with 65 for changes."),
    ] = False,
    no_backup: Annotated[bool, typer.Option("--no-backup", help="With --fix, keep no FILE.bak.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also ask the installed DeepSpeed; takes a few seconds.")
    ] = False,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse", help="Also run two steps of DeepSpeed on fake tensors; takes a few seconds."
        ),
    ] = False,
    python: options.Python = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with 65 for every warning and ignored setting, not only mistakes."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Of many files, name those without findings, too.")
    ] = False,
    output: Annotated[
        Literal["text", "json", "github", "sarif"], typer.Option("--format", help="Format of the findings.")
    ] = "text",
    as_json: options.AsJson = False,
) -> None:
    """Check ds_config files and report every mistake with its line.

    Without a file, checks the ds_configs of this directory and of folders such as configs/.
    error: DeepSpeed refuses the file. fails later: the job fails after the model is loaded.
    warning: the job may train something else. ignored: DeepSpeed does something else.
    advice: there is a better way.

    Exits with 65 if there is an error, something fails later, or an ignored key is a mistake: misspelled,
    misplaced, or with a value that nobody means.
    """
    if no_backup and not fix:
        raise WrongUsage("`--no-backup` has no effect without `--fix`", "leave it out")
    if as_json:
        output = options.json_format(output)
    names = files or _found_here()
    typed, reader = trainer_args(trainer.args, python)
    context, wrong = context_of(typed, world_size, model, runner or reader, deepspeed, python=python)
    if deepspeed is None:
        console.say(*SoftwareStack(context.packages).untested())
    judged: Script | None = None
    if script is not None:
        from zlaunch.job.script_reader import read_script  # few ds_configs are judged for a script

        judged = read_script(script)
    wanted = ReportOptions(
        context,
        deep=deep,
        fix=fix,
        show_diff=diff,
        backup=not no_backup,
        python=python,
        script=judged,
    )
    reports = [inspect_config(name, wanted) for name in names]
    if rehearse:  # what estimates need would make every other check slower
        from zlaunch.estimate.rehearsed_check import JobToRehearse, add_rehearsal_findings

        job = JobToRehearse(model, world_size, typed, python)
        reports = [add_rehearsal_findings(report, job) for report in reports]
    if wrong:
        reports.insert(0, Report("the Trainer's arguments", wrong))
    if output == "text":
        as_text(reports, strict, verbose)
    else:
        REPORTS[output](reports, strict)
    raise typer.Exit(max(report.status(strict) for report in reports))


def _found_here() -> list[str]:
    """Find the ds_configs of this directory, and say which; raise InputMissing if there is none."""
    from zlaunch.config.find_configs import find_configs  # which guesses what a file is meant for

    names = [str(file) for file in find_configs(Path())]
    if not names:
        raise InputMissing(
            "found no ds_config in this directory, nor in a folder such as configs/",
            "`zlaunch config validate FILE` checks another, "
            "`zlaunch config write --stage 3 -o ds_config.json` writes one",
        )
    head = f"found {plural(len(names), 'ds_config')}: "
    console.say(*console.paragraph(head + ", ".join(names)))
    return names
