"""`zlaunch runs stop`: stop a run from another terminal."""

import os

from zlaunch import console
from zlaunch.cli.runs.options import AsJson, Run, RunsDir
from zlaunch.cli.runs.why import explained
from zlaunch.cli.views.run import members, to_json
from zlaunch.errors import InputMissing, Unavailable
from zlaunch.rundir.record import State
from zlaunch.runs.store import find_run, load_run, stop_run, wait_until_over

WAIT_SECONDS = 12.0
"""A job has 8 s to end; cleaning up after its ranks takes a little longer."""


def stop(run: Run, runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Stop a run and wait until it has ended.

    A second `stop` kills a run that is still ending.
    """
    root = find_run(run, runs_dir)
    record = load_run(root)
    if record.state is State.BROKEN:
        raise InputMissing(f"{os.path.relpath(root)} holds no run that could be stopped: {record.cause}")
    was_running = not record.state.is_over
    if was_running:
        told = stop_run(record)
        console.say(f"told {told} to stop")
        record = wait_until_over(root, WAIT_SECONDS)
    if as_json:
        console.data(to_json({**members(record), "was_running": was_running}))
    if not record.state.is_over:
        raise Unavailable(f"{root.name} was told, and is not over after {WAIT_SECONDS:.0f} s")
    if not as_json:
        if not was_running:
            console.say(f"{root.name} is over already")
        for line in explained(record):
            console.data(line)
