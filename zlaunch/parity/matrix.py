"""All that a configuration can become: the cells of `check --matrix`."""

from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import Any, Final

from zlaunch.config.resolve.values import AUTO
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.errors import ExitStatus, Refused, Unavailable, ZlaunchError
from zlaunch.estimate.changes import Options
from zlaunch.estimate.query import EstimateQuery
from zlaunch.estimate.strategies import STRATEGIES, Strategy, apply_strategy, available
from zlaunch.frozen import dataclass
from zlaunch.job.spec import Offload, Precision
from zlaunch.parity.check import TrialProgram
from zlaunch.parity.trial import Trial, TrialOptions, trial_of
from zlaunch.parity.verdict import ParityAnswer, ParityVerdict

CLIENT: Final = "client"
"""The optimizer of the script, which the ds_config does not name."""
ACCUMULATIONS: Final = (1, 3)
CLIPPINGS: Final = (0.0, 0.1)
"""Norms to clip to; any gradient of a small model is longer than the second."""
PRECISIONS: Final[tuple[Precision, ...]] = ("bf16", "fp32")
_OPTIMIZERS: Final = ("AdamW", "Adam", "Lion", "Adagrad", "Muon", CLIENT)
_DECAY: Final = 0.01
_MORE_STRATEGIES: Final = (Strategy(1, Offload("cpu", "none"), "CPU optimizer"),)


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One of the configurations."""

    strategy: Strategy
    optimizer: str
    precision: Precision
    accumulation: int
    clipping: float


@dataclass(frozen=True, slots=True)
class Pinned:
    """What was chosen on the command line, and is the same in all cells; None for what varies."""

    stage: int | None = None
    offload: Offload | None = None
    optimizer: str | None = None
    precision: Precision | None = None
    accumulation: int | None = None
    clipping: float | None = None


@dataclass(frozen=True, slots=True)
class CheckedCell:
    """A cell and what came of it: a verdict, or why there is none."""

    cell: MatrixCell
    verdict: ParityVerdict | None = None
    refused: str | None = None
    """Why DeepSpeed or zlaunch refuses this configuration."""
    untold: str | None = None
    """Why nothing can be told."""

    @property
    def answer(self) -> ParityAnswer | None:
        """What the check found; None where the configuration is refused."""
        if self.refused is not None:
            return None
        if self.verdict is None:
            return ParityAnswer.CANNOT_TELL
        return self.verdict.answer


def cells(query: EstimateQuery, pinned: Pinned) -> list[MatrixCell]:
    """List the cells, by strategy and optimizer.

    Precision, accumulation and clipping have two values each. If none of them is pinned, half of their
    combinations are taken, so that each pair of values occurs.
    """
    precisions = _values(pinned.precision, PRECISIONS)
    accumulations = _values(pinned.accumulation, ACCUMULATIONS)
    clippings = _values(pinned.clipping, CLIPPINGS)
    numbered = list(product(enumerate(precisions), enumerate(accumulations), enumerate(clippings)))
    if len(numbered) == 2**3:
        numbered = [values for values in numbered if not sum(number for number, _ in values) % 2]
    rows = product(_strategies(query, pinned), _optimizers(query, pinned))
    found = []
    for (strategy, name), values in product(rows, numbered):
        precision, accumulation, clipping = (value for _, value in values)
        found.append(MatrixCell(strategy, name, precision, accumulation, clipping))
    return found


def _values(pinned: Any, all_values: Sequence[Any]) -> Sequence[Any]:
    if pinned is None:
        return all_values
    return (pinned,)


def _strategies(query: EstimateQuery, pinned: Pinned) -> list[Strategy]:
    known = {*available(query.job), *_MORE_STRATEGIES}
    if pinned.offload is not None:
        stages = {strategy.stage for strategy in STRATEGIES}
        label = " ".join(filter(None, (pinned.offload.optimizer, pinned.offload.param)))
        known = {Strategy(stage, pinned.offload, label) for stage in stages}
    chosen = [strategy for strategy in known if pinned.stage in (None, strategy.stage)]
    return sorted(chosen, key=lambda strategy: (strategy.stage, strategy.label != "-", strategy.label))


def _optimizers(query: EstimateQuery, pinned: Pinned) -> Sequence[str]:
    if pinned.optimizer is not None:
        return (pinned.optimizer,)
    if (named := _named(query)) is None:
        return _OPTIMIZERS
    others = [name for name in _OPTIMIZERS if name.lower() != named.lower() and name != CLIENT]
    return (named, *others)


def _named(query: EstimateQuery) -> str | None:
    """Return the optimizer of the ds_config, whose parameters are kept."""
    if query.given.base is None or "optimizer" not in query.given.base.value:
        return None
    return str(query.given.base.value["optimizer"].get("type", ""))


def trial_in(cell: MatrixCell, query: EstimateQuery, options: TrialOptions, pinned: Pinned) -> Trial:
    """Describe the trial of a cell; raise Refused if it cannot work, Unavailable if nothing can be told."""
    overrides: dict[str, object] = {"gradient_clipping": cell.clipping}
    overrides["gradient_accumulation_steps"] = cell.accumulation
    if pinned.optimizer is None and cell.optimizer not in (CLIENT, _named(query)):
        overrides["optimizer"] = _optimizer_section(cell.optimizer)
        if cell.optimizer == "Muon":
            overrides[f"{ZERO}.reduce_scatter"] = False
    changed = apply_strategy(query, cell.strategy)
    changed = changed.with_options(
        Options(
            precision=cell.precision,
            grad_accum=cell.accumulation,
            overrides=tuple(overrides.items()),
        )
    )
    return trial_of(changed, options)


def _optimizer_section(optimizer: str) -> dict[str, object]:
    parameters: dict[str, object] = {"lr": AUTO, "weight_decay": _DECAY}
    if optimizer == "Adam":
        parameters["adam_w_mode"] = False
    return {"type": optimizer, "params": parameters}


def planned(
    wanted: Collection[MatrixCell], query: EstimateQuery, options: TrialOptions, pinned: Pinned
) -> Iterator[tuple[MatrixCell, Trial | CheckedCell]]:
    """Describe the trial of each cell, or why there is none."""
    for cell in wanted:
        try:
            yield cell, trial_in(cell, query, options, pinned)
        except Refused as error:
            yield cell, CheckedCell(cell, refused=error.findings[0].message)
        except ZlaunchError as error:
            yield cell, CheckedCell(cell, untold=error.message)


def without_ops(cell: MatrixCell, trial: Trial | CheckedCell, why: str) -> Trial | CheckedCell:
    """Leave out a cell whose native ops cannot be compiled."""
    if isinstance(trial, Trial) and trial.ops:
        return CheckedCell(cell, untold=why)
    return trial


def check_cell(cell: MatrixCell, trial: Trial, program: TrialProgram) -> CheckedCell:
    """Train and judge one."""
    try:
        return CheckedCell(cell, program.check(trial).verdict)
    except Unavailable as error:
        return CheckedCell(cell, untold=error.message)


def status_of(done: Sequence[CheckedCell]) -> ExitStatus:
    """Return the exit status: that of the first cell that differs, or that is the same."""
    answers = [found.answer for found in done]
    for answer in (ParityAnswer.DIFFERS, ParityAnswer.SAME):
        if answer in answers:
            return answer.status
    return ParityAnswer.CANNOT_TELL.status
