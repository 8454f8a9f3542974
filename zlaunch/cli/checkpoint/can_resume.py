"""`zlaunch checkpoint can-resume`: whether a job can go on from a checkpoint."""

import json
from collections.abc import Iterator

import typer

from zlaunch import console
from zlaunch.checkpoint.find import CheckpointFolder, SavedBy
from zlaunch.checkpoint.newest import to_go_on_from
from zlaunch.checkpoint.pattern_path import how_to_rename
from zlaunch.checkpoint.summary import Summary
from zlaunch.checkpoint.weights import how_to_take_weights
from zlaunch.cli.checkpoint.target import DsConfig, Place, Precision, Ranks, Stage, target_of
from zlaunch.cli.checkpoint.universal import how_to_load
from zlaunch.cli.options import AsJson, CheckpointDir
from zlaunch.cli.views.checkpoint import shown, typed
from zlaunch.console import visible
from zlaunch.dsconfig.schema.storage import SET_LOAD_UNIVERSAL
from zlaunch.errors import ExitStatus
from zlaunch.resume.can_resume import (
    ResumeAnswer,
    ResumeTarget,
    ResumeWay,
    can_resume,
    converted_for,
    nearest_that_fits,
    needed_key,
)


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
    found = to_go_on_from(folder)
    target = target_of(ResumeTarget(ranks, stage, precision, offload), ds_config, found)
    answer = can_resume(found, target)
    if as_json:
        members = {"way": answer.way.value, "reasons": list(answer.reasons)}
        console.data(json.dumps(members, indent=2))
    else:
        console.data(*answer_lines(found, target, answer, converted_for(found, target)))
    if answer.way is not ResumeWay.AS_IT_IS:
        raise typer.Exit(ExitStatus.REFUSED)


def answer_lines(
    found: Summary, target: ResumeTarget, answer: ResumeAnswer, done: CheckpointFolder | None
) -> list[str]:
    """Say it to a person, with the command to type next; `done` is what an earlier conversion wrote."""
    if answer.way is ResumeWay.AS_IT_IS:
        is_universal = found.checkpoint.saved_by is SavedBy.UNIVERSAL
        how = f"with `{SET_LOAD_UNIVERSAL}`" if is_universal else "as it is"
        return [f"yes: {shown(found.checkpoint.folder)} can be loaded {how}"]
    lines = ["unknown:" if answer.way is ResumeWay.UNKNOWN else "no, not as it is:"]
    for reason in answer.reasons:
        lines += console.paragraph(reason, "  ")
    if answer.way is ResumeWay.UNIVERSAL and done is not None:
        lines.append(f"but {shown(done.folder)} can be:")
        advice = list(how_to_load(found.checkpoint, done.folder))
    else:
        advice = list(_advice(found, target, answer.way))
    return [*lines, *(line for one in advice for line in console.paragraph(one))]


def _advice(found: Summary, target: ResumeTarget, way: ResumeWay) -> Iterator[str]:
    folder = found.checkpoint.folder
    name = typed(folder)
    if way is ResumeWay.UNIVERSAL:
        yield f"`zlaunch checkpoint reshard {name}{target.options}` converts it"
    elif way is ResumeWay.OTHER_KEY:
        yield f"{needed_key(target)} makes it fit"
    elif way is ResumeWay.OTHER_PATH:
        yield visible(how_to_rename(found.checkpoint))
    elif way is ResumeWay.UNKNOWN:
        if found.checkpoint.saved_by is not SavedBy.DCP:
            yield "DeepSpeed may load it all the same: on as many ranks, at the stage it was saved at"
    elif way is ResumeWay.REPAIR:
        listed = typed(folder.parent)
        yield f"take another checkpoint; `zlaunch checkpoint list {listed}` shows which are complete"
    else:
        if (other := nearest_that_fits(found, target)) is not None:
            is_converted = can_resume(found, other).way is ResumeWay.UNIVERSAL
            then = f": `zlaunch checkpoint reshard {name}{other.options}` converts it" if is_converted else ""
            if options := target.changes_to(other).options.strip():
                yield f"a job with `{options}` can go on{then}"
        yield visible(how_to_take_weights(found.checkpoint))
