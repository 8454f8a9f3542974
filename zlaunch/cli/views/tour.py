"""Format a tour: tables for a terminal, and a picture."""

from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import chain
from typing import Any, Final

from zlaunch import console
from zlaunch.cli.views.launch import LaunchView
from zlaunch.diagnosis.outcome import Outcome
from zlaunch.errors import Finding
from zlaunch.estimate.memory.model_states import ModelStates
from zlaunch.launch.monitoring.progress import Progress, phase_shown
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.tour import PHASES, Experiment, PhaseMemory, PredictedMemory, Tour, differences
from zlaunch.rundir.record import HeartbeatRecord
from zlaunch.units import clock, count, plural

MIB: Final = 1 << 20
UNKNOWN: Final = "-"
SMALL: Final = 0.01
"""Parts below this share of the peak are added up."""

_STATES, _MASTER = "optimizer states", "master weights"
"""Parts of a rehearsal."""

_KINDS: Final = ("all-reduce", "reduce-scatter", "all-gather", "other")


class TourView(LaunchView):
    """Shows the jobs of a tour in one line that changes; says more of one that fails."""

    def __init__(self, total: int) -> None:
        """There will be `total` jobs."""
        super().__init__()
        self._total = total
        self._title = ""
        self._said: set[str] = set()

    def busy_with(self, what: str) -> None:
        """Say what is done after the jobs."""
        self._line.show(what)

    def begin(self, number: int, label: str) -> None:
        """Start with a job; the first has number 0."""
        self._title = f"{number + 1} of {self._total}: {label}"
        self._line.show(self._title)

    def note(self, text: str, label: str | None = None) -> None:
        """Say each sentence once for all jobs."""
        if text not in self._said:
            self._said.add(text)
            super().note(text)

    def warn(self, findings: Sequence[Finding]) -> None:
        """Show each finding once for all jobs."""
        new = [finding for finding in findings if finding.message not in self._said]
        self._said |= {finding.message for finding in new}
        super().warn(new)

    def starting(self, plan: LaunchPlan, shows_output: bool) -> None:
        """Remember the run directory."""
        self.run = plan.layout.root

    def busy(self, what: str, elapsed: str) -> None:
        """Show what is done before the ranks start."""
        self._line.show(self._title, f"({what} {elapsed})")

    def progressed(self, progress: Progress, world_size: int, rss_bytes: int | None) -> None:
        """Show the phase of the first rank."""
        last, first = progress.last, progress.first
        doing = phase_shown(first) if last.heartbeats else "starting the ranks"
        self._line.show(self._title, f"({doing} {clock(last.time - progress.phase_began)})")

    def differed(self, differences: Sequence[str]) -> None:
        """Say nothing: zlaunch wrote both the program and its ds_config."""

    def ended(self, plan: LaunchPlan, outcome: Outcome, seconds: float, heartbeat: HeartbeatRecord) -> None:
        """Explain the end of a job that did not finish."""
        if outcome.verdict is not None:
            super().ended(plan, outcome, seconds, heartbeat)

    def done(self) -> None:
        """Remove the line."""
        self._line.clear()


def tour_lines(tour: Tour) -> Iterator[str]:
    """Write everything: memory, where it goes, traffic, and the same on GPUs."""
    yield from head_lines(tour.experiment, tour.accelerator)
    for block in (_memory(tour), _bridges(tour), _traffic(tour), _on_gpus(tour)):
        if lines := list(block):
            yield from ["", *lines]


def head_lines(one: Experiment, accelerator: str) -> Iterator[str]:
    """Write what was trained."""
    where = "the CPU" if accelerator == "cpu" else "GPUs"
    rows = [
        ("model", f"{one.layers} x (Linear({one.width}) + ReLU), {count(one.parameters)} parameters"),
        ("training", f"{one.precision}, Adam, batch {one.micro_batch} on each rank"),
        ("ranks", f"{plural(one.world_size, 'rank')} on {where}"),
    ]
    yield from console.table(rows, indent="")


def _memory(tour: Tour) -> Iterator[str]:
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
    off = max(map(abs, chain.from_iterable(map(differences, tour.stops))))
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
    """Write what leads from the formula to the peak, part by part."""
    if all(stop.predicted is None for stop in tour.stops):
        return
    yield 'MiB from the formula to "at most": what the formula leaves out, by the rehearsal'
    width, is_half = max(len(stop.label) for stop in tour.stops), tour.experiment.precision != "fp32"
    for stop in tour.stops:
        if (memory := stop.predicted) is None:
            continue
        terms = " ".join(_term(name, size) for name, size in bridge(stop.formula, memory, is_half))
        text = f"{_mib(stop.formula.total)} {terms} = {_mib(memory.peak)}"
        lines = console.paragraph(text, " " * (width + 4))
        yield from [f"  {stop.label:<{width}}  {lines[0].strip()}", *lines[1:]]


def _term(name: str, size: float) -> str:
    sign = "+" if size > 0 else "-"
    return f"{sign} {_mib(abs(size))} {name}"


