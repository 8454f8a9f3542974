"""`zlaunch train`: plan a job, show the plan, run it."""

from typing import Any

import typer

from zlaunch.cli.option_table import with_options
from zlaunch.cli.train_options import MOST_USED, panels


@with_options(panels(), MOST_USED)
def train(context: typer.Context, **given: Any) -> None:
    """Start a ZeRO job and monitor it to its end.

    \b
    Examples:
      zlaunch train train.py --stage 3 -- --learning_rate 2e-5
      zlaunch train train.py --offload cpu --hosts node1:8,node2:8
      zlaunch train train.py --submit slurm --nodes 2 --gpus 8 --dry-run

    Options that zlaunch does not know, and everything after `--`, go to the script. With --json, the
    last line of the output is an object about the run; with --dry-run, the output is the plan.
    """  # noqa: D301 - the parser heeds `\b`, which keeps lines
    from zlaunch.cli.train_job import start  # its help needs none of what starts a job

    raise typer.Exit(start(context, given))
