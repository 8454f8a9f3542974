"""`zlaunch checkpoint verify`: whether checkpoints can be loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.checkpoint.find import checkpoints_at
from zlaunch.checkpoint.pattern_path import how_to_rename, is_misread
from zlaunch.checkpoint.problem import Problem
from zlaunch.checkpoint.summary import Summary, summarize, wrong_latest
from zlaunch.cli.options import AsJson
from zlaunch.cli.views.checkpoint import members, problem_lines, problem_members, shown, state
from zlaunch.cli.views.dump import to_json
from zlaunch.console import visible
from zlaunch.errors import ExitStatus


def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A checkpoint, or a directory of several.")
    ] = Path(),
    full: Annotated[bool, typer.Option("--full", help="Also read all bytes and compare checksums.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find files that are missing, damaged or from different saves.

    Without `--full`, names, structures and sizes are checked, which takes a moment for any size.
    Exits with 65 if there is a problem, or a file that zlaunch cannot judge.
    """
    checkpoints = [summarize(checkpoint, full) for checkpoint in checkpoints_at(folder)]
    beside = list(wrong_latest(checkpoints))
    if as_json:
        console.data(to_json([{**members(saved), **_beside(saved, beside)} for saved in checkpoints]))
    else:
        for saved in checkpoints:
            console.data(f"{shown(saved.checkpoint.folder)}: {_verdict(saved)}")
            for line in problem_lines((*saved.problems, *saved.unknown), saved.checkpoint.folder):
                console.data(*console.paragraph(line, "    "))
            if is_misread(saved.checkpoint):
                link = visible(how_to_rename(saved.checkpoint))
                console.say(*console.paragraph(f"DeepSpeed takes its path for a pattern: {link}"))
        for problem in beside:
            console.data(*console.paragraph(f"{shown(problem.file)}: {problem.message}"))
    if beside or any(saved.problems or saved.unknown for saved in checkpoints):
        raise typer.Exit(ExitStatus.REFUSED)


def _verdict(saved: Summary) -> str:
    """Say whether it is complete, and what a complete one may lack."""
    if saved.problems or saved.unknown or saved.has_optimizer:
        return state(saved)
    return f"{state(saved)}; it has no optimizer state"


def _beside(saved: Summary, problems: Sequence[Problem]) -> dict[str, object]:
    """List the problems of files that concern all tags in a directory, which damage none of them."""
    base = saved.checkpoint.folder.parent
    beside = [problem for problem in problems if problem.file.parent == base]
    return {"problems_beside": list(map(problem_members, beside))}
