"""`zlaunch checkpoint can-resume`: whether a job can go on from a checkpoint."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from zlaunch import console
from zlaunch.checkpoint.find import checkpoint_at
from zlaunch.checkpoint.resume import ResumeAnswer, ResumeTarget, ResumeWay, can_resume
from zlaunch.checkpoint.summary import Summary, summarize
from zlaunch.cli.options import AsJson, CheckpointDir
from zlaunch.cli.views.checkpoint import shown
from zlaunch.config.report import load_config
from zlaunch.errors import ExitStatus

_ADVICE = {
    ResumeWay.UNIVERSAL: "`zlaunch checkpoint universal {}` converts it; then train with "
    "`--set checkpoint.load_universal=true`",
    ResumeWay.WEIGHTS: "`zlaunch checkpoint export {} OUT` takes the weights; a training from them starts "
    "with a new optimizer",
    ResumeWay.REPAIR: "take another checkpoint; `zlaunch checkpoint list` shows which are complete",
}


def can_resume_from(
    folder: CheckpointDir,
    ranks: Annotated[int | None, typer.Option(min=1, metavar="N", help="Ranks of the job.")] = None,
    stage: Annotated[int | None, typer.Option(min=0, max=3, help="ZeRO stage of the job.")] = None,
    ds_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take stage and precision from this ds_config.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a job can go on from a checkpoint.

    If not, say what has to be done first. What is not given is taken to be as it was. The exit status is
    65 if something has to be done first.
    """
    found = summarize(checkpoint_at(folder))
    answer = can_resume(found, _target(ranks, stage, ds_config))
    if as_json:
        members = {"way": answer.way.value, "reasons": list(answer.reasons)}
        console.data(json.dumps(members, indent=2))
    else:
        console.data(*_lines(found, answer))
    if answer.way is not ResumeWay.AS_IT_IS:
        raise typer.Exit(ExitStatus.REFUSED)


def _target(ranks: int | None, stage: int | None, ds_config: Path | None) -> ResumeTarget:
    if ds_config is None:
        return ResumeTarget(ranks, stage)
    config: Any = load_config(str(ds_config)).needed(str(ds_config)).value
    zero, bf16 = (config.get(name) for name in ("zero_optimization", "bf16"))
    if stage is None:
        named = zero.get("stage", 0) if isinstance(zero, dict) else 0
        stage = named if isinstance(named, int) else None
    enabled = bf16.get("enabled", False) if isinstance(bf16, dict) else False
    return ResumeTarget(ranks, stage, enabled if isinstance(enabled, bool) else None)


def _lines(found: Summary, answer: ResumeAnswer) -> list[str]:
    if answer.way is ResumeWay.AS_IT_IS:
        return [f"yes: {shown(found.checkpoint.folder)} can be loaded as it is"]
    lines = ["no, not as it is:"]
    for reason in answer.reasons:
        lines += console.paragraph(reason, "  ")
    advice = _ADVICE[answer.way].format(shown(found.checkpoint.folder))
    return [*lines, *console.paragraph(advice)]
