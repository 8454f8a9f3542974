"""Format a tour, or a comparison of losses: tables for a terminal, and a picture."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from zlaunch import console
from zlaunch.cli.views.axes import Axis, across, up
from zlaunch.cli.views.drawing import Drawing, Line, Shape, Text, to_svg
from zlaunch.cli.views.picture import MIB, Bar, Panel, Picture, drawing_of, unit_of
from zlaunch.cli.views.series import SeriesView
from zlaunch.diagnosis.outcome import Outcome
from zlaunch.errors import Finding
from zlaunch.estimate.memory.model_states import ModelStates
from zlaunch.launch.monitoring.progress import Progress, phase_shown
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.tour import EXPLAINED, PHASES, Parity, PhaseMemory, PredictedMemory, Tour, ZeroMode
from zlaunch.runs.run import Run
from zlaunch.units import clock, count, plural

UNKNOWN: Final = "-"
SMALL: Final = 0.01
"""Parts below this share of the peak are added up."""
SMALLEST = 1e-9
"""Lower end of the axis of differences; none is drawn there."""

_COLOURS: Final = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#17becf", "#7f7f7f")
_STATES, _MASTER = "optimizer states", "master weights"
"""Parts of a rehearsal."""

_KINDS: Final = ("all-reduce", "reduce-scatter", "all-gather", "other")


class TourView(SeriesView):
    """Shows the jobs of a tour in one line that changes; says more of one that fails."""

    def __init__(self, total: int) -> None:
        """There will be `total` jobs."""
        super().__init__()
        self._total = total

    def busy_with(self, what: str) -> None:
        """Say what is done after the jobs."""
        self._line.show(what)

    def begin(self, number: int, mode: ZeroMode) -> None:
        """Start with a job; the first has number 0."""
        self.show_title(f"{number + 1} of {self._total}: {mode.label}")

    def warn(self, findings: Sequence[Finding]) -> None:
        """Show each finding once for all jobs."""
        new = [finding for finding in findings if finding.message not in self._shown]
        self._shown |= {finding.message for finding in new}
        super().warn(new)

    def progressed(self, progress: Progress, world_size: int) -> None:
        """Show the phase of the first rank."""
        last, first = progress.last, progress.first
        doing = phase_shown(first) if last.heartbeats else "starting the ranks"
        self._line.show(self._title, f"({doing} {clock(last.time - progress.phase_began)})")

    def ended(self, plan: LaunchPlan, outcome: Outcome, seconds: float, run: Run) -> None:
        """Explain the end of a job that did not finish."""
        if outcome.verdict is not None:
            super().ended(plan, outcome, seconds, run)


def lines_of(result: Tour | Parity) -> Iterator[str]:
    """Write what was trained, and the tables of a tour or of a comparison of losses."""
    trained, where = result.experiment, "GPUs"
    if result.accelerator == "cpu":
        where = "the CPU"
    model = f"{trained.layers} x (Linear({trained.width}) + ReLU)"
    rows = [
        ("model", f"{model}, {count(trained.parameters)} parameters"),
        ("training", f"{trained.precision}, Adam, batch {trained.micro_batch} on each rank"),
        ("ranks", f"{plural(trained.world_size, 'rank')} on {where}"),
    ]
    yield from console.table(rows, indent="")
    if isinstance(result, Parity):
        yield from ["", *_losses(result)]
        return
    for block in (_memory_table(result), _bridges(result), _traffic(result), _on_gpus(result)):
        if lines := list(block):
            yield from ["", *lines]


def _losses(parity: Parity) -> Iterator[str]:
    yield "loss of the first and last step, and the largest difference from the baseline"
    first, steps = parity.curves[0], parity.experiment.steps
    rows = [("", "step 1", f"step {steps}", "difference", "at step")]
    for curve in parity.curves:
        off = curve.differences(first)
        difference = ("0", "")
        if curve is first:
            difference = ("", "")
        elif most := max(off):
            difference = (f"{most:.1e}", str(off.index(most) + 1))
        rows.append((curve.label, f"{curve.losses[0]:.6f}", f"{curve.losses[-1]:.6f}", *difference))
    yield from console.figures(rows)
    if parity.most == 0:
        text = "the losses are the same in every bit"
    elif parity.agrees:
        text = f"the losses agree: rounding explains relative differences up to {EXPLAINED:g}"
    else:
        text = f"the losses do not agree: rounding explains only relative differences up to {EXPLAINED:g}"
    yield from console.paragraph(text)


def _memory_table(tour: Tour) -> Iterator[str]:
    yield "MiB in tensors of a rank, at the end of each phase of the first step"
    rows: list[tuple[str, ...]] = [("", "", *PHASES, "at most", "formula")]
    for stop in tour.stops:
        rows.append((stop.label, "measured", *_cells(stop.measured, stop.peak), _mib(stop.formula.total)))
        if stop.predicted is not None:
            rows.append(("", "predicted", *_cells(stop.predicted.phases, stop.predicted.peak), ""))
    labels = max(len(label) for label, *_ in rows)
    yield from console.figures([(f"{label:<{labels}}  {kind}", *cells) for label, kind, *cells in rows])
    notes = [
        ("measured", "the bytes in tensors, from the operator that creates one until its memory is freed"),
        ("at most", "the highest point, up to the end of the second step: it decides whether a job fits"),
        ("predicted", _agreement(tour)),
        ("formula", _formula(tour)),
    ]
    yield from console.table(notes)


def _cells(phases: Sequence[PhaseMemory], peak: int) -> list[str]:
    ends = {phase.name: _mib(phase.end) for phase in phases}
    return [*(ends.get(name, UNKNOWN) for name in PHASES), _mib(peak)]


def _mib(nbytes: float) -> str:
    return f"{nbytes / MIB:.0f}"


def _agreement(tour: Tour) -> str:
    if tour.why_not_predicted is not None:
        return f"not possible: {tour.why_not_predicted}"
    off = max(map(abs, chain.from_iterable(stop.differences() for stop in tour.stops)))
    return f"a rehearsal: DeepSpeed's engine on fake tensors; what was measured is up to {off:.1%} off"


def _formula(tour: Tour) -> str:
    first = tour.stops[0].formula
    parts = (first.parameters, first.gradients, first.optimizer)
    each = [f"{part / tour.experiment.parameters:.0f}" for part in parts]
    ranks = plural(tour.experiment.world_size, "rank")
    text = (
        f"the ZeRO paper's: {each[0]} bytes for a parameter, {each[1]} for its gradient, {each[2]} for Adam; "
        f"ZeRO-1 divides the last by N = {ranks}, ZeRO-2 the last two, ZeRO-3 all three; CPU offload moves "
        "what ZeRO-2 divides to the host"
    )
    if tour.accelerator == "cpu":
        text += ", which is the same memory on a CPU"
    return text


def _bridges(tour: Tour) -> Iterator[str]:
    if all(stop.predicted is None for stop in tour.stops):
        return
    yield 'MiB from the formula to "at most": what the formula leaves out, by the rehearsal'
    width, is_half = max(len(stop.label) for stop in tour.stops), tour.experiment.precision != "fp32"
    for stop in tour.stops:
        if (forecast := stop.predicted) is None:
            continue
        terms = " ".join(_term(name, size) for name, size in bridge(stop.formula, forecast, is_half))
        text = f"{_mib(stop.formula.total)} {terms} = {_mib(forecast.peak)}"
        lines = console.paragraph(text, " " * (width + 4))
        yield from [f"  {stop.label:<{width}}  {lines[0].strip()}", *lines[1:]]


def _term(name: str, size: float) -> str:
    sign = "+" if size > 0 else "-"
    return f"{sign} {_mib(abs(size))} {name}"


def bridge(formula: ModelStates, forecast: PredictedMemory, is_half: bool) -> list[tuple[str, float]]:
    """List the parts that differ from the formula, the largest first; they add up to the peak.

    In half precision, the formula counts the fp32 copies of parameters among the states of the optimizer.
    """
    filled = dict(forecast.parts)
    if is_half:
        filled[_STATES] = filled.get(_STATES, 0) + filled.pop(_MASTER, 0)
    counted = _formula_parts(formula)
    more = {name: filled.get(name, 0) - counted.get(name, 0.0) for name in {*filled, *counted}}
    least = max(SMALL * forecast.peak, MIB / 2)
    parts = {name: size for name, size in more.items() if abs(size) >= least}
    rest = forecast.peak - formula.total - sum(parts.values())
    if abs(rest) >= MIB / 2:
        parts["others"] = rest
    return sorted(parts.items(), key=lambda item: -item[1])


def _formula_parts(formula: ModelStates) -> dict[str, float]:
    return {"parameters": formula.parameters, "gradients": formula.gradients, _STATES: formula.optimizer}


def _traffic(tour: Tour) -> Iterator[str]:
    if tour.experiment.world_size == 1:
        return
    kinds = [kind for kind in _KINDS if any(_mb(stop.sent.get(kind, 0)) != "0" for stop in tour.stops)]
    yield "MB that a rank sends in a step, by DeepSpeed's comms logger, in a ring"
    rows = [("", *kinds, "all", "textbook")]
    for stop in tour.stops:
        sent = [_mb(stop.sent.get(kind, 0)) for kind in kinds]
        rows.append((stop.label, *sent, _mb(sum(stop.sent.values())), _mb(stop.textbook)))
    yield from console.figures(rows)
    size, n = tour.stops[0].formula.gradients, tour.experiment.world_size
    text = f"textbook: 2K(N-1)/N, and 3K(N-1)/N at stage 3, with K = {_mb(size)} MB of gradients and N = {n}"
    partitioned = [stop for stop in tour.stops if stop.stage in (1, 2)]
    if reduced := [stop.label for stop in partitioned if stop.sent.get("all-reduce", 0) > MIB]:
        text += (
            f"; in {_joined(reduced)} DeepSpeed sends more: it all-reduces the gradients, where a "
            "reduce-scatter is enough, and then gathers the parameters"
        )
    yield from console.paragraph(text)


def _joined(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:.0f}"


def _on_gpus(tour: Tour) -> Iterator[str]:
    phases = PHASES[1:]  # until the engine has it, the model is on the host
    rows = [
        (stop.label, *_cells(forecast.phases, forecast.peak)[1:], _mib(forecast.host))
        for stop in tour.stops
        if (forecast := stop.on_gpus) is not None
    ]
    if rows:
        yield f"MiB in tensors of a rank on {plural(tour.experiment.world_size, 'GPU')}, predicted"
        yield from console.figures([("", *phases, "at most", "on its host"), *rows])


def draw(result: Tour | Parity) -> bytes:
    """Draw the tables as SVG."""
    if isinstance(result, Parity):
        return to_svg(_loss_curves(result))
    return to_svg(drawing_of(_bars(result)))


def _bars(tour: Tour) -> Picture:
    formula, peaks, sent = [], [], []
    for stop in tour.stops:
        formula.append((_formula_parts(stop.formula), [stop.formula.total]))
        parts: Mapping[str, float] = {"tensors": stop.peak}
        if stop.predicted is not None:
            parts = stop.predicted.parts
        peaks.append((parts, [stop.peak]))
        sent.append((stop.sent, [sum(stop.sent.values()), stop.textbook]))
    panels = [
        _panel("The formula of the ZeRO paper", formula, "{}"),
        _panel("Tensors of a rank at most", peaks, "{} measured"),
    ]
    if tour.experiment.world_size > 1:
        panels.append(_panel("Sent by a rank in a step", sent, "{}, textbook {}", is_decimal=True))
    trained = tour.experiment
    return Picture(
        f"{trained.layers} x (Linear({trained.width}) + ReLU), Adam, {trained.precision}",
        [f"{plural(trained.world_size, 'rank')}. What fills the memory at its highest point is predicted."],
        [stop.label for stop in tour.stops],
        panels,
    )


def _panel(
    title: str,
    bars: Sequence[tuple[Mapping[str, float], Sequence[float]]],
    note: str,
    *,
    is_decimal: bool = False,
) -> Panel:
    """Draw bars of parts; a `note` has the sizes of its bar in the unit of the axis."""
    unit = unit_of(max(sum(parts.values()) for parts, _ in bars), is_decimal=is_decimal)
    drawn = []
    for parts, sizes in bars:
        whole = {name: int(size) for name, size in parts.items()}
        drawn.append(Bar(whole, note.format(*map(unit.text, sizes))))
    return Panel(title, drawn, is_decimal=is_decimal)


def _loss_curves(parity: Parity) -> Drawing:
    steps = Axis(1.0, float(max(2, parity.experiment.steps)), 90.0, 790.0)
    losses = [loss for curve in parity.curves for loss in curve.losses if math.isfinite(loss)]
    room = 0.05 * (max(losses) - min(losses)) or 1.0
    above = Axis(min(losses) - room, max(losses) + room, 330.0, 60.0)
    below = Axis(SMALLEST, 10 * max(EXPLAINED, parity.most), 570.0, 400.0, is_log=True)
    title = "The same model and data at every ZeRO stage"
    shapes: list[Shape] = [Text(14, 24, title, size=16, is_bold=True)]
    for number, curve in enumerate(parity.curves):
        colour = _COLOURS[number % len(_COLOURS)]
        thick = 1.5 + 1.6 * (len(parity.curves) - 1 - number)  # all are seen, where they are the same
        points = [(at, loss) for at, loss in enumerate(curve.losses, start=1) if math.isfinite(loss)]
        shapes.append(Line([(steps(at), above(loss)) for at, loss in points], colour, thick))
        off = [max(SMALLEST, difference) for difference in curve.differences(parity.curves[0])]
        if max(off) > SMALLEST:
            shapes.append(Line([(steps(at), below(size)) for at, size in enumerate(off, 1)], colour, 1.5))
        y = 70 + 19 * number
        shapes += [Line([(805, y - 4), (829, y - 4)], colour, 3), Text(837, y, curve.label)]
    explained = below(EXPLAINED)
    shapes += [
        Line([(steps.start, explained), (steps.end, explained)], "#dc143c", 1.5, "6 4"),
        Text(805, explained + 4, "explained by rounding"),
        *up(above, steps.start, "loss"),
        *up(below, steps.start, "relative difference from the first"),
        *across(steps, above.start, ""),
        *across(steps, below.start, "step"),
    ]
    return Drawing(1010, 620, title, shapes)
