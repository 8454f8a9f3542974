"""`zlaunch config resolve`: show what every "auto" becomes, and why."""

from dataclasses import replace
from typing import Annotated, Literal

import typer

from zlaunch import console
from zlaunch.cli.options import A_CONFIG, AsJson, ModelDir, Python, Runner, WorldSize, json_format
from zlaunch.cli.passthrough import trainer_args
from zlaunch.cli.views.resolved_config import REPORTS
from zlaunch.config.fix import fix_hint
from zlaunch.config.report import context_of, load_config
from zlaunch.config.resolve.lr_schedule import schedule_of
from zlaunch.config.resolve.resolve import batch_equation, resolve_file
from zlaunch.config.validate import validate_document, validate_mapping
from zlaunch.errors import FATAL, Refused, refuse_fatal
from zlaunch.units import plural


def resolve(
    trainer: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE [-- ARGS]", help=A_CONFIG)],
    world_size: WorldSize = None,
    model: ModelDir = None,
    runner: Runner = None,
    python: Python = None,
    output: Annotated[Literal["text", "json"], typer.Option("--format", help="Output format.")] = "text",
    as_json: AsJson = False,
) -> None:
    """Show what every "auto" in a ds_config becomes, and why.

    Also shows the batch size, the values that only the dataset decides, and the learning rate
    over the run.
    """
    typed, reader = trainer_args(trainer.args, python)
    context, wrong = context_of(typed, world_size, model, runner or reader, None, python=python)
    context = replace(context, strict_json=False)
    loaded = load_config(file)
    document = loaded.needed(file)
    findings = [*wrong, *loaded.findings, *validate_document(document, replace(context, args=None))]
    if fatal := [finding for finding in findings if finding.severity in FATAL]:
        raise Refused(fatal, fix_hint(document, fatal))
    resolved = resolve_file(document, context)
    agreed = context if context.args is None else replace(context, args=resolved.agreement.args)
    refuse_fatal(map(document.locate, validate_mapping(resolved.values.config(), agreed)))
    schedule = schedule_of(resolved, context.interface, typed)
    view = REPORTS[json_format(output) if as_json else output]
    console.data(*view(resolved, batch_equation(resolved.values, context), schedule))
    if findings:
        console.say(
            f"{plural(len(findings), 'finding')} not shown here: see `zlaunch config validate {file}`"
        )
