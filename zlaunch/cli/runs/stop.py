"""`zlaunch runs stop`: stop a run from another terminal."""

import os

from zlaunch import console
from zlaunch.cli.options import AsJson, Run, RunsDir
from zlaunch.cli.runs.why import explained
from zlaunch.cli.views.run import members, to_json
from zlaunch.errors import InputMissing, Unavailable
from zlaunch.runs.state import State
from zlaunch.runs.stop import stop_run, wait_until_over
from zlaunch.runs.store import find_run, load_run

WAIT_SECONDS = 12.0
"""A job has 8 s to end; cleaning up after its ranks takes a little longer."""


def stop(run: Run, runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Stop a run and wait until it has ended.

    A second `stop` kills a run that is still ending.
    """
    root = find_run(run, runs_dir)
    found = load_run(root)
    if found.state is State.BROKEN:
        raise InputMissing(f"{os.path.relpath(root)} holds no run to stop: {found.cause}")
    was_running = not found.state.is_over
    if was_running:
        console.say(f"asked {stop_run(found)} to stop")
        found = wait_until_over(root, WAIT_SECONDS)
    if as_json:
        console.data(to_json({**members(found), "was_running": was_running}))
    if not found.state.is_over:
        raise Unavailable(f"{root.name} is still running {WAIT_SECONDS:.0f} s after the request to stop")
    if not as_json:
        if not was_running:
            console.say(f"{root.name} has already ended")
        console.data(*explained(found))
