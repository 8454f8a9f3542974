"""Run a job, and show it."""

from collections.abc import Callable

from zlaunch import console
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.launch import LaunchView
from zlaunch.cli.views.run import members
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.run import run
from zlaunch.runs.store import load_run


def run_job(inspect: Callable[[PlanReporter], JobFacts], options: LaunchOptions, *, as_json: bool) -> int:
    """Inspect a job and run it to its end, and return its exit status."""
    view = LaunchView(as_json=as_json)
    status = run(inspect(view), options, view)
    if as_json and view.run is not None:
        console.data(to_json(members(load_run(view.run)), indent=None))
    return status
