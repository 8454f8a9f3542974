"""`zlaunch runs send`: the metrics of a run for a tracker."""

import os
from typing import Annotated, Literal

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson, LatestRun, RunsDir
from zlaunch.cli.views.run import to_json, tracker_rows
from zlaunch.errors import Unavailable
from zlaunch.rundir.layout import RunDir
from zlaunch.runs.send import send_metrics
from zlaunch.runs.store import find_run
from zlaunch.units import plural

PROJECT = "zlaunch"


def send(
    run: LatestRun = "latest",
    to: Annotated[
        Literal["tensorboard", "wandb", "trackio"],
        typer.Option(help="Tracker, whose package the Python of the run must have."),
    ] = "tensorboard",
    project: Annotated[
        str | None, typer.Option(metavar="NAME", help="Project (default: $WANDB_PROJECT, else zlaunch).")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over.")] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Send the metrics of a run to TensorBoard, wandb or trackio.

    These are loss, learning rate, tokens per second, and the memory of each rank and host.
    """
    root = find_run(run, runs_dir)
    if not RunDir(root).metrics.exists():
        raise Unavailable(f"{root.name} has no metrics", "a run has some as soon as its ranks have started")
    line, shows = console.ProgressLine(), console.is_interactive()

    def told(number: int) -> None:
        if shows:
            line.show("sending", plural(number, "line"))

    chosen = project or os.environ.get("WANDB_PROJECT") or PROJECT
    found = send_metrics(root, to, chosen, follow=follow, told=told)
    line.clear()
    sent = found.pop("sent")
    if as_json:
        console.data(to_json({"run": root.name, "tracker": to, "sent": sent, **found}))
        return
    place = {name: str(value) for name, value in found.items()}
    ((_, where),) = tracker_rows({to: place})
    console.data(f"{plural(int(str(sent)), 'line')} sent: {where}")
