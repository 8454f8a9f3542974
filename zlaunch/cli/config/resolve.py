"""`zlaunch config resolve`: what every "auto" becomes, and who says so."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def resolve(
    trainer: typer.Context,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE [-- TRAINER ARGS]",
            help="ds_config file, accelerate's YAML, - for stdin, or base64.",
        ),
    ],
    world_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Data-parallel ranks of the job.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model directory or config.json, for buffer sizes.")
    ] = None,
    runner: Annotated[
        Literal["trainer", "accelerate", "deepspeed"],
        typer.Option("--for", help='Who reads the config, and so fills in "auto".'),
    ] = "trainer",
    output: Annotated[
        Literal["text", "json"], typer.Option("--format", help="How the values are written.")
    ] = "text",
) -> None:
    """Say what every "auto" in a ds_config becomes, and why.

    Then the batch, what only the dataset decides, and the learning rate over the run.
    """
    from dataclasses import replace

    from zlaunch import console
    from zlaunch.cli.config.show_filling import REPORTS
    from zlaunch.errors import WrongUsage
    from zlaunch.filling import fill_in, refuse
    from zlaunch.inspection import context_of, opened
    from zlaunch.learning_rate import schedule_of
    from zlaunch.script import Interface
    from zlaunch.units import plural
    from zlaunch.validation import findings_in, wrong_in

    context, wrong = context_of(trainer.args, world_size, model, Interface[runner.upper()], None)
    context = replace(context, strict_json=False)
    found = opened(file)
    if found.document is None:
        raise WrongUsage(f"`{file}` does not use DeepSpeed", "name one that does, or a ds_config")
    findings = [*wrong, *found.findings, *findings_in(found.document, replace(context, args=None))]
    refuse(findings)
    filling = fill_in(found.document, context)
    agreed = context if context.args is None else replace(context, args=filling.args)
    refuse(map(found.document.locate, wrong_in(filling.values.config(), agreed)))
    schedule = schedule_of(filling, context.interface, trainer.args)
    for line in REPORTS[output](filling, schedule):
        console.data(line)
    if findings:
        console.say(f"{plural(len(findings), 'finding')} besides: see `zlaunch config validate {file}`")
