"""Which checkpoint the next attempt of a job goes on from."""

from pathlib import Path

from zlaunch.checkpoint.summary import Summary
from zlaunch.diagnosis.evidence import JobEvidence
from zlaunch.files import shown
from zlaunch.job.script import RESUME
from zlaunch.launch.plan import PlanInputs
from zlaunch.resume.can_resume import ResumeTarget, ResumeWay, can_resume
from zlaunch.resume.handover import CheckpointReading, checkpoint_handover
from zlaunch.resume.restart_policy import Retry
from zlaunch.rundir.run_files import read_run_files
from zlaunch.runs.saved_by_run import newest_of_run, output_dir_of
from zlaunch.units import plural


def newest_for_restart(inputs: PlanInputs, run: Path, ran: JobEvidence, proposal: Retry) -> Summary | None:
    """Find the newest checkpoint of a job, given its last attempt, that fits the next; None without one.

    There is none for a script that is not known to load what it is told.
    """
    if not proposal.resumes or checkpoint_handover(inputs.script).reading is not CheckpointReading.YES:
        return None
    asked = proposal.job.offload
    offload = (asked and asked.optimizer) or ran.offload.get("optimizer", "none")
    target = ResumeTarget(ran.world_size, ran.stage, offload=offload)

    def fits(one: Summary) -> bool:
        return can_resume(one, target).way in (ResumeWay.AS_IT_IS, ResumeWay.UNKNOWN)

    files = read_run_files(run)
    folder = output_dir_of(files) or inputs.script.known_output_dir(inputs.job.args)
    return None if folder is None else newest_of_run(files, folder, fits)


def beginning(first: PlanInputs, found: Summary | None, reached: int) -> str:
    """Say where the next attempt begins, and what is lost of the steps that were reached.

    Without a new checkpoint it begins as the first attempt did.
    """
    if found is None and first.resume is not None:
        found = first.resume.saved
    is_named = first.job.args.has(RESUME)
    if found is None and (is_named or checkpoint_handover(first.script).reading is CheckpointReading.OWN):
        return "its script chooses the checkpoint to go on from"
    where = "starting over" if found is None else f"going on from {shown(found.checkpoint.folder)}"
    step = 0 if found is None else found.step
    lost = 0 if step is None else reached - step
    return f"{where}, {plural(lost, 'step')} lost" if lost > 0 else where
