"""The ladder as a person reads it: one row for each stage and offload, and which one to take."""

from collections.abc import Iterable, Iterator, Sequence

from zlaunch import console
from zlaunch.cli.views.estimate_text import asked, origin, trained, unchecked_host
from zlaunch.estimate.fit import Cluster, Fit
from zlaunch.estimate.query import Estimate, Rejected
from zlaunch.estimate.remedies import Remedy
from zlaunch.estimate.strategies import STRATEGIES, Strategy
from zlaunch.units import brief, in_gib

HEADERS = (
    ("GiB", "GPU:", "", "", "host:", "of it", "", "", ""),
    ("stage offload", "used", "reserved", "process", "all", "pinned", "NVMe", "step", "fits"),
)
WIDEST = 78
"""Columns for a row beside its mark."""
FITS = {Fit.YES: "yes", Fit.NO: "no", Fit.TIGHT: "close", Fit.UNKNOWN: "?"}


def ladder_lines(
    known: Estimate, answers: Sequence[Estimate | Rejected], chosen: int | None, site: Cluster
) -> Iterator[str]:
    """Say what job it is, write a row for each rung, then what to take and why."""
    yield from console.table([*asked(known.question, site, known.forecast), *_job(known, answers)], indent="")
    yield ""
    rows = [_row(rung, answer) for rung, answer in zip(STRATEGIES, answers, strict=True)]
    lines = console.figures([*HEADERS, *rows])
    if max(map(len, lines)) > WIDEST:
        lines = console.figures([*HEADERS, *rows], gap=1)
    for number, line in enumerate(lines):
        mark = "> " if chosen is not None and number == chosen + len(HEADERS) else "  "
        yield f"{mark}{line}"
    yield ""
    yield from _conclusion(answers, chosen, site)


def _job(known: Estimate, answers: Sequence[Estimate | Rejected]) -> Iterator[tuple[str, str]]:
    """Say what is the same on every rung, and where the numbers come from."""
    yield "job", ", ".join([*trained(known.question), known.settled.precision])
    batch = known.settled.values.leaves.get(("train_batch_size",))
    if batch is not None:
        yield "batch", f"{batch.value} = {batch.source}"
    first, *others = _methods(answers)
    yield "method", first[0]
    for words, rungs in others:
        yield "", f"but {', '.join(rungs)}: {words}"


def _methods(answers: Sequence[Estimate | Rejected]) -> list[tuple[str, list[str]]]:
    """Say where numbers come from, and which rungs have theirs from there; what most have is first."""
    groups: dict[str, list[tuple[str, str | None]]] = {}
    for rung, answer in zip(STRATEGIES, answers, strict=True):
        if isinstance(answer, Estimate):
            why = answer.forecast.why_not_rehearsed
            groups.setdefault(origin(answer.forecast), []).append((f"`{rung.words}`", why))
    found = [(f"{words}{_not_rehearsed(rows)}", [rung for rung, _ in rows]) for words, rows in groups.items()]
    return sorted(found, key=lambda one: -len(one[1]))


def _not_rehearsed(rows: Sequence[tuple[str, str | None]]) -> str:
    """Say why rungs were not rehearsed; where reasons differ, that of the first."""
    reasons = {why: rung for rung, why in reversed(rows) if why is not None}
    if not reasons:
        return ""
    why, rung = list(reasons.items())[-1]
    if len(reasons) == 1:
        return f"; no rehearsal: {why}"
    return f"; no rehearsal of {rung}: {why} (`--json` has the reasons of the others)"


def _row(rung: Strategy, answer: Estimate | Rejected) -> tuple[str, ...]:
    name = f"{rung.stage}" if rung.where == "-" else f"{rung.stage} {rung.where}"
    if isinstance(answer, Rejected):
        return (name, *("-",) * 6, "-", "no")
    need = answer.need
    amounts = (need.allocated, need.reserved, need.process[1], need.host, need.pinned, need.nvme)
    seconds = "-" if answer.seconds is None else brief(answer.seconds)
    return (name, *map(in_gib, amounts), seconds, FITS[answer.verdict.fit])


def _conclusion(answers: Sequence[Estimate | Rejected], chosen: int | None, site: Cluster) -> Iterator[str]:
    yield from refused_lines(zip(STRATEGIES, answers, strict=True))
    if site.gpu is None:
        return
    if chosen is None:
        close = [rung.words for rung, one in zip(STRATEGIES, answers, strict=True) if _is(one, Fit.TIGHT)]
        if close:
            yield from console.paragraph(f"too close to tell: `{close[0]}`")
        return
    yield from console.paragraph(
        f"`{STRATEGIES[chosen].words}` is the fastest that fits{_why(answers, chosen)}"
    )
    answer = answers[chosen]
    if isinstance(answer, Estimate) and (unchecked := unchecked_host(answer, site)) is not None:
        yield from console.paragraph(f"it {unchecked}")


def nothing_fits(found: Sequence[Remedy] | None) -> Iterator[str]:
    """Say so, and which changes would do; None if none was tried."""
    yield "nothing fits with this batch and this training"
    if found is None:
        yield "hint: leave out `--no-levers` to look for changes that let it fit"
    elif found:
        words = ", or with ".join(f"`{one.words}`" for one in found)
        yield from console.paragraph(f"hint: it fits with {words}")
    else:
        yield from console.paragraph(
            "hint: no change that was tried helps; `zlaunch plan` tries every micro-batch"
        )


def refused_lines(answers: Iterable[tuple[Strategy, Estimate | Rejected]]) -> Iterator[str]:
    """Name the rungs that cannot work, those with the same reason together."""
    found: dict[str, list[str]] = {}
    for rung, answer in answers:
        if isinstance(answer, Rejected):
            found.setdefault(answer.findings[0].message, []).append(f"`{rung.words}`")
    for message, rungs in found.items():
        yield from console.paragraph(f"{', '.join(rungs)} cannot work: {message}")


def _why(answers: Sequence[Estimate | Rejected], chosen: int) -> str:
    """Say what keeps the job from every rung below the chosen one."""
    below = [
        f"`{rung.words}` {answer.verdict.fit.value}"
        for rung, answer in zip(STRATEGIES[:chosen], answers[:chosen], strict=True)
        if isinstance(answer, Estimate) and answer.verdict.fit is not Fit.YES
    ]
    return f": {', '.join(below)}" if below else ""


def _is(answer: Estimate | Rejected, fit: Fit) -> bool:
    return isinstance(answer, Estimate) and answer.verdict.fit is fit
