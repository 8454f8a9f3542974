"""The checkpoint that a job resumes from."""

import os
from dataclasses import replace

from zlaunch.checkpoint.summary import Summary
from zlaunch.console import StepReporter
from zlaunch.dsconfig.schema.storage import LOAD_UNIVERSAL
from zlaunch.dsconfig.text.document import dotted
from zlaunch.files import shown
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan
from zlaunch.resume.choose import find_resumption, no_checkpoint_yet, resumption_by_argument
from zlaunch.resume.newest import damaged_after
from zlaunch.resume.reshard import universal_resumption


def with_checkpoint(facts: JobFacts, reporter: StepReporter) -> JobFacts:
    """Find the checkpoint that a job resumes from."""
    resumption = find_resumption(facts.job, facts.script)
    if resumption is None:
        reporter.note(no_checkpoint_yet(facts.job, facts.script), "resume")
        return replace(facts, job=replace(facts.job, resume=None))
    for saved in damaged_after(resumption.saved):
        reporter.note(_skipped(saved), "resume")
    folder = str(resumption.checkpoint.folder)  # so that a rerun takes the same one
    return replace(facts, job=replace(facts.job, resume=folder), resumption=resumption)


def _skipped(saved: Summary) -> str:
    folder, problem = saved.checkpoint.folder, saved.obstructions[0]
    file = os.path.relpath(problem.file, folder)
    return f"skips {shown(folder)}, which is newer: {file}: {problem.message}"


def with_named_checkpoint(facts: JobFacts) -> JobFacts:
    """Read the checkpoint that an argument of the script names, which it gets as it is."""
    return replace(facts, resumption=resumption_by_argument(facts.script, facts.job.args))


def with_conversion(facts: JobFacts) -> JobFacts:
    """Let a job load a universal checkpoint, one that has to be made first, if no other fits it."""
    job, training = facts.job, make_plan(facts).training
    resumption = universal_resumption(training)
    if resumption is None:
        return facts
    if not training.loads_universal:
        job = replace(job, overrides=(*job.overrides, (dotted(LOAD_UNIVERSAL), True)))
    return replace(facts, job=job, resumption=resumption)
