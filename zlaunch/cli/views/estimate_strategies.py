"""Compare all strategies for a job in a table, and name the fastest that fits."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from zlaunch import console
from zlaunch.cli.views.estimate_text import FITS, batch_lines, job_rows, origin, trained, unchecked_host
from zlaunch.cli.views.settings_text import precision_words
from zlaunch.estimate.changes import Options
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.forecast import ACTIVATIONS
from zlaunch.estimate.query import Estimate, Rejected
from zlaunch.estimate.strategies import STRATEGIES, Strategy, StrategyTable
from zlaunch.units import brief, in_gib, memory

HEADERS = (
    ("GiB", "GPU:", "", "", "host:", "", "", "", ""),
    ("stage offload", "states", "used", "process", "all", "pinned", "NVMe", "step", "fits"),
)
WIDEST = 78
"""Columns for a row beside its mark."""


def table_lines(table: StrategyTable) -> Iterator[str]:
    """Write what job it is, a row for each strategy, then which one to take and why."""
    _, first = table.estimates[0]
    yield from console.table([*job_rows(first), *_common_rows(first, table)], indent="")
    yield ""
    rows = [_strategy_row(strategy, result) for strategy, result in table.rows]
    lines = console.figures([*HEADERS, *rows])
    if max(map(len, lines)) > WIDEST:
        lines = console.figures([*HEADERS, *rows], gap=1)
    chosen = None if table.chosen is None else table.chosen[0]
    yield from (f"  {line}" for line in lines[: len(HEADERS)])
    for (strategy, _), line in zip(table.rows, lines[len(HEADERS) :], strict=True):
        yield f"> {line}" if strategy == chosen else f"  {line}"
    yield ""
    yield from _hidden_savings(table)
    yield from _conclusion(table)


def known_rows(known: Mapping[int, Estimate | Rejected]) -> list[str]:
    """Write a row for each strategy whose estimate is known, by its number."""
    if not known:
        return []
    rows = [_strategy_row(STRATEGIES[number], known[number]) for number in sorted(known)]
    return [f"  {line}" for line in console.figures([*HEADERS, *rows])]


def _common_rows(first: Estimate, table: StrategyTable) -> Iterator[tuple[str, str]]:
    precision = precision_words(first.resolved.precision or "fp32", first.resolved.values)
    yield "job", ", ".join([*trained(first.query), precision])
    yield from batch_lines(first)
    most, *others = _methods(table)
    yield "method", most[0]
    for words, strategies in others:
        yield "", f"but {', '.join(strategies)}: {words}"


def _methods(table: StrategyTable) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[tuple[str, str | None]]] = {}
    for strategy, estimate in table.estimates:
        why = estimate.forecast.why_not_rehearsed
        groups.setdefault(origin(estimate.forecast), []).append((f"`{strategy.options}`", why))
    methods = [
        (f"{words}{_not_rehearsed(rows)}", [name for name, _ in rows]) for words, rows in groups.items()
    ]
    return sorted(methods, key=lambda method: -len(method[1]))


def _not_rehearsed(rows: Sequence[tuple[str, str | None]]) -> str:
    reasons = {why: name for name, why in reversed(rows) if why is not None}
    if not reasons:
        return ""
    why, name = list(reasons.items())[-1]
    if len(reasons) == 1:
        return f"; no rehearsal: {why}"
    return f"; no rehearsal of {name}: {why} (`--json` has the reasons of the others)"


def _strategy_row(strategy: Strategy, result: Estimate | Rejected) -> tuple[str, ...]:
    name = str(strategy.stage)
    if strategy.label != "-":
        name += f" {strategy.label}"
    if isinstance(result, Rejected):
        return (name, *("-",) * 6, "-", "no")
    need = result.need
    states = "-" if result.forecast.states is None else in_gib(result.forecast.states)
    amounts = (need.allocated, need.process[1], need.host, need.pinned, need.nvme)
    seconds = "-" if result.seconds is None else brief(result.seconds)
    return (name, states, *map(in_gib, amounts), seconds, FITS[result.fit])


def _hidden_savings(table: StrategyTable) -> Iterator[str]:
    """Explain a table in which stages seem to save nothing: ZeRO partitions only a small part of it."""
    strategy, first = table.estimates[0]
    states, parts = first.forecast.states, first.forecast.parts.get(first.forecast.tensor_pool, {})
    activations = sum(parts.get(part, 0) for part in ACTIVATIONS)
    if strategy.stage or not states or 2 * activations < first.need.allocated:
        return
    overhead = memory(first.need.process[1] - first.need.reserved)
    yield from console.paragraph(
        f"ZeRO partitions `states`: parameters, gradients and optimizer, {memory(states)} without ZeRO. Most "
        f"of `used` is activations, {memory(activations)}, which no stage partitions; they grow with the "
        f"micro-batch and the sequence. `process` adds the allocator's cache, and {overhead} for CUDA and "
        "NCCL"
    )
    yield ""


def _conclusion(table: StrategyTable) -> Iterator[str]:
    yield from refused_lines(table.rows)
    if table.chosen is not None:
        strategy, estimate = table.chosen
        yield from console.paragraph(f"`{strategy.options}` is the fastest that fits{_why(table, strategy)}")
        if (unchecked := unchecked_host(estimate)) is not None:
            yield from console.paragraph(f"it {unchecked}")
    elif close := [strategy.options for strategy, estimate in table.estimates if estimate.fit is Fit.TIGHT]:
        yield from console.paragraph(f"too close to tell: `{close[0]}`")
    elif doubts := [one for _, one in table.estimates if one.doubts]:
        yield from console.paragraph(f"cannot tell what fits: {'; '.join(doubts[0].verdict.reasons)}")


def nothing_fits(
    remedies: Sequence[Options] | None,
    *,
    is_close: bool = False,
    checks_host: bool = True,
    has_lora: bool = False,
) -> Iterator[str]:
    """Say which changes make the job fit; None if none was tried. Some strategy may fit if it is close."""
    if not is_close:
        yield "no stage or offload fits with these settings"
    if remedies is None:
        yield "hint: leave out `--no-levers` to look for changes that make it fit"
    elif remedies:
        words = ", or with ".join(f"`{remedy}`" for remedy in remedies)
        yield from console.paragraph(f"hint: it fits with {words}")
        if not checks_host and any(remedy.offload for remedy in remedies):
            yield from console.paragraph(
                "what they need of host memory is not checked: `--host-memory SIZE` tells what each host has"
            )
    else:
        yield from console.paragraph(
            "hint: none of the tested changes helps; `zlaunch plan` tries every micro-batch"
        )
    if remedies is not None and not has_lora:
        yield from console.paragraph("hint: LoRA trains with far less memory: `--lora 16` estimates it")


def refused_lines(results: Iterable[tuple[Strategy, Estimate | Rejected]]) -> Iterator[str]:
    """Name the strategies that cannot work, those with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for strategy, result in results:
        if isinstance(result, Rejected):
            by_reason.setdefault(result.findings[0].message, []).append(f"`{strategy.options}`")
    for message, names in by_reason.items():
        yield from console.paragraph(f"{', '.join(names)} cannot work: {message}")


_MISS: Final = {Fit.TIGHT: "too close to tell", Fit.NO: "does not fit", Fit.UNKNOWN: "may not fit"}


def _why(table: StrategyTable, chosen: Strategy) -> str:
    preferred = table.rows[: [strategy for strategy, _ in table.rows].index(chosen)]
    misses = []
    for strategy, result in preferred:
        if isinstance(result, Estimate) and result.fit is not Fit.YES:
            misses.append(f"`{strategy.options}` {_MISS[result.fit]}")
    if not misses:
        return ""
    return f", because {', '.join(misses)}"
