"""Ask a program that stands after `--` for its arguments."""

from collections.abc import Sequence
from pathlib import Path

from zlaunch.cli.views.plan_view import PlanView
from zlaunch.job.args import ScriptArgs
from zlaunch.launch.ask import ask_command


def asked_args(argv: Sequence[str], python: Path | None) -> tuple[ScriptArgs, str | None]:
    """Return the Trainer arguments of a program, and what reads its ds_config."""
    return ask_command(argv, python, PlanView())
