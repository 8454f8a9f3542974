"""Show how a job would be launched."""

from zlaunch.launch.facts import JobFacts
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.preflight import Preflight, why_unchecked
from zlaunch.launch.reporter import PlanReporter


def show_plan(facts: JobFacts, options: LaunchOptions, reporter: PlanReporter) -> None:
    """Show the plan of a job, and what is short for it; raise a ZlaunchError if it cannot work."""
    preflight = Preflight(options, reporter)
    facts = preflight.complete(facts, options.auto_stage)
    plan = preflight.plan(facts)
    reporter.dry_run(plan, why_unchecked(facts))
    if not facts.surroundings.is_offline:
        preflight.check(plan)
