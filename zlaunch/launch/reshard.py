"""`--allow-reshard`: convert the checkpoint that a job goes on from, if it needs that."""

import time
from dataclasses import replace

from zlaunch.checkpoint.resume import ResumeWay
from zlaunch.checkpoint.universal import make_universal, universal_folder
from zlaunch.files import shown
from zlaunch.launch.preflight.resume import fit_of
from zlaunch.launch.prepare import Prepared
from zlaunch.launch.reporter import Reporter
from zlaunch.launch.resume import find_resumption
from zlaunch.units import duration

_KEY = "checkpoint.load_universal"


def resharded(prepared: Prepared, reporter: Reporter, *, write: bool) -> Prepared:
    """Convert the checkpoint for the ranks, the stage and the offload of the job, and let the job load that.

    Without `write`, nothing is converted, and the job is shown as it would start. Raise what `make_universal`
    raises.
    """
    plan = prepared.plan()
    if plan.resume is None:
        return prepared
    fit = fit_of(plan)
    if fit is None or fit.answer.way is not ResumeWay.UNIVERSAL or (fit.is_converted and fit.loads_universal):
        return prepared
    saved, job = plan.resume.resumption.saved, prepared.inputs.job
    began = time.monotonic()
    if not fit.is_converted and write:
        make_universal(
            saved.checkpoint,
            None,
            lambda: reporter.busy("converting the checkpoint", duration(time.monotonic() - began)),
            fit.target.int_steps(saved),
        )
    keys = job.overrides if fit.loads_universal else (*job.overrides, (_KEY, True))
    named = str(universal_folder(saved.checkpoint, None)) if write or fit.is_converted else job.resume
    job = replace(job, overrides=keys, resume=named)
    found = find_resumption(job, prepared.inputs.script)
    assert found is not None
    if not fit.is_converted:
        took = f"converted in {duration(time.monotonic() - began)}" if write else "converted before the start"
        reporter.note(f"{shown(saved.checkpoint.folder)} is {took}: {'; '.join(fit.answer.reasons)}")
        found = replace(found, is_to_convert=not write)
    return replace(prepared, inputs=replace(prepared.inputs, job=job, resume=found))
