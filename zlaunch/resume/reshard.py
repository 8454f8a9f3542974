"""`--allow-reshard`: convert the checkpoint that a job resumes from, if it needs that.

The conversion is planned before all checks, and done after them, when the job starts.
"""

import time
from dataclasses import replace
from pathlib import Path

from zlaunch.checkpoint.summary import summarize
from zlaunch.checkpoint.universal import (
    disk_need_of,
    plan_universal,
    universal_folder,
    write_universal,
)
from zlaunch.console import StepReporter
from zlaunch.errors import Unavailable
from zlaunch.resume.fit import ResumeWay, can_resume, target_of
from zlaunch.resume.handover import Conversion, Resumption
from zlaunch.resume.training import PlannedTraining
from zlaunch.units import duration


class NotConverted(Unavailable):
    """A checkpoint cannot be converted."""


def universal_resumption(training: PlannedTraining) -> Resumption | None:
    """Resume from a universal checkpoint, one that has to be made first, if no other fits the job.

    None if the job needs none.
    """
    target = target_of(training)
    if training.data_position is None or target is None:
        return None
    resumption = training.data_position.resumption
    fit = can_resume(resumption.saved, target)
    if fit.way is not ResumeWay.UNIVERSAL:
        return None
    if fit.converted is not None:
        return replace(resumption, saved=summarize(fit.converted))
    checkpoint = fit.saved.checkpoint
    folder = universal_folder(checkpoint, None)
    conversion = Conversion(folder, disk_need_of(checkpoint), fit.reasons, fit.int_steps)
    return replace(resumption, conversion=conversion)


def convert(resumption: Resumption | None, python: str, log: Path, reporter: StepReporter) -> None:
    """Convert the checkpoint of a job, if it needs that; raise NotConverted if that is impossible."""
    if resumption is None or resumption.conversion is None:
        return
    started = time.monotonic()
    try:
        write_universal(
            plan_universal(resumption.saved.checkpoint, None),
            lambda: reporter.busy("converting the checkpoint", duration(time.monotonic() - started)),
            resumption.conversion.int_steps,
            python,
            log,
        )
    except Unavailable as error:
        raise NotConverted(error.message, error.hint) from None
    reporter.note(f"the checkpoint was converted in {duration(time.monotonic() - started)}")
