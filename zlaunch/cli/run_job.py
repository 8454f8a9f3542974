"""What `zlaunch train` does to run a job, beside planning it."""

from collections.abc import Callable

from zlaunch.cli.views.launch import LaunchView
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.run import run


def run_job(inspect: Callable[[PlanReporter], JobFacts], launch: LaunchOptions, *, as_json: bool) -> int:
    """Inspect a job, run it, show how it goes and ends, and return the exit status."""
    view = LaunchView(as_json=as_json)
    status = run(inspect(view), launch, view)
    view.print_json()
    return status
