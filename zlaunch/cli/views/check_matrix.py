"""A matrix of checks as text: the answer, the table, and why some cells differ or have no verdict."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from zlaunch import console
from zlaunch.cli.views.check import differing_quantities, unchecked_lines
from zlaunch.parity.matrix import CheckedCell, MatrixCell
from zlaunch.parity.verdict import ParityAnswer
from zlaunch.units import plural

_REFUSED: Final = "-"
_WORDS: Final = {
    ParityAnswer.SAME: "same",
    ParityAnswer.DIFFERS: "differs",
    ParityAnswer.CANNOT_TELL: "?",
    None: _REFUSED,
}


def lines_of(done: Sequence[CheckedCell], wanted: int, unchecked: Iterable[str] = ()) -> Iterator[str]:
    """Write the answer in the first line, then the table, the reasons, and what was not checked."""
    yield from console.paragraph(answer(done, wanted))
    yield ""
    yield from console.table(rows(done), "")
    for word, why, places in reasons(done):
        yield ""
        yield from console.paragraph(f"{word}: {why}")
        yield from console.paragraph(places, "  ")
    yield from unchecked_lines(unchecked)


def answer(done: Sequence[CheckedCell], wanted: int) -> str:
    """Sum up the verdicts."""
    answers = [cell.answer for cell in done]
    told = [found for found in answers if found is not None]
    differing = told.count(ParityAnswer.DIFFERS)
    text = f"the same: {plural(told.count(ParityAnswer.SAME), 'configuration')} train like plain torch"
    if differing == 1:
        text = f"1 of {plural(len(told), 'configuration')} differs from plain torch"
    elif differing:
        text = f"{differing} of {plural(len(told), 'configuration')} differ from plain torch"
    if untold := told.count(ParityAnswer.CANNOT_TELL):
        text += f"; {untold} cannot be told here"
    if refused := answers.count(None):
        text += f"; {refused} more cannot work"
    if len(done) < wanted:
        text += f" (stopped after {len(done)} of {wanted})"
    return text


def name_of(cell: MatrixCell) -> str:
    """Name a cell in a line."""
    offload = ""
    if cell.strategy.label != "-":
        offload = f" with {cell.strategy.label}"
    return f"stage {cell.strategy.stage}{offload}, {cell.optimizer}, {_column(cell)}"


def rows(done: Sequence[CheckedCell]) -> list[list[str]]:
    """Return the table with its head: a row for each strategy and optimizer."""
    columns = list(dict.fromkeys(_column(found.cell) for found in done))
    table: dict[tuple[str, str, str], dict[str, str]] = {}
    for found in done:
        cell = found.cell
        key = (str(cell.strategy.stage), cell.strategy.label, cell.optimizer)
        table.setdefault(key, {})[_column(cell)] = _WORDS[found.answer]
    head = ["stage", "offload", "optimizer", *columns]
    return [head, *([*key, *(cells.get(column, "") for column in columns)] for key, cells in table.items())]


def _column(cell: MatrixCell) -> str:
    """Name precision, accumulation and clipping."""
    name: str = cell.precision
    if cell.accumulation > 1:
        name += f" x{cell.accumulation}"
    if cell.clipping:
        name += " clip"
    return name


def reasons(done: Sequence[CheckedCell]) -> Iterator[tuple[str, str, str]]:
    """Return words of the table, why cells have them, and where these cells are."""
    for word, reason in (("differs", _difference), ("?", _untold), (_REFUSED, _refusal)):
        for text, cells in _grouped(done, reason).items():
            yield word, text, _places(cells)


def _grouped(
    done: Iterable[CheckedCell], reason: Callable[[CheckedCell], str | None]
) -> dict[str, list[MatrixCell]]:
    groups: dict[str, list[MatrixCell]] = {}
    for found in done:
        text = reason(found)
        if text is not None:
            groups.setdefault(text, []).append(found.cell)
    return groups


def _difference(found: CheckedCell) -> str | None:
    if found.verdict is None or found.answer is not ParityAnswer.DIFFERS:
        return None
    return ", ".join(differing_quantities(found.verdict))


def _untold(found: CheckedCell) -> str | None:
    if found.answer is not ParityAnswer.CANNOT_TELL:
        return None
    text = found.untold or "rounding alone may change most numbers"
    return text.removeprefix("cannot tell here: ")


def _refusal(found: CheckedCell) -> str | None:
    return found.refused


def _places(cells: Sequence[MatrixCell]) -> str:
    """Name stages, optimizers and columns of some cells."""
    stages = dict.fromkeys(f"{cell.strategy.stage} {cell.strategy.label}".rstrip(" -") for cell in cells)
    optimizers = dict.fromkeys(cell.optimizer for cell in cells)
    columns = dict.fromkeys(map(_column, cells))
    return f"stage {', '.join(stages)}; {', '.join(optimizers)}; {', '.join(columns)}"
