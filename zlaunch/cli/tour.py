"""`zlaunch tour`: the experiment of the ZeRO tutorials, on real ranks."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from zlaunch import console
from zlaunch.cli import options
from zlaunch.cli.views import parity as parity_view
from zlaunch.cli.views import tour as tour_view
from zlaunch.cli.views.dump import to_json
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.estimate.forecast_cache import ForecastCache
from zlaunch.estimate.rehearse import Rehearser
from zlaunch.files import cache_directory, check_writable, write_new
from zlaunch.launch.parity import PARITY, Parity, compare_losses, modes_to_compare
from zlaunch.launch.surroundings import refuse_several
from zlaunch.launch.tour import TOUR, Experiment, Guide, Tour, take_tour


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
    experiment = PARITY if parity else Experiment()
    experiment = replace(experiment, world_size=ranks, width=width or experiment.width, precision=precision)
    result = (_parity if parity else _tour)(experiment, out, None if nvme is None else nvme.absolute())
    if isinstance(result, int):
        raise typer.Exit(result)
    text = to_json(result.numbers)
    console.data(*([text] if as_json else result.lines))
    _write(result, out, text)


@dataclass(frozen=True)
class Result:
    """What came of the jobs, and how it is shown."""

    numbers: dict[str, object]
    lines: list[str]
    draw: Callable[[], bytes]
    files: tuple[str, str]
    """For the numbers and the picture."""
    num_runs: int


def _tour(experiment: Experiment, out: Path, _: Path | None) -> Result | int:
    files = ("tour.json", "memory.png")
    _check(out, files)
    view = tour_view.TourView(len(TOUR))
    with Rehearser(ForecastCache(cache_directory(os.environ))) as rehearser:
        view.busy_with("rehearsing the jobs")
        guide = Guide(experiment, view)
        found = take_tour(guide, rehearser, lambda number, mode: view.begin(number, mode.label))
    view.done()
    if not isinstance(found, Tour):
        return found
    lines = [*tour_view.tour_lines(found)]
    return Result(asdict(found), lines, lambda: tour_view.draw(found), files, len(found.stops))


def _parity(experiment: Experiment, out: Path, nvme: Path | None) -> Result | int:
    files = ("parity.json", "loss.png")
    _check(out, files)
    view = tour_view.TourView(len(modes_to_compare(nvme)))
    guide = Guide(experiment, view, nvme)
    found = compare_losses(guide, lambda number, mode: view.begin(number, mode.label))
    view.done()
    if not isinstance(found, Parity):
        return found
    lines = [*parity_view.parity_lines(found)]
    return Result(asdict(found), lines, lambda: parity_view.draw(found), files, len(found.curves))


def _check(out: Path, files: tuple[str, str]) -> None:
    check_writable(out, "--out")
    for name in files:
        if (out / name).exists():
            raise Unavailable(f"`{out / name}` already exists", "choose another directory with `--out DIR`")


def _write(result: Result, out: Path, text: str) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"`--out {out}`: {error.strerror}") from None
    numbers, picture = (out / name for name in result.files)
    write_new(numbers, text)
    if importlib.util.find_spec("matplotlib") is None:
        console.say("no picture: matplotlib is not installed (`pip install matplotlib`)")
        wrote = f"{numbers}"
    else:
        write_new(picture, result.draw())
        wrote = f"{numbers} and {picture}"
    console.say(f"wrote {wrote}; `zlaunch runs list` shows the {result.num_runs} runs")
