"""The ladder as a person reads it: one row for each stage and offload, and which one to take."""

from collections.abc import Iterator, Sequence

from zlaunch import console
from zlaunch.answers import Answer, Refusal
from zlaunch.cli.show_estimate import asked, method, trained, unchecked_host
from zlaunch.fit import Fit, Site
from zlaunch.ladder import LADDER, Rung
from zlaunch.remedies import Remedy
from zlaunch.units import brief, in_gib

HEADERS = (
    ("GiB", "GPU:", "", "", "host:", "of it", "", "", ""),
    ("stage offload", "used", "reserved", "process", "all", "pinned", "NVMe", "step", "fits"),
)
WIDEST = 78
"""Columns for a row beside its mark."""
FITS = {Fit.YES: "yes", Fit.NO: "no", Fit.TIGHT: "close", Fit.UNKNOWN: "?"}


def ladder_lines(
    known: Answer, answers: Sequence[Answer | Refusal], chosen: int | None, site: Site
) -> Iterator[str]:
    """Say what job it is, write a row for each rung, then what to take and why."""
    yield from console.table([*asked(known.question, site, known.forecast), *_job(known)], indent="")
    yield ""
    rows = [_row(rung, answer) for rung, answer in zip(LADDER, answers, strict=True)]
    lines = console.figures([*HEADERS, *rows])
    if max(map(len, lines)) > WIDEST:
        lines = console.figures([*HEADERS, *rows], gap=1)
    for number, line in enumerate(lines):
        mark = "> " if chosen is not None and number == chosen + len(HEADERS) else "  "
        yield f"{mark}{line}"
    yield ""
    yield from _conclusion(answers, chosen, site)


def _job(known: Answer) -> Iterator[tuple[str, str]]:
    """Say what is the same on every rung."""
    yield "job", ", ".join([*trained(known.question), known.settled.precision])
    batch = known.settled.values.leaves.get(("train_batch_size",))
    if batch is not None:
        yield "batch", f"{batch.value} = {batch.source}"
    yield "method", method(known.forecast)


def _row(rung: Rung, answer: Answer | Refusal) -> tuple[str, ...]:
    name = f"{rung.stage}" if rung.where == "-" else f"{rung.stage} {rung.where}"
    if isinstance(answer, Refusal):
        return (name, *("-",) * 6, "-", "no")
    need = answer.need
    amounts = (need.allocated, need.reserved, need.process[1], need.host, need.pinned, need.nvme)
    seconds = "-" if answer.seconds is None else brief(answer.seconds)
    return (name, *map(in_gib, amounts), seconds, FITS[answer.verdict.fit])


def _conclusion(answers: Sequence[Answer | Refusal], chosen: int | None, site: Site) -> Iterator[str]:
    for message, rungs in _refused(answers).items():
        yield from console.paragraph(f"{', '.join(rungs)} cannot work: {message}")
    if site.gpu is None:
        return
    if chosen is None:
        close = [rung.words for rung, one in zip(LADDER, answers, strict=True) if _is(one, Fit.TIGHT)]
        if close:
            yield from console.paragraph(f"too close to tell: `{close[0]}`")
        return
    yield from console.paragraph(f"`{LADDER[chosen].words}` is the fastest that fits{_why(answers, chosen)}")
    answer = answers[chosen]
    if isinstance(answer, Answer) and (unchecked := unchecked_host(answer, site)) is not None:
        yield from console.paragraph(f"it {unchecked}")


def nothing_fits(found: Sequence[Remedy]) -> Iterator[str]:
    """Say so, and which changes would do."""
    yield "nothing fits with this batch and this training"
    if found:
        words = ", or with ".join(f"`{one.words}`" for one in found)
        yield from console.paragraph(f"hint: it fits with {words}")
    else:
        yield "hint: no single change helps; `zlaunch plan` looks for a batch that does"


def _refused(answers: Sequence[Answer | Refusal]) -> dict[str, list[str]]:
    """Gather the rungs that cannot work by what hinders them."""
    found: dict[str, list[str]] = {}
    for rung, answer in zip(LADDER, answers, strict=True):
        if isinstance(answer, Refusal):
            found.setdefault(answer.findings[0].message, []).append(f"`{rung.words}`")
    return found


def _why(answers: Sequence[Answer | Refusal], chosen: int) -> str:
    """Say what keeps the job from every rung below the chosen one."""
    below = [
        f"`{rung.words}` {answer.verdict.fit.value}"
        for rung, answer in zip(LADDER[:chosen], answers[:chosen], strict=True)
        if isinstance(answer, Answer) and answer.verdict.fit is not Fit.YES
    ]
    return f": {', '.join(below)}" if below else ""


def _is(answer: Answer | Refusal, fit: Fit) -> bool:
    return isinstance(answer, Answer) and answer.verdict.fit is fit
