"""`zlaunch config`: everything about ds_config files."""

import typer

from zlaunch.cli.config.validate import validate
from zlaunch.cli.config.write import write

config = typer.Typer(no_args_is_help=True, help="Check and write ds_config files.", rich_markup_mode=None)
config.command()(validate)
config.command()(write)
