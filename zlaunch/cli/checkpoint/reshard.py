"""`zlaunch checkpoint reshard`: convert a checkpoint for other ranks, another stage or other offload."""

from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.checkpoint.can_resume import fit_lines
from zlaunch.cli.checkpoint.target import DsConfig, Place, Precision, Ranks, Stage, target_of
from zlaunch.cli.checkpoint.universal import convert, converted
from zlaunch.cli.options import AsJson, CheckpointDir
from zlaunch.cli.views.checkpoint import taken
from zlaunch.cli.views.dump import to_json
from zlaunch.errors import ExitStatus
from zlaunch.resume.fit import ResumeTarget, ResumeWay, can_resume
from zlaunch.resume.newest import checkpoint_of


def reshard(
    folder: CheckpointDir,
    out: Annotated[
        Path | None,
        typer.Argument(metavar="OUT", help="Directory to write to (default: beside the checkpoint)."),
    ] = None,
    ranks: Ranks = None,
    stage: Stage = None,
    precision: Precision = None,
    offload: Place = None,
    ds_config: DsConfig = None,
    as_json: AsJson = False,
) -> None:
    """Convert a checkpoint for one job, only if that job needs it.

    Writes nothing if the job can load the checkpoint, or an earlier conversion of it. Otherwise this is
    `universal`, with the steps of Adam in the form that the job needs. Exits with 65 if the conversion is not
    possible.
    """
    saved = checkpoint_of(folder)
    fit = can_resume(saved, target_of(ResumeTarget(ranks, stage, precision, offload), ds_config, saved))
    console.say(*taken(folder, saved))
    done = fit.converted if out is None else None
    if fit.way is ResumeWay.UNIVERSAL and done is None:
        convert(saved.checkpoint, out, fit.int_steps, as_json=as_json)
        return
    if as_json:
        usable = saved.checkpoint if done is None else done
        members = converted(usable.folder, is_written=False, way=fit.way.value)
        console.data(to_json({**members, "reasons": list(fit.reasons)}))
    else:
        console.say(*fit_lines(fit, takes_converted=out is None))
    if fit.way is not ResumeWay.AS_IT_IS and done is None:
        raise typer.Exit(ExitStatus.REFUSED)
