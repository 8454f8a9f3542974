"""What `zlaunch train` does to run a job, beside planning it."""

from collections.abc import Callable, Sequence

from zlaunch.cli.notify import notify
from zlaunch.cli.views.launch import LaunchView
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.run import run


def run_job(
    inspect: Callable[[PlanReporter], JobFacts],
    launch: LaunchOptions,
    *,
    as_json: bool,
    ways: Sequence[str] = (),
) -> int:
    """Inspect a job, run it, show how it goes and ends, and return the exit status.

    `ways` are those to notify someone of the end.
    """
    view = LaunchView(as_json=as_json)
    status = run(inspect(view), launch, view)
    view.print_json()
    if ways and view.run is not None:
        notify(view.run, ways)
    return status
