"""`zlaunch checkpoint can-resume`: whether a job can resume from a checkpoint."""

from collections.abc import Iterator

import typer

from zlaunch import console
from zlaunch.checkpoint.find import SavedBy
from zlaunch.checkpoint.pattern_path import how_to_rename
from zlaunch.checkpoint.weights import how_to_take_weights
from zlaunch.cli.checkpoint.target import DsConfig, Place, Precision, Ranks, Stage, target_of
from zlaunch.cli.checkpoint.universal import how_to_load
from zlaunch.cli.options import AsJson, CheckpointDir
from zlaunch.cli.views.checkpoint import shown, typed
from zlaunch.cli.views.dump import to_json
from zlaunch.console import visible
from zlaunch.dsconfig.schema.storage import SET_LOAD_UNIVERSAL, WRITER
from zlaunch.dsconfig.text.document import dotted
from zlaunch.errors import ExitStatus
from zlaunch.resume.fit import CheckpointFit, ResumeTarget, ResumeWay, can_resume
from zlaunch.resume.newest import checkpoint_of


def can_resume_from(
    folder: CheckpointDir,
    ranks: Ranks = None,
    stage: Stage = None,
    precision: Precision = None,
    offload: Place = None,
    ds_config: DsConfig = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a job can resume from a checkpoint.

    Options left out default to the checkpoint's. Exits with 65 if the checkpoint must be converted first, and
    shows the command.
    """
    saved = checkpoint_of(folder)
    fit = can_resume(saved, target_of(ResumeTarget(ranks, stage, precision, offload), ds_config, saved))
    if as_json:
        members = {"way": fit.way.value, "reasons": list(fit.reasons)}
        console.data(to_json(members))
    else:
        console.data(*fit_lines(fit, takes_converted=True))
    if fit.way is not ResumeWay.AS_IT_IS:
        raise typer.Exit(ExitStatus.REFUSED)


def fit_lines(fit: CheckpointFit, *, takes_converted: bool) -> list[str]:
    """Say how a checkpoint fits a job, with the command to type next, or what was converted before."""
    checkpoint = fit.saved.checkpoint
    if fit.way is ResumeWay.AS_IT_IS:
        is_universal = checkpoint.saved_by is SavedBy.UNIVERSAL
        how = f"with `{SET_LOAD_UNIVERSAL}`" if is_universal else "as it is"
        lines = [f"yes: {shown(checkpoint.folder)} can be loaded {how}"]
        if fit.saved.has_writer and fit.saved.stage:
            text = f"leave `{dotted(WRITER)}` out of the ds_config: with it, torch 2.6 and newer refuses it"
            lines += console.paragraph(text)
        return lines
    lines = ["unknown:" if fit.way is ResumeWay.UNKNOWN else "no, not as it is:"]
    for reason in fit.reasons:
        lines += console.paragraph(reason, "  ")
    advice = list(_advice_on_fit(fit))
    if takes_converted and fit.way is ResumeWay.UNIVERSAL and fit.converted is not None:
        lines.append(f"but {shown(fit.converted.folder)} can be:")
        advice = list(how_to_load(checkpoint, fit.converted.folder))
    for text in advice:
        lines += console.paragraph(text)
    return lines


def _advice_on_fit(fit: CheckpointFit) -> Iterator[str]:
    checkpoint = fit.saved.checkpoint
    match fit.way:
        case ResumeWay.UNIVERSAL:
            yield f"{visible(fit.reshard_command)} converts it"
        case ResumeWay.OTHER_KEY:
            yield f"{fit.needed_key} makes it fit"
        case ResumeWay.OTHER_PATH:
            yield visible(how_to_rename(checkpoint))
        case ResumeWay.UNKNOWN if checkpoint.saved_by is SavedBy.DCP:
            return
        case ResumeWay.UNKNOWN:
            yield "DeepSpeed may load it all the same: on as many ranks, at the stage it was saved at"
        case ResumeWay.REPAIR:
            listed = typed(checkpoint.folder.parent)
            yield f"take another checkpoint; `zlaunch checkpoint list {listed}` shows which are complete"
        case _:
            yield from _nearest(fit)
            yield visible(how_to_take_weights(checkpoint))


def _nearest(fit: CheckpointFit) -> Iterator[str]:
    if (nearest := fit.nearest) is None:
        return
    then = ""
    if nearest.way is ResumeWay.UNIVERSAL:
        then = f": {visible(nearest.reshard_command)} converts it"
    if options := fit.target.changes_to(nearest.target).options.strip():
        yield f"a job with `{options}` can resume{then}"
