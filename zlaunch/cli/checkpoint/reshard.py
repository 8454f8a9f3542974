"""`zlaunch checkpoint reshard`: convert a checkpoint for other ranks, another stage or other offload."""

import json
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.checkpoint.newest import to_go_on_from
from zlaunch.cli.checkpoint.can_resume import answer_lines
from zlaunch.cli.checkpoint.target import DsConfig, Place, Precision, Ranks, Stage, target_of
from zlaunch.cli.checkpoint.universal import convert, converted
from zlaunch.cli.options import AsJson, CheckpointDir
from zlaunch.cli.views.checkpoint import taken
from zlaunch.errors import ExitStatus
from zlaunch.resume.can_resume import ResumeTarget, ResumeWay, can_resume, converted_for


def reshard(
    folder: CheckpointDir,
    out: Annotated[
        Path | None,
        typer.Argument(metavar="[OUT]", help="Directory to write to (default: beside the checkpoint)."),
    ] = None,
    ranks: Ranks = None,
    stage: Stage = None,
    precision: Precision = None,
    offload: Place = None,
    ds_config: DsConfig = None,
    as_json: AsJson = False,
) -> None:
    """Convert a checkpoint for other ranks, stage or offload.

    Nothing is written if the job can load it as it is, or what was converted before. Otherwise this is
    `universal`, with the steps of Adam in the form that the job needs. The exit status is 65 if it cannot be
    converted.
    """
    found = to_go_on_from(folder)
    target = target_of(ResumeTarget(ranks, stage, precision, offload), ds_config, found)
    console.say(*taken(folder, found))
    answer = can_resume(found, target)
    done = converted_for(found, target) if out is None else None
    if answer.way is ResumeWay.UNIVERSAL and done is None:
        convert(found.checkpoint, out, target.int_steps(found), as_json=as_json)
        return
    if as_json:
        folder = found.checkpoint.folder if done is None else done.folder
        told = converted(folder, is_written=False, way=answer.way.value)
        console.data(json.dumps({**told, "reasons": list(answer.reasons)}, indent=2))
    else:
        console.say(*answer_lines(found, target, answer, done))
    if answer.way is not ResumeWay.AS_IT_IS and done is None:
        raise typer.Exit(ExitStatus.REFUSED)
