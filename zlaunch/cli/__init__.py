"""The command line: one file per command, one folder per group. Parse, call, show.

A command is imported when it runs. `COMMANDS` has the name and the help line of each.
"""

import os
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from zlaunch import __version__, console
from zlaunch.cli.job_command import JobCommand
from zlaunch.cli.lazy import LazyCommand, LazyGroup, group
from zlaunch.cli.passthrough import ScriptCommand
from zlaunch.cli.usage_errors import as_wrong_usage
from zlaunch.errors import InputMissing, Unavailable, ZlaunchError
from zlaunch.secrets import hide_in_text, remember, remember_arguments

PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Settings of a command whose unknown options go to the script."""

COMMANDS = (
    LazyCommand("init", "Write a zlaunch.yaml for this directory."),
    LazyCommand("train", "Start a ZeRO job and monitor it to its end.", JobCommand, **PASSED_ON),
    LazyCommand("estimate", "Estimate how much memory a job needs, and whether it fits.", JobCommand),
    LazyCommand("plan", "Find the fastest configuration that fits.", JobCommand),
    LazyCommand("check", "Check that a configuration trains the same as plain torch.", JobCommand),
    LazyCommand("doctor", "Check this machine, or all hosts of a job."),
    LazyCommand("tour", "Measure what ZeRO does: one small model at every stage."),
    group(
        "config",
        "Check, explain, compare and write ds_configs.\n\n\b\nExamples:\n"
        "  zlaunch config validate ds_config.json\n"
        "  zlaunch config write --stage 3 --offload cpu -o ds_config.json",
        LazyCommand(
            "config.validate", "Check ds_config files and report every mistake with its line.", ScriptCommand
        ),
        LazyCommand(
            "config.resolve", 'Show what every "auto" in a ds_config becomes, and why.', ScriptCommand
        ),
        LazyCommand("config.write", "Write a ds_config for a ZeRO stage and offload."),
        LazyCommand(
            "config.translate",
            "Translate another launcher's command line to zlaunch.",
            ignore_unknown_options=True,
            allow_interspersed_args=False,
        ),
        LazyCommand("config.schema", "Write a JSON Schema of ds_configs, for editors."),
        LazyCommand("config.diff", "Compare the meaning of two ds_configs."),
        LazyCommand("config.explain", "Explain a ds_config key."),
    ),
    group(
        "checkpoint",
        "List, verify, convert and export checkpoints.\n\n\b\nExamples:\n"
        "  zlaunch checkpoint list outputs\n"
        "  zlaunch checkpoint export outputs/checkpoint-500 model",
        LazyCommand("checkpoint.list:list_checkpoints", "List checkpoints, and whether they are complete."),
        LazyCommand("checkpoint.show", "Show what a checkpoint contains."),
        LazyCommand("checkpoint.verify", "Find files that are missing, damaged or from different saves."),
        LazyCommand(
            "checkpoint.can_resume:can_resume_from", "Check whether a job can resume from a checkpoint."
        ),
        LazyCommand("checkpoint.universal", "Convert a checkpoint for any number of ranks."),
        LazyCommand("checkpoint.reshard", "Convert a checkpoint for one job, only if that job needs it."),
        LazyCommand("checkpoint.prune", "Delete all but the newest complete checkpoints."),
        LazyCommand("checkpoint.export", "Write a model for `from_pretrained` from a checkpoint."),
    ),
    group(
        "nvme",
        "Measure drives for offload to NVMe.",
        LazyCommand("nvme.tune", "Measure a drive, and write the fastest `aio` section for it."),
    ),
    group(
        "runs",
        "List, show, explain, stop and repeat runs.",
        LazyCommand("runs.list:list_runs", "List runs, how they ended and why."),
        LazyCommand("runs.show", "Show everything about a run, including its memory."),
        LazyCommand("runs.logs", "Print the output of a rank or the launcher."),
        LazyCommand("runs.why", "Explain how a run ended, and what limited its speed."),
        LazyCommand("runs.report", "Write a page about a run: charts, memory, ds_config, its end."),
        LazyCommand("runs.compare", "Compare two runs: loss, speed, memory, ds_config."),
        LazyCommand("runs.watch", "Show live pages about runs in a browser on this machine."),
        LazyCommand("runs.stop", "Stop a run and wait until it has ended."),
        LazyCommand("runs.rerun", "Repeat a run exactly, in a new run directory."),
    ),
    group(
        "hosts",
        "Show the hosts of a job.",
        LazyCommand("hosts.show", "Show hosts, how they are reached, their slots and ranks."),
    ),
    group(
        "recipes",
        "List, explain and copy training programs to begin with.",
        LazyCommand("recipes.list:list_recipes", "List training programs, and what each shows of ZeRO."),
        LazyCommand("recipes.show", "Show what a recipe does, its options, and how to start it."),
        LazyCommand("recipes.copy", "Copy a recipe and the configs that it reads."),
    ),
)

_UsageError: Any = typer.BadParameter.__base__
"""What Typer's parser raises; it has no public name of its own."""
_NO_ARGUMENTS = tuple(kind for kind in _UsageError.__subclasses__() if kind.__name__ == "NoArgsIsHelpError")

app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"token_normalize_func": lambda token: token.replace("_", "-")},
)


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


program: Any = get_command(app)
for command in COMMANDS:
    program.add_command(command)


def main() -> None:
    """Run the program; a ZlaunchError becomes its message and its exit status."""
    remember(os.environ)
    remember_arguments(sys.argv)
    try:
        sys.exit(program(standalone_mode=False))
    except _UsageError as error:
        if isinstance(error, _NO_ARGUMENTS):  # its message is the help of a group
            error.show()
            sys.exit(error.exit_code)
        error.message = hide_in_text(error.message)
        _end_with(as_wrong_usage(error, sys.argv[1:]))
    except ZlaunchError as error:
        _end_with(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except UnicodeEncodeError as error:  # half a pair of surrogates, from a file that somebody else wrote
        _end_with(InputMissing(f"{error.object!a} cannot be the name of a file, nor an argument"))
    except OSError as error:
        _end_with(_failed_call(error))


def _failed_call(error: OSError) -> Unavailable:
    """Say what failed: only a call without a file, such as that for the working directory, names none."""
    if error.filename is None:
        try:
            os.getcwd()  # noqa: PTH109 - as here, where `pathlib` is not imported
        except FileNotFoundError:
            return Unavailable("the working directory has been deleted", "`cd` to one that exists")
    return Unavailable(f"{error.filename or 'the system'}: {error.strerror or error}")


def _end_with(error: ZlaunchError) -> NoReturn:
    console.show_error(error)
    sys.exit(error.status)
