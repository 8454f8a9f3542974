"""Launch a job, take part in one that another zlaunch leads, or show how it would be launched."""

from zlaunch.errors import ZlaunchError
from zlaunch.launch.preflight import LaunchOptions, Preflight, why_unchecked
from zlaunch.launch.prepare import Prepared
from zlaunch.launch.reporter import Reporter


def run(prepared: Prepared, options: LaunchOptions, reporter: Reporter) -> int:
    """Check a job, launch it, and return the exit status of the last attempt.

    Raises a ZlaunchError if the job cannot work or cannot be started.
    """
    try:
        return _run(prepared, options, reporter)
    except ZlaunchError as error:
        if (rendezvous := prepared.surroundings.rendezvous) is not None:
            rendezvous.end_with(error)
        raise


def _run(prepared: Prepared, options: LaunchOptions, reporter: Reporter) -> int:
    preflight, rendezvous = Preflight(options, reporter), prepared.surroundings.rendezvous
    prepared = preflight.complete(prepared, options.auto_stage)
    if options.dry_run:
        plan = preflight.plan(prepared)
        reporter.dry_run(plan, prepared.estimate, why_unchecked(prepared))
        if not prepared.surroundings.is_offline:
            preflight.check(prepared, plan)
        return 0
    from zlaunch.launch.together import run_alone, take_part  # what judges a run is not needed above

    if rendezvous is None:
        return run_alone(prepared, preflight)
    return take_part(prepared, preflight, rendezvous)
