"""`zlaunch tour`: the experiment of the ZeRO tutorials, on real ranks."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from zlaunch import console
from zlaunch.cli import options
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.tour import TourView, draw, lines_of
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.estimate.forecast_cache import ForecastCache
from zlaunch.estimate.rehearse import Rehearser
from zlaunch.files import cache_directory, check_writable, typed, write_new
from zlaunch.launch.surroundings import refuse_several
from zlaunch.launch.tour import (
    MODES_OF_PARITY,
    NVME,
    PARITY,
    TOUR,
    Experiment,
    Parity,
    Tour,
    parity_of,
    tour_of,
    train_modes,
)
from zlaunch.rundir.layout import RUNS


def tour(
    ranks: Annotated[
        int, typer.Option(min=1, max=options.MOST_GPUS, metavar="N", help="Number of ranks.")
    ] = 2,
    width: Annotated[
        int | None,
        typer.Option(
            min=16,
            max=1 << 16,
            metavar="N",
            help="Inputs and outputs of a layer (default: 2048; with --parity: 1024).",
        ),
    ] = None,
    precision: Annotated[Literal["fp32", "bf16"], typer.Option(help="Training precision.")] = "fp32",
    parity: Annotated[
        bool, typer.Option("--parity", help="Compare the losses of all stages and offloads instead.")
    ] = False,
    nvme: options.Nvme = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the numbers and the picture.")
    ] = Path("tour"),
    as_json: options.AsJson = False,
) -> None:
    """Measure what ZeRO does: one small model at every stage.

    Trains 12 linear layers on real ranks, without ZeRO, with ZeRO-1, 2, 3 and CPU offload. Shows the memory
    after each phase and the traffic of a step, beside the prediction and the formulas of the
    textbooks. Takes one or two minutes on two cores.

    With --parity, trains a smaller model for 20 steps and compares the losses of all jobs.
    """
    if nvme is not None and not parity:
        raise WrongUsage("`--nvme` is for `--parity`: the tour offloads to the CPU only")
    if parity and precision != "fp32":
        raise WrongUsage(
            f"`--parity` compares losses in fp32: in {precision}, rounding moves them by a percent",
            "leave out `--precision`",
        )
    refuse_several(os.environ, "zlaunch tour")
    check_writable(out, "--out")
    experiment, modes, files = Experiment(), TOUR, ("tour.json", "memory.svg")
    if parity:
        experiment, modes, files = PARITY, MODES_OF_PARITY, ("parity.json", "loss.svg")
    if nvme is not None:
        modes, nvme = (*modes, NVME), nvme.absolute()
    numbers, picture = (out / name for name in files)
    for file in (numbers, picture):
        if file.exists():
            raise Unavailable(f"`{file}` already exists", "choose another directory with `--out DIR`")
    experiment = replace(experiment, world_size=ranks, width=width or experiment.width, precision=precision)
    view = TourView(len(modes))
    jobs = train_modes(experiment, modes, view, view.begin, folder=out / RUNS, nvme=nvme)
    if isinstance(jobs, int):
        view.done()
        raise typer.Exit(jobs)
    result: Tour | Parity
    if parity:
        result = parity_of(experiment, jobs)
    else:
        view.busy_with("rehearsing the jobs")
        with Rehearser(ForecastCache(cache_directory(os.environ))) as rehearser:
            result = tour_of(experiment, jobs, rehearser)
    view.done()
    text = to_json(result)
    if as_json:
        console.data(text)
    else:
        console.data(*lines_of(result))
    written = _write(numbers, text, picture, result)
    listed = f"zlaunch runs list --runs-dir {typed(out / RUNS)}"
    console.say(*console.paragraph(f"wrote {written}; `{listed}` shows the {len(jobs)} runs"))


def _write(numbers: Path, text: str, picture: Path, result: Tour | Parity) -> str:
    """Write the numbers and the picture; return what was written."""
    try:
        numbers.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"`--out {numbers.parent}`: {error.strerror}") from None
    write_new(numbers, text)
    write_new(picture, draw(result))
    return f"{numbers} and {picture}"
