"""Predicted and measured memory of each cell, as Markdown."""

from collections.abc import Iterator, Mapping
from statistics import mean

from bench.gpu_results import Results, Row, table_head, table_row
from zlaunch.estimate.forecast import Forecast, Pool

PHASES = ("load", "initialize", "forward", "backward", "step", "second step", "save", "resume")
GOALS = {"allocated": (0.01, 0.03), "reserved": (0.04, 0.10), "process": (0.03, 0.03)}
"""Quantity → goals for the mean error and for the worst error."""
LEAST_BYTES = 1 << 20
"""Less has no error: without offload, a job pins a few bytes."""
LOWEST = -0.05
"""Goal for the lowest error: no prediction may be further below the measurement."""

Figures = Mapping[str, Mapping[str, int]]
"""Phase → quantity → bytes."""


def table(results: Results, quantities: tuple[str, ...]) -> str:
    """Format all rows and a summary of the errors."""
    rows = results.rows.items()
    return results.page(
        "GPU memory, predicted and measured",
        "GiB, predicted / measured (error); the phase with the highest peak.",
        [
            *table_head("cell", "method", "highest", *quantities),
            *(_line(name, row, quantities) for name, row in rows),
        ],
        ["Errors of allocated bytes by phase:"],
        [*table_head("cell", *PHASES), *(_by_phase(name, row) for name, row in rows if is_compared(row))],
        (line + "  " for line in _summary(results, quantities)),
    )


def is_compared(row: Row) -> bool:
    """Whether everything that was measured was also rehearsed; the closed form never counts."""
    predicted = row.get("predicted", {})
    return (
        "method" in predicted
        and not (predicted["failure"] or predicted["late_error"])
        and "phases" in row.get("measured", {})
    )


def _line(name: str, row: Row, quantities: tuple[str, ...]) -> str:
    predicted, measured = row.get("predicted", {}), row.get("measured", {})
    cells = [name, _method(predicted), " / ".join(map(_highest_phase, (predicted, measured)))]
    if "phases" in measured and "phases" in predicted:
        cells += [_pair(peak(predicted["phases"], one), peak(measured["phases"], one)) for one in quantities]
    else:
        cells += [f"not measured: {measured['error']}" if "error" in measured else "not yet"]
        cells += [""] * (len(quantities) - 1)
    return table_row(cells)


def _method(predicted: Row) -> str:
    if "method" not in predicted:
        return str(predicted.get("error", "not yet"))
    if predicted["late_error"]:
        return f"fails: {predicted['late_error']}"
    return str(predicted["method"]) + (f": {predicted['failure']}" if predicted["failure"] else "")


def _highest_phase(side: Row) -> str:
    phases: Figures = side.get("phases", {})
    return max(phases, key=lambda phase: phases[phase]["allocated"], default="-")


def peak(phases: Figures, quantity: str) -> int:
    """Return the peak of a quantity over all phases; bytes."""
    return max((figures.get(quantity, 0) for figures in phases.values()), default=0)


def _pair(predicted: int, measured: int) -> str:
    if not predicted and not measured:
        return "0"
    error = f" ({predicted / measured - 1:+.1%})" if measured else ""
    return f"{predicted / 2**30:.3g} / {measured / 2**30:.3g}{error}"


def _by_phase(name: str, row: Row) -> str:
    predicted, measured = row["predicted"]["phases"], row["measured"]["phases"]
    errors = (_error(predicted.get(phase, {}), measured.get(phase, {}), "allocated") for phase in PHASES)
    return table_row([name, *("" if error is None else f"{error:+.1%}" for error in errors)])


def _error(predicted: Mapping[str, int], measured: Mapping[str, int], quantity: str) -> float | None:
    if not measured.get(quantity):
        return None
    return predicted.get(quantity, 0) / measured[quantity] - 1


def _summary(results: Results, quantities: tuple[str, ...]) -> Iterator[str]:
    rows = [row for row in results.rows.values() if is_compared(row)]
    failed = [row for row in results.rows.values() if row.get("predicted", {}).get("failure")]
    yield f"{len(rows)} of {len(results.rows)} cells compared; {len(failed)} not rehearsed, and not counted"
    for quantity in quantities:
        if errors := _errors(results, quantity):
            yield f"{quantity}: {_statistics(errors)}{_goal(quantity, errors)}"
    contexts = [context for row in rows if (context := _context(row["measured"]["phases"])) is not None]
    if contexts:
        low, high = (f"{one / 2**30:.2f}" for one in (min(contexts), max(contexts)))
        yield f"in addition to torch's reserved memory, a process takes {low} to {high} GiB"


def _errors(results: Results, quantity: str) -> list[float]:
    rows = [row for row in results.rows.values() if is_compared(row)]
    sides = [[peak(row[side]["phases"], quantity) for side in ("predicted", "measured")] for row in rows]
    return [predicted / measured - 1 for predicted, measured in sides if measured >= LEAST_BYTES]


def _statistics(errors: list[float]) -> str:
    sizes = [abs(error) for error in errors]
    return f"mean error {mean(sizes):.2%}, worst {max(sizes):.2%}, lowest {min(errors):+.2%}"


def _goal(quantity: str, errors: list[float]) -> str:
    if quantity not in GOALS:
        return ""
    mean_goal, worst_goal = GOALS[quantity]
    met = "met" if _meets_goal(quantity, errors) else "missed"
    return f"; the goal of {mean_goal:.0%}, {worst_goal:.0%} and {LOWEST:+.0%} is {met}"


def _meets_goal(quantity: str, errors: list[float]) -> bool:
    sizes = [abs(error) for error in errors]
    mean_goal, worst_goal = GOALS.get(quantity, (1, 1))
    return mean(sizes) <= mean_goal and max(sizes) <= worst_goal and min(errors) >= LOWEST


def is_met(results: Results, quantities: tuple[str, ...]) -> bool:
    """Whether all cells were compared and all goals are met."""
    errors = {quantity: _errors(results, quantity) for quantity in quantities}
    compared = all(map(is_compared, results.rows.values()))
    return compared and all(_meets_goal(name, found) for name, found in errors.items() if found)


def _context(phases: Figures) -> int | None:
    """Return the memory that the driver counts and torch does not."""
    process = peak(phases, "process")
    return process - peak(phases, "reserved") if process else None


def predicted_row(forecast: Forecast, pools: Mapping[str, Pool], context: int) -> Row:
    """Convert a forecast to the measured quantities; `pools` maps these to pools."""
    phases: dict[str, dict[str, int]] = {}
    resumed, failure = forecast.resumed(), forecast.why_not_rehearsed
    if forecast.resume is not None and forecast.resume.why_not_rehearsed:
        failure = f"resuming was not rehearsed: {forecast.resume.why_not_rehearsed}"
    for phase in resumed.phases:
        figures = {quantity: phase.peak.get(pool, 0) for quantity, pool in pools.items()}
        if "reserved" in figures:
            figures["process"] = figures["reserved"] + context
        phases[phase.name] = figures
    return {
        "method": forecast.method,
        "failure": failure,
        "late_error": resumed.late_error,
        "optimizer": forecast.optimizer,
        "phases": phases,
    }
