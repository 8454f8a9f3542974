"""`--allow-reshard`: convert the checkpoint that a job goes on from, if it needs that.

The conversion is planned before all checks, and done after them, when the job starts.
"""

import time
from dataclasses import replace

from zlaunch.checkpoint.summary import summarize
from zlaunch.checkpoint.universal import (
    disk_need_of,
    plan_universal,
    universal_folder,
    write_universal,
)
from zlaunch.dsconfig.schema.storage import LOAD_UNIVERSAL
from zlaunch.dsconfig.text.document import dotted
from zlaunch.errors import Unavailable
from zlaunch.launch.plan import LaunchPlan, PlanInputs
from zlaunch.launch.reporter import Reporter
from zlaunch.resume.can_resume import ResumeWay
from zlaunch.resume.fit import fit_of
from zlaunch.resume.resumption import Conversion
from zlaunch.units import duration


class NotConverted(Unavailable):
    """A checkpoint cannot be converted."""


def with_conversion(inputs: PlanInputs, plan: LaunchPlan) -> PlanInputs:
    """Let a job load a universal checkpoint, one that has to be made first, if no other fits it."""
    fit = fit_of(plan)
    if plan.resume is None or fit is None or fit.answer.way is not ResumeWay.UNIVERSAL:
        return inputs
    found, job = plan.resume.resumption, inputs.job
    one = found.saved.checkpoint
    key = () if plan.loads_universal else ((dotted(LOAD_UNIVERSAL), True),)
    if fit.converted is not None:
        found = replace(found, saved=summarize(fit.converted))
    else:
        folder, steps = universal_folder(one, None), fit.target.int_steps(found.saved)
        conversion = Conversion(folder, disk_need_of(one), fit.answer.reasons, steps)
        found = replace(found, conversion=conversion)
    return replace(inputs, job=replace(job, overrides=(*job.overrides, *key)), resume=found)


def convert(plan: LaunchPlan, reporter: Reporter) -> None:
    """Convert the checkpoint of a plan, if it needs that; raise NotConverted if that is impossible."""
    found = None if plan.resume is None else plan.resume.resumption
    if found is None or found.conversion is None:
        return
    began, how = time.monotonic(), found.conversion
    try:
        write_universal(
            plan_universal(found.saved.checkpoint, None),
            lambda: reporter.busy("converting the checkpoint", duration(time.monotonic() - began)),
            how.int_steps,
            plan.python.executable,
        )
    except Unavailable as error:
        raise NotConverted(error.message, error.hint) from None
    reporter.note(f"the checkpoint was converted in {duration(time.monotonic() - began)}")
