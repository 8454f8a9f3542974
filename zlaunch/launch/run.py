"""Launch a job, take part in one that another zlaunch leads, or show how it would be launched."""

from zlaunch.errors import ZlaunchError
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.preflight import Preflight, why_unchecked
from zlaunch.launch.reporter import Reporter


def run(facts: JobFacts, options: LaunchOptions, reporter: Reporter) -> int:
    """Check a job, launch it, and return the exit status of the last attempt.

    Raises a ZlaunchError if the job cannot work or cannot be started.
    """
    rendezvous = facts.surroundings.rendezvous
    try:
        preflight = Preflight(options, reporter)
        facts = preflight.complete(facts, options.auto_stage)
        if options.dry_run:
            _show(facts, preflight)
            return 0
        from zlaunch.launch.together import run_alone, take_part  # what judges a run is not needed above

        return run_alone(facts, preflight) if rendezvous is None else take_part(facts, preflight, rendezvous)
    except ZlaunchError as error:
        if rendezvous is not None:
            rendezvous.end_with(error)
        raise


def _show(facts: JobFacts, preflight: Preflight) -> None:
    """Show the plan of a dry run, and what is short for it."""
    plan = preflight.plan(facts)
    preflight.reporter.dry_run(plan, why_unchecked(facts))
    if not facts.surroundings.is_offline:
        preflight.check(plan)
