"""The command line: one verb, one file; a noun with verbs is a folder. Parse, call, show.

Nothing heavy is imported here: each command imports what it needs when it runs.
"""

import os
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer

from zlaunch import __version__
from zlaunch.cli.config import config
from zlaunch.cli.estimate import estimate
from zlaunch.cli.passthrough import ScriptCommand, no_such_option
from zlaunch.cli.plan import plan
from zlaunch.cli.runs import runs
from zlaunch.cli.train import train
from zlaunch.errors import Unavailable, ZlaunchError

_UsageError: Any = typer.BadParameter.__base__
"""What Typer's parser raises; it has no public name of its own."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"token_normalize_func": lambda token: token.replace("_", "-")},
)
app.command(cls=ScriptCommand, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(
    train
)
app.command(cls=ScriptCommand)(estimate)
app.command(cls=ScriptCommand)(plan)
app.add_typer(config, name="config")
app.add_typer(runs, name="runs")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"zlaunch {__version__}")
        raise typer.Exit


@app.callback()
def zlaunch(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Make ZeRO runs work the first time."""


def main() -> None:
    """Run the program; a ZlaunchError becomes its message and its exit status."""
    try:
        sys.exit(app(standalone_mode=False))
    except _UsageError as error:
        if not hasattr(error, "possibilities"):
            error.message = error.message.removeprefix("Value error, ")  # pydantic's, which reads values
            error.show()
            sys.exit(error.exit_code)
        _end_with(no_such_option(error.ctx.command_path, error.option_name, error.possibilities))
    except ZlaunchError as error:
        _end_with(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        _end_with(Unavailable(f"{error.filename or 'the system'}: {error.strerror or error}"))


def _end_with(error: ZlaunchError) -> NoReturn:
    from zlaunch import console

    console.show_error(error)
    sys.exit(error.status)
