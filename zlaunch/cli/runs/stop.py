"""`zlaunch runs stop`: stop a run from another terminal."""

import os
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson, RunName, RunsDir
from zlaunch.cli.runs.why import explained
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.run import members
from zlaunch.errors import InputMissing, Unavailable
from zlaunch.job.spec import SAVE_SECONDS as SAVE_WITHIN
from zlaunch.runs.run import State
from zlaunch.runs.stop import save_run, stop_run, wait_until_over
from zlaunch.runs.store import open_run

WAIT_SECONDS = 12.0
"""A job has 8 s to end; cleaning up after its ranks takes a little longer."""


SAVE_SECONDS = SAVE_WITHIN + WAIT_SECONDS
"""Ranks may take so long to save, unless the run has another `--save-within`."""


def stop(
    run: RunName,
    runs_dir: RunsDir = None,
    save: Annotated[
        bool, typer.Option("--save", help="Save the training first, so that it can be resumed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Stop a run and wait until it has ended.

    A second `stop` kills a run that is still ending. With --save, the run ends after a checkpoint of one of
    its next steps, and `zlaunch train --resume` resumes from there.
    """
    chosen = open_run(run, runs_dir)
    if chosen.state is State.BROKEN:
        raise InputMissing(f"{os.path.relpath(chosen.root)} holds no run to stop: {chosen.cause}")
    was_running, seconds = not chosen.state.is_over, SAVE_SECONDS if save else WAIT_SECONDS
    if was_running:
        who = save_run(chosen) if save else stop_run(chosen)
        console.say(f"asked {who} to {'save and stop' if save else 'stop'}")
        chosen = wait_until_over(chosen.root, seconds)
    if as_json:
        console.data(to_json({**members(chosen), "was_running": was_running}))
    if not chosen.state.is_over:
        raise Unavailable(f"{chosen.id} is still running {seconds:.0f} s after the request to stop")
    if not as_json:
        if not was_running:
            console.say(f"{chosen.id} has already ended")
        console.data(*explained(chosen))
