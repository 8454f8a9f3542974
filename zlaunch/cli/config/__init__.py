"""`zlaunch config`: everything about ds_config files."""

import typer

from zlaunch.cli.config.diff import diff
from zlaunch.cli.config.explain import explain
from zlaunch.cli.config.resolve import resolve
from zlaunch.cli.config.schema import schema
from zlaunch.cli.config.translate import translate
from zlaunch.cli.config.validate import validate
from zlaunch.cli.config.write import write
from zlaunch.cli.passthrough import ScriptCommand

config = typer.Typer(
    no_args_is_help=True,
    help="Check, explain, compare and write ds_configs.",
    rich_markup_mode=None,
)
config.command(cls=ScriptCommand)(validate)
config.command(cls=ScriptCommand)(resolve)
config.command()(write)
config.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(translate)
config.command()(schema)
config.command()(diff)
config.command()(explain)
