"""`zlaunch tour`: the experiment of the ZeRO tutorials, on real ranks."""

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from zlaunch import console
from zlaunch.cli import options
from zlaunch.cli.views import parity as parity_view
from zlaunch.cli.views import tour as tour_view
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.tour import TourView
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.estimate.forecast_cache import ForecastCache
from zlaunch.estimate.rehearse import Rehearser
from zlaunch.files import cache_directory, check_writable, write_new
from zlaunch.launch.parity import PARITY, modes_to_compare, parity_of
from zlaunch.launch.surroundings import refuse_several
from zlaunch.launch.tour import TOUR, Experiment, FinishedJob, tour_of, train_modes


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
    numbers, picture = (out / name for name in (_FILES["parity"] if parity else _FILES["tour"]))
    check_writable(out, "--out")
    for file in (numbers, picture):
        if file.exists():
            raise Unavailable(f"`{file}` already exists", "choose another directory with `--out DIR`")
    experiment = PARITY if parity else Experiment()
    experiment = replace(experiment, world_size=ranks, width=width or experiment.width, precision=precision)
    modes = modes_to_compare(nvme) if parity else TOUR
    view = TourView(len(modes))
    drive = None if nvme is None else nvme.absolute()
    jobs = train_modes(experiment, modes, drive, view, lambda number, mode: view.begin(number, mode.label))
    if isinstance(jobs, int):
        view.done()
        raise typer.Exit(jobs)
    result = _parity(experiment, jobs) if parity else _tour(experiment, jobs, view)
    view.done()
    text = to_json(result.numbers)
    if as_json:
        console.data(text)
    else:
        console.data(*result.lines)
    written = _write_result(numbers, text, picture, result.draw)
    console.say(f"wrote {written}; `zlaunch runs list` shows the {len(jobs)} runs")


_FILES = {"tour": ("tour.json", "memory.png"), "parity": ("parity.json", "loss.png")}
"""Names of the files with the numbers and with the picture."""


class _Result(NamedTuple):
    """What came of the jobs: its numbers, how they are shown, and the picture."""

    numbers: object
    lines: list[str]
    draw: Callable[[], bytes]


def _tour(experiment: Experiment, jobs: Sequence[FinishedJob], view: TourView) -> _Result:
    view.busy_with("rehearsing the jobs")
    with Rehearser(ForecastCache(cache_directory(os.environ))) as rehearser:
        tour = tour_of(experiment, jobs, rehearser)
    return _Result(tour, list(tour_view.tour_lines(tour)), lambda: tour_view.draw(tour))


def _parity(experiment: Experiment, jobs: Sequence[FinishedJob]) -> _Result:
    parity = parity_of(experiment, jobs)
    return _Result(parity, list(parity_view.parity_lines(parity)), lambda: parity_view.draw(parity))


def _write_result(numbers: Path, text: str, picture: Path, draw: Callable[[], bytes]) -> str:
    """Write the numbers and, if it can be drawn, the picture; return what was written."""
    try:
        numbers.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"`--out {numbers.parent}`: {error.strerror}") from None
    write_new(numbers, text)
    if importlib.util.find_spec("matplotlib") is None:
        console.say("no picture: matplotlib is not installed (`pip install matplotlib`)")
        return str(numbers)
    write_new(picture, draw())
    return f"{numbers} and {picture}"
