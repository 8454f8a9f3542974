"""`zlaunch tour`: the experiment of the ZeRO tutorials, on real ranks."""

import importlib.util
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from zlaunch import console
from zlaunch.cli import options
from zlaunch.cli.views.tour import TourView, draw, tour_lines
from zlaunch.errors import Unavailable
from zlaunch.estimate.forecast_cache import ForecastCache, cache_directory
from zlaunch.estimate.rehearse import Rehearser
from zlaunch.files import write_new
from zlaunch.launch.rundir_writer import check_writable
from zlaunch.launch.tour import TOUR, Experiment, Guide, Tour, take_tour

NUMBERS, PICTURE = "tour.json", "memory.png"


def tour(
    ranks: Annotated[
        int, typer.Option(min=1, max=options.MOST_GPUS, metavar="N", help="Number of ranks.")
    ] = 2,
    width: Annotated[
        int, typer.Option(min=16, max=1 << 16, metavar="N", help="Inputs and outputs of a layer.")
    ] = 2048,
    precision: Annotated[Literal["fp32", "bf16", "fp16"], typer.Option(help="Training precision.")] = "fp32",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the numbers and the picture.")
    ] = Path("tour"),
    as_json: options.AsJson = False,
) -> None:
    """Measure what ZeRO does: one small model at every stage, on real ranks.

    Trains 12 linear layers without ZeRO, with ZeRO-1, 2 and 3 and with CPU offload. Shows the memory
    after each phase and the traffic of a step, beside the prediction and the formulas of the
    textbooks. Takes about two minutes on two cores.
    """
    _check(out)
    experiment = Experiment(world_size=ranks, width=width, precision=precision)
    view = TourView(len(TOUR))
    guide = Guide(experiment, view)
    cache = ForecastCache(cache_directory(os.environ))
    with Rehearser(cache) as rehearser:
        view.busy_with("rehearsing the jobs")
        found = take_tour(guide, rehearser, lambda number, mode: view.begin(number, mode.label))
    view.done()
    if not isinstance(found, Tour):
        raise typer.Exit(found)
    text = json.dumps(asdict(found), indent=2)
    console.data(*([text] if as_json else tour_lines(found)))
    _write(out, text, found, view.runs)


def _check(out: Path) -> None:
    check_writable(out, "--out")
    for name in (NUMBERS, PICTURE):
        if (out / name).exists():
            raise Unavailable(f"`{out / name}` already exists", "choose another directory with `--out DIR`")


def _write(out: Path, text: str, found: Tour, runs: list[str]) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"`--out {out}`: {error.strerror}") from None
    write_new(out / NUMBERS, text)
    written = [str(out / NUMBERS)]
    if importlib.util.find_spec("matplotlib") is None:
        console.say("no picture: matplotlib is not installed (`pip install matplotlib`)")
    else:
        write_new(out / PICTURE, draw(found))
        written.append(str(out / PICTURE))
    console.say(f"wrote {' and '.join(written)}; `zlaunch runs list` shows the {len(runs)} runs")
