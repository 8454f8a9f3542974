"""`zlaunch check SCRIPT`: check a training script as it is."""

from collections.abc import Mapping
from typing import Any

from zlaunch import console
from zlaunch.cli.script_job import job_of, read_named_script
from zlaunch.cli.views.check import answer_of, lines_of, rows_of_script
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.plan_view import PlanView
from zlaunch.errors import ExitStatus, Unavailable, ZlaunchError
from zlaunch.job.spec import JobSpec
from zlaunch.launch.checked_script import check_script
from zlaunch.parity.verdict import ParityAnswer


def check_named_script(context: Any, script: str | None, given: Mapping[str, Any], steps: int) -> ExitStatus:
    """Check a script, or the module that is given, show the result, and return the exit status."""
    job = job_of(context, read_named_script(script, given), given)
    checked = check_script(job, PlanView(as_json=given["as_json"]), steps)
    if given["as_json"]:
        console.data(to_json(checked))
    else:
        console.data(*lines_of(checked, rows_of_script(checked)))
        console.say_findings(checked.defects)
    return checked.verdict.answer.status


def check_first(job: JobSpec) -> ExitStatus:
    """Check a job before its start; return REFUSED if it trains otherwise, with the evidence on stderr.

    If that cannot be told, a note says why, and the job may start.
    """
    view = PlanView()
    try:
        checked = check_script(job, view)
    except Unavailable as error:
        view.note(f"{error.message}; it starts without a check")
        return ExitStatus.OK
    if checked.verdict.answer is not ParityAnswer.DIFFERS:
        view.note(f"checked: {answer_of(checked)}")
        return ExitStatus.OK
    console.say(*lines_of(checked, rows_of_script(checked)))
    console.say_findings(checked.defects)
    message = "not started, since it trains something other than plain torch"
    console.show_error(ZlaunchError(message, "leave out `--check` to start it all the same"))
    return ExitStatus.REFUSED
