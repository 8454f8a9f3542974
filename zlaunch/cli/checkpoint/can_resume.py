"""`zlaunch checkpoint can-resume`: whether a job can go on from a checkpoint."""

import json

import typer

from zlaunch import console
from zlaunch.checkpoint.find import SavedBy, checkpoint_at
from zlaunch.checkpoint.resume import ResumeAnswer, ResumeTarget, ResumeWay, can_resume, converted_for
from zlaunch.checkpoint.summary import Summary, summarize
from zlaunch.cli.checkpoint.target import DsConfig, Place, Precision, Ranks, Stage, target_of
from zlaunch.cli.checkpoint.universal import how_to_load
from zlaunch.cli.options import AsJson, CheckpointDir
from zlaunch.cli.views.checkpoint import shown, typed
from zlaunch.errors import ExitStatus

_ADVICE = {
    ResumeWay.UNIVERSAL: "`zlaunch checkpoint reshard {}{}` converts it",
    ResumeWay.WEIGHTS: "`zlaunch checkpoint export {} OUT` takes the weights; a training from them starts "
    "with a new optimizer",
    ResumeWay.REPAIR: "take another checkpoint; `zlaunch checkpoint list` shows which are complete",
}


def can_resume_from(
    folder: CheckpointDir,
    ranks: Ranks = None,
    stage: Stage = None,
    precision: Precision = None,
    offload: Place = None,
    ds_config: DsConfig = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a job can go on from a checkpoint.

    If not, say what has to be done first. What is not given is taken to be as it was. The exit status is
    65 if something has to be done first.
    """
    found = summarize(checkpoint_at(folder))
    target = target_of(ResumeTarget(ranks, stage, precision, offload), ds_config)
    answer = can_resume(found, target)
    if as_json:
        members = {"way": answer.way.value, "reasons": list(answer.reasons)}
        console.data(json.dumps(members, indent=2))
    else:
        console.data(*answer_lines(found, target, answer))
    if answer.way is not ResumeWay.AS_IT_IS:
        raise typer.Exit(ExitStatus.REFUSED)


def answer_lines(found: Summary, target: ResumeTarget, answer: ResumeAnswer) -> list[str]:
    """Say it to a person, with the command to type next."""
    if answer.way is ResumeWay.AS_IT_IS:
        is_universal = found.checkpoint.saved_by is SavedBy.UNIVERSAL
        how = "with `--set checkpoint.load_universal=true`" if is_universal else "as it is"
        return [f"yes: {shown(found.checkpoint.folder)} can be loaded {how}"]
    lines = ["no, not as it is:"]
    for reason in answer.reasons:
        lines += console.paragraph(reason, "  ")
    if answer.way is ResumeWay.UNIVERSAL and (done := converted_for(found, target)) is not None:
        lines.append(f"but {shown(done.folder)} can be:")
        advice = list(how_to_load(found.checkpoint, done.folder))
    else:
        advice = [_ADVICE[answer.way].format(typed(found.checkpoint.folder), target.options)]
    return [*lines, *(line for one in advice for line in console.paragraph(one))]