def bridge(formula: ModelStates, memory: PredictedMemory, is_half: bool) -> list[tuple[str, float]]:
    """List the parts that differ from the formula, the largest first; they add up to the peak.

    In half precision, the formula counts the fp32 copies of parameters among the states of the optimizer.
    """
    found = dict(memory.parts)
    if is_half:
        found[_STATES] = found.get(_STATES, 0) + found.pop(_MASTER, 0)
    known = {"parameters": formula.parameters, "gradients": formula.gradients, _STATES: formula.optimizer}
    more = {name: found.get(name, 0) - known.get(name, 0.0) for name in {*found, *known}}
    least = max(SMALL * memory.peak, MIB / 2)
    parts = {name: size for name, size in more.items() if abs(size) >= least}
    rest = memory.peak - formula.total - sum(parts.values())
    if abs(rest) >= MIB / 2:
        parts["others"] = rest
    return sorted(parts.items(), key=lambda item: -item[1])


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
            f"; in {_listed(reduced)} DeepSpeed sends more: it all-reduces the gradients, where a "
            "reduce-scatter is enough, and then gathers the parameters"
        )
    yield from console.paragraph(text)


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:.0f}"


def _on_gpus(tour: Tour) -> Iterator[str]:
    phases = PHASES[1:]  # until the engine has it, the model is on the host
    rows = [
        (stop.label, *_cells(memory.phases, memory.peak)[1:], _mib(memory.host))
        for stop in tour.stops
        if (memory := stop.on_gpus) is not None
    ]
    if rows:
        yield f"MiB in tensors of a rank on {plural(tour.experiment.world_size, 'GPU')}, predicted"
        yield from console.figures([("", *phases, "at most", "on its host"), *rows])


def draw(tour: Tour) -> bytes:
    """Draw memory and traffic as PNG: measured, predicted, and by formula."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 8.0), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(3, 2))
    _draw_memory(above, tour)
    _draw_traffic(below, tour)
    one = tour.experiment
    model = f"{one.layers} x (Linear({one.width}) + ReLU)"
    figure.suptitle(f"{model}, Adam, {one.precision}, {plural(one.world_size, 'rank')}")
    written = BytesIO()
    FigureCanvasAgg(figure).print_png(written)
    return written.getvalue()


def _draw_memory(axes: Any, tour: Tour) -> None:
    """A group of bars for each job: a bar for each phase, with the prediction and the formula as lines."""
    columns = (*PHASES, "at most")
    width = 0.8 / len(columns)
    for number, name in enumerate(columns):
        places = [place - 0.4 + (number + 0.5) * width for place in range(len(tour.stops))]
        sizes = [_sizes(stop.measured, stop.peak)[name] for stop in tour.stops]
        axes.bar(places, sizes, 0.9 * width, label=name, color=_COLOURS[number])
        for place, stop in zip(places, tour.stops, strict=True):
            if stop.predicted is not None:
                size = _sizes(stop.predicted.phases, stop.predicted.peak)[name]
                axes.hlines(size, place - width / 2, place + width / 2, color="black", linewidth=1.5)
    for place, stop in enumerate(tour.stops):
        axes.hlines(stop.formula.total / MIB, place - 0.42, place + 0.42, color="crimson", linestyle="--")
    axes.hlines([], 0, 0, color="black", linewidth=1.5, label="predicted")
    axes.hlines([], 0, 0, color="crimson", linestyle="--", label="formula")
    axes.set_xticks(range(len(tour.stops)), [stop.label for stop in tour.stops])
    axes.set(
        ylabel="MiB in tensors of a rank",
        title="memory at the end of the phases of the first step, and at most",
    )
    axes.legend(ncols=4, loc="upper center")
    axes.set_ylim(0, 1.3 * max(stop.peak for stop in tour.stops) / MIB)


def _sizes(phases: Sequence[PhaseMemory], peak: int) -> dict[str, float]:
    return {**{phase.name: phase.end / MIB for phase in phases}, "at most": peak / MIB}


def _draw_traffic(axes: Any, tour: Tour) -> None:
    """A stacked bar for each job, with the textbook's amount as a line."""
    bottom = [0.0] * len(tour.stops)
    for kind, colour in zip(_KINDS, ("#2171b5", "#74c476", "#fd8d3c", "#969696"), strict=True):
        sizes = [stop.sent.get(kind, 0.0) / 1e6 for stop in tour.stops]
        if max(sizes) >= 0.5:
            axes.bar(range(len(sizes)), sizes, 0.5, bottom=bottom, label=kind, color=colour)
            bottom = [low + size for low, size in zip(bottom, sizes, strict=True)]
    for place, stop in enumerate(tour.stops):
        axes.hlines(stop.textbook / 1e6, place - 0.42, place + 0.42, color="crimson", linestyle="--")
    axes.hlines([], 0, 0, color="crimson", linestyle="--", label="textbook")
    axes.set_xticks(range(len(tour.stops)), [stop.label for stop in tour.stops])
    axes.set(ylabel="MB that a rank sends", title="traffic of a step")
    axes.set_ylim(0, 1.5 * max(1.0, *bottom))
    axes.legend(ncols=5, loc="upper center")


_COLOURS: Final = ("#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08306b")
