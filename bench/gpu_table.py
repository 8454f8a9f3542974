"""What was foretold and measured of each cell, as Markdown."""

from collections.abc import Iterator, Mapping
from statistics import mean
from typing import Any

from bench.gpu_results import Answers, Results

PHASES = ("load", "initialize", "forward", "backward", "step", "second step", "save", "resume")
GOALS = {"allocated": (0.01, 0.03), "reserved": (0.04, 0.10), "process": (0.03, 0.03)}
"""Quantity → how far forecasts may be off in the mean, and at worst."""
LOWEST = -0.05
"""How far below what is measured any forecast may be."""

Figures = Mapping[str, Mapping[str, int]]


def table(results: Results, quantities: tuple[str, ...]) -> str:
    """Write every row, and how far the rehearsals are off in all."""
    versions = ", ".join(
        f"{name} {version}" for name, version in results.versions.items() if name != "device"
    )
    lines = [
        f"# GPU memory, foretold and measured: {results.versions['device']}",
        "",
        f"{versions}. GiB, foretold / measured (error); the fullest phase.",
        "",
        *_head("cell", "method", "fullest", *quantities),
        *(_line(name, row, quantities) for name, row in results.rows.items()),
        "",
        "Errors of allocated bytes in each phase:",
        "",
        *_head("cell", *PHASES),
        *(_by_phase(name, row) for name, row in results.rows.items() if is_compared(row)),
        "",
        *(line + "  " for line in _summary(results, quantities)),
    ]
    return "\n".join(lines) + "\n"


def is_compared(row: Answers) -> bool:
    """Say whether all that was measured was rehearsed too; a closed form never counts."""
    foretold = row.get("foretold", {})
    return (
        "method" in foretold
        and not (foretold["broken"] or foretold["refusal"])
        and "phases" in row.get("measured", {})
    )


def _head(*names: str) -> tuple[str, str]:
    return "| " + " | ".join(names) + " |", "|---" * len(names) + "|"


def _line(name: str, row: Answers, quantities: tuple[str, ...]) -> str:
    foretold, measured = row.get("foretold", {}), row.get("measured", {})
    cells = [name, _method(foretold), " / ".join(map(_fullest, (foretold, measured)))]
    if "phases" in measured and "phases" in foretold:
        cells += [_pair(most(foretold["phases"], one), most(measured["phases"], one)) for one in quantities]
    else:
        cells += [f"not measured: {measured['error']}" if "error" in measured else "not yet"]
        cells += [""] * (len(quantities) - 1)
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def _method(foretold: Answers) -> str:
    if "method" not in foretold:
        return str(foretold.get("error", "not yet"))
    if foretold["refusal"]:
        return f"refused: {foretold['refusal']}"
    return str(foretold["method"]) + (f": {foretold['broken']}" if foretold["broken"] else "")


def _fullest(side: Answers) -> str:
    phases: Figures = side.get("phases", {})
    return max(phases, key=lambda phase: phases[phase]["allocated"], default="-")


def most(phases: Figures, quantity: str) -> int:
    """Say the most of a quantity in any phase; bytes."""
    return max((figures.get(quantity, 0) for figures in phases.values()), default=0)


def _pair(foretold: int, measured: int) -> str:
    if not foretold and not measured:
        return "0"
    error = f" ({foretold / measured - 1:+.1%})" if measured else ""
    return f"{foretold / 2**30:.3g} / {measured / 2**30:.3g}{error}"


def _by_phase(name: str, row: Answers) -> str:
    foretold, measured = row["foretold"]["phases"], row["measured"]["phases"]
    errors = (_error(foretold.get(phase, {}), measured.get(phase, {}), "allocated") for phase in PHASES)
    return f"| {name} | " + " | ".join("" if error is None else f"{error:+.1%}" for error in errors) + " |"


def _error(foretold: Mapping[str, int], measured: Mapping[str, int], quantity: str) -> float | None:
    if not measured.get(quantity):
        return None
    return foretold.get(quantity, 0) / measured[quantity] - 1


def _summary(results: Results, quantities: tuple[str, ...]) -> Iterator[str]:
    rows = [row for row in results.rows.values() if is_compared(row)]
    others = [row for row in results.rows.values() if row.get("foretold", {}).get("broken")]
    yield f"{len(rows)} of {len(results.rows)} cells compared; {len(others)} not rehearsed, and not counted"
    for quantity in quantities:
        if errors := _errors(results, quantity):
            yield f"{quantity}: {_of_all(errors)}{_goal(quantity, errors)}"
    contexts = [context for row in rows if (context := _context(row["measured"]["phases"])) is not None]
    if contexts:
        low, high = (f"{one / 2**30:.2f}" for one in (min(contexts), max(contexts)))
        yield f"beside what torch reserves, a process takes {low} to {high} GiB"


def _errors(results: Results, quantity: str) -> list[float]:
    rows = [row for row in results.rows.values() if is_compared(row)]
    sides = [[most(row[side]["phases"], quantity) for side in ("foretold", "measured")] for row in rows]
    return [foretold / measured - 1 for foretold, measured in sides if measured]


def _of_all(errors: list[float]) -> str:
    sizes = [abs(error) for error in errors]
    return f"mean error {mean(sizes):.2%}, worst {max(sizes):.2%}, lowest {min(errors):+.2%}"


def _goal(quantity: str, errors: list[float]) -> str:
    if quantity not in GOALS:
        return ""
    in_mean, worst = GOALS[quantity]
    met = "met" if _is_good(quantity, errors) else "missed"
    return f"; the goal of {in_mean:.0%}, {worst:.0%} and {LOWEST:+.0%} is {met}"


def _is_good(quantity: str, errors: list[float]) -> bool:
    sizes = [abs(error) for error in errors]
    in_mean, worst = GOALS.get(quantity, (1, 1))
    return mean(sizes) <= in_mean and max(sizes) <= worst and min(errors) >= LOWEST


def is_met(results: Results, quantities: tuple[str, ...]) -> bool:
    """Say whether every cell could be compared, and the forecasts are as good as they are to be."""
    errors = {quantity: _errors(results, quantity) for quantity in quantities}
    compared = all(map(is_compared, results.rows.values()))
    return compared and all(_is_good(name, found) for name, found in errors.items() if found)


def _context(phases: Figures) -> int | None:
    """Say what the driver counts and torch does not."""
    process = most(phases, "process")
    return process - most(phases, "reserved") if process else None


def foretold(forecast: Any, pools: Mapping[str, str], context: int) -> Answers:
    """Write a forecast down in the quantities that are measured."""
    phases: dict[str, dict[str, int]] = {}
    whole, broken = forecast.resumed(), forecast.why_not_rehearsed
    if forecast.resume is not None and forecast.resume.why_not_rehearsed:
        broken = f"resuming was not rehearsed: {forecast.resume.why_not_rehearsed}"
    for phase in whole.phases:
        figures = {quantity: phase.peak.get(pool, 0) for quantity, pool in pools.items()}
        if "reserved" in figures:
            figures["process"] = figures["reserved"] + context
        phases[phase.name] = figures
    return {
        "method": forecast.method,
        "broken": broken,
        "refusal": whole.late_error,
        "optimizer": forecast.optimizer,
        "phases": phases,
    }
