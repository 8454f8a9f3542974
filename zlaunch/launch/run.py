"""Launch a job, or show how it would be launched."""

from zlaunch.launch.preflight.preflight import LaunchOptions, Preflight
from zlaunch.launch.prepare import Prepared
from zlaunch.launch.reporter import Reporter


def run(prepared: Prepared, options: LaunchOptions, reporter: Reporter) -> int:
    """Check a job, launch it, and return the exit status of the last attempt.

    Raises a ZlaunchError if the job cannot work or cannot be started.
    """
    preflight = Preflight(options, reporter)
    prepared = preflight.complete(prepared, options.auto_stage)
    if options.dry_run:
        plan = preflight.plan(prepared)
        reporter.dry_run(plan, prepared.estimate)
        preflight.check(prepared, plan)
        return 0
    from zlaunch.launch.attempts import run_attempts  # what judges a run is not needed above

    return run_attempts(prepared, preflight)
