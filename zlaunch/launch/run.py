"""Launch a job, or take part in one that another zlaunch leads."""

from zlaunch.errors import ZlaunchError
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.preflight import Preflight
from zlaunch.launch.reporter import Reporter
from zlaunch.launch.together import run_alone, take_part


def run(facts: JobFacts, options: LaunchOptions, reporter: Reporter) -> int:
    """Check a job, launch it, and return the exit status of the last attempt.

    Raises a ZlaunchError if the job cannot work or cannot be started.
    """
    preflight, rendezvous = Preflight(options, reporter), facts.surroundings.rendezvous
    try:
        facts = preflight.complete(facts, options.auto_stage)
        if rendezvous is None:
            return run_alone(facts, preflight, reporter)
        return take_part(facts, preflight, reporter, rendezvous)
    except ZlaunchError as error:
        if rendezvous is not None:
            rendezvous.end_with(error)
        raise
