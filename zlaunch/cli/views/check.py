"""A check as text: the answer, what differs, and what was not checked."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol, get_args

from zlaunch import console
from zlaunch.estimate.query import EstimateQuery
from zlaunch.parity.check import CheckedTrial
from zlaunch.parity.small_model import deepest
from zlaunch.parity.verdict import UNTOLD, Comparison, Judged, ParityAnswer, ParityVerdict, Quantity
from zlaunch.units import count, plural

if TYPE_CHECKING:  # what checks a script is rarely needed
    from zlaunch.launch.checked_script import CheckedScript

MOST_ROWS: Final = 16
"""Parameters in the table; `--json` has all."""

_QUANTITIES: Final = get_args(Quantity)


Rows = Sequence[tuple[str, str]]


class CheckedTraining(Protocol):
    """What was compared, and the verdict."""

    @property
    def comparison(self) -> Comparison: ...  # noqa: D102
    @property
    def verdict(self) -> ParityVerdict: ...  # noqa: D102
    @property
    def steps(self) -> int: ...  # noqa: D102
    @property
    def unchecked(self) -> tuple[str, ...]: ...  # noqa: D102


def lines_of(checked: CheckedTraining, trained: Rows) -> Iterator[str]:
    """Write the answer in the first line, then what was trained, and the evidence."""
    yield from console.paragraph(answer_of(checked))
    yield from console.table(trained)
    if checked.verdict.differing:
        yield from ["", *_differing(checked)]
    yield from ["", *_largest(checked)]
    yield from unchecked_lines(_unchecked(checked))


def unchecked_lines(notes: Iterable[str]) -> Iterator[str]:
    """List what was not checked."""
    for number, note in enumerate(notes):
        if not number:
            yield from ["", "not checked"]
        bullet, *rest = console.paragraph(note, "    ")
        yield from [f"  - {bullet.strip()}", *rest]


def answer_of(checked: CheckedTraining) -> str:
    """Say in one sentence what was found."""
    verdict, steps = checked.verdict, plural(checked.steps, "step")
    if verdict.answer is ParityAnswer.SAME:
        verb = "trains" if checked.steps == 1 else "train"
        return f"the same: {steps} {verb} like plain torch, up to rounding"
    if verdict.answer is ParityAnswer.CANNOT_TELL:
        return f"cannot tell here: rounding alone may change most numbers by more than {UNTOLD:.0%}"
    quantities = ", ".join(differing_quantities(verdict))
    return f"differs from plain torch by more than rounding: {quantities}"


def differing_quantities(verdict: ParityVerdict) -> Iterator[str]:
    """Name the quantities that differ, and of how many parameters."""
    for quantity in _QUANTITIES:
        names = [item.distance.parameter for item in verdict.differing if item.distance.quantity == quantity]
        if names == [""]:
            yield quantity
        elif names:
            yield f"{quantity} of {plural(len(names), 'parameter')}"


def rows_of_script(checked: "CheckedScript") -> Rows:
    """Say what a script trained."""
    engine, comparison = checked.measured.engine, checked.comparison
    assert engine is not None
    micro_batches = "1 micro-batch"
    if engine.accumulated > 1:
        micro_batches = f"{engine.accumulated} micro-batches"
    return [
        ("script", f"{checked.name}: {engine.model}, {count(comparison.parameters)} parameters"),
        ("engine", f"{comparison.optimizer}, stage {engine.stage}, {engine.precision}, 2 ranks"),
        ("each step", f"{micro_batches} on each rank"),
    ]


def rows_of_model(checked: CheckedTrial, query: EstimateQuery) -> Rows:
    """Say what was trained of a model."""
    trial, comparison = checked.trial, checked.comparison
    config = trial.workload.ds_config
    layers = plural(comparison.layers, "layer")
    if (depth := deepest(query.model.value)) > comparison.layers:
        layers = f"{comparison.layers} of {depth} layers"
    stage = config.get("zero_optimization", {}).get("stage", 0)
    accumulated = config["gradient_accumulation_steps"]
    samples = plural(config["train_micro_batch_size_per_gpu"], "sample")
    return [
        ("model", f"{query.model.name}, {layers}, {count(comparison.parameters)} parameters"),
        ("engine", f"{comparison.optimizer}, stage {stage}, {trial.precision}, 2 ranks"),
        ("each step", f"{plural(accumulated, 'micro-batch')} of {samples} on each rank"),
    ]


def _differing(checked: CheckedTraining) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("differs", "", "step", "by", "allowed", "length")]
    differing = sorted(checked.verdict.differing, key=lambda item: _QUANTITIES.index(item.distance.quantity))
    rows += map(_row, differing[:MOST_ROWS])
    yield from _in_width(rows)
    if (left := len(differing) - MOST_ROWS) > 0:
        yield f"and {left} more; `--json` has all"
    yield from console.paragraph("length: that of the engine's, relative to plain torch's")


def _in_width(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Align the rows; where names are long, they are in lines of their own."""
    lines = console.figures([(f"{name}  {quantity}", *cells) for name, quantity, *cells in _aligned(rows)])
    if max(map(len, lines)) <= console.width():
        yield from lines
        return
    lines = console.figures(
        [(f"  {quantity}" if quantity else name, *cells) for name, quantity, *cells in rows]
    )
    for (name, quantity, *_), line in zip(rows, lines, strict=True):
        if quantity:
            yield name
        yield line


def _aligned(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    width = max(len(row[0]) for row in rows)
    return [(f"{row[0]:<{width}}", *row[1:]) for row in rows]


def _row(item: Judged) -> tuple[str, ...]:
    distance = item.distance
    name, quantity = distance.parameter, str(distance.quantity)
    if not name:
        name, quantity = quantity, ""
    return (
        name,
        quantity,
        str(distance.step),
        f"{distance.distance:.1e}",
        f"{item.allowed:.1e}",
        f"{distance.ratio:.3g} x",
    )


def _largest(checked: CheckedTraining) -> Iterator[str]:
    rows = [("largest difference", "by", "allowed", "step")]
    for quantity in _QUANTITIES:
        item = checked.verdict.largest.get(quantity)
        if item is not None:
            cells = (f"{item.distance.distance:.1e}", f"{item.allowed:.1e}", str(item.distance.step))
            rows.append((quantity, *cells))
    yield from console.figures(rows)
    yield from console.paragraph(
        "by: length of the difference, relative to plain torch's, at the step where it was largest; "
        "allowed: what rounding explains"
    )


def _unchecked(checked: CheckedTraining) -> Iterator[str]:
    yield from checked.unchecked
    if "gradient norm" not in checked.verdict.largest:
        yield "the gradient norm: this engine computes none, or not that of the gradients"
    if checked.comparison.unreached:
        first, number = checked.comparison.unreached[0], len(checked.comparison.unreached)
        yield f"{plural(number, 'parameter')} that the data does not reach, such as {first}"
    yield from checked.comparison.unsaved
    if untold := checked.verdict.untold:
        names = ", ".join(untold[:2])
        if len(untold) > 2:
            names += f" and {len(untold) - 2} more"
        yield f"what rounding may change by more than {UNTOLD:.0%}: the {names}"
