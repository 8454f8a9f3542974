"""Two runs side by side: how far and how fast they came, what differs in them, and in their ds_configs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from zlaunch.cli.views.achieved import loss_fall
from zlaunch.cli.views.progress import loss_number
from zlaunch.cli.views.run import steps
from zlaunch.cli.views.run_facts import facts
from zlaunch.config.diff import Difference, compare
from zlaunch.frozen import dataclass
from zlaunch.rundir.record import HeartbeatRecord, StepRecord, loss_of_step
from zlaunch.runs.history import RunHistory
from zlaunch.runs.memory import compare_with_forecast
from zlaunch.runs.report import Seen, steps_since
from zlaunch.runs.run import Run
from zlaunch.runs.why import headline
from zlaunch.units import measured_time, memory, rate

_COMPARED: Final = ("command", "resumed", "ranks", "device", "ZeRO", "batch", "ignored", "versions", "commit")
"""Facts that other rows do not show."""

Row = tuple[str, str, str]
"""A label, and a text of each run."""


@dataclass(frozen=True)
class RunComparison:
    """What is shown of two runs."""

    figures: Sequence[Row]
    facts: Sequence[Row]
    """Those that differ."""
    config: Sequence[Difference]


def compare_runs(
    first: Run, second: Run, histories: tuple[RunHistory, RunHistory] | None = None
) -> RunComparison:
    """Compare two runs; of their ds_configs what DeepSpeed read, if both have recorded that.

    `histories`: those of the runs, if they were read before.
    """
    pairs = _paired(dict(facts(first)), dict(facts(second)))
    read = [run.program.get("engine", {}).get("ds_config") for run in (first, second)]
    left, right = (config or {} for config in read)
    if not all(read):
        left, right = first.config, second.config
    figures = _paired(dict(_figures(first)), dict(_figures(second)))
    return RunComparison(
        figures=[*figures, *_at_one_step(first, second, histories)],
        facts=[row for row in pairs if row[1] != row[2] and row[0] in _COMPARED],
        config=compare(left, right),
    )


def _at_one_step(first: Run, second: Run, histories: tuple[RunHistory, RunHistory] | None) -> Iterator[Row]:
    """Compare the losses at the last step of the shorter run, if one is longer."""
    if not first.step or not second.step or first.step == second.step:
        return
    if histories is None:
        histories = RunHistory(first.root), RunHistory(second.root)
        for history in histories:
            history.update()
    last = min(first.step, second.step)
    losses = [_loss_at(last, history.steps.lines) for history in histories]
    if any(losses):
        yield f"loss at step {last}", losses[0] or "-", losses[1] or "-"


def _loss_at(step: int, lines: Sequence[StepRecord]) -> str:
    """Write the loss of a step, as the engine was given it or as it was logged; empty if it is not known."""
    for line in reversed(lines):  # a step that was repeated counts as it was in the end
        loss = loss_of_step(line)
        if line.get("step") == step and loss is not None:
            return loss_number(loss)
    return ""


def _paired(first: Mapping[str, str], second: Mapping[str, str]) -> list[Row]:
    return [(name, first.get(name, "-"), second.get(name, "-")) for name in {**first, **second}]


def _figures(run: Run) -> Iterator[tuple[str, str]]:
    yield "state", headline(run)
    yield "step", steps(run)
    beat = run.heartbeats.get(0, HeartbeatRecord())
    if fall := loss_fall(beat):
        yield "loss", fall.ends
        yield "the last loss is", fall.remark or "that of the last step"
    if (time := run.step_time) is not None:
        yield "a step", measured_time(time.seconds)
        speed = time.throughput
        for name, per_second in (("samples", speed.samples_per_second), ("tokens", speed.tokens_per_second)):
            if per_second is not None:
                yield f"{name}/s", rate(per_second)
        if speed.mfu is not None:
            yield "MFU", f"{speed.mfu:.1%}"
    for pool in compare_with_forecast(run).pools:
        if pool.measured:
            yield pool.name.strip(), memory(pool.measured)


def comparison_data(
    first: Run,
    second: Run,
    histories: tuple[RunHistory, RunHistory] | None = None,
    seen: tuple[Seen, Seen] = ((0, 0), (0, 0)),
) -> dict[str, object]:
    """Describe two runs for their page: what differs, and of the curves what a page has not `seen`.

    `histories`: those of the runs, if they were read before.
    """
    if histories is None:
        histories = RunHistory(first.root), RunHistory(second.root)
    for history in histories:
        history.update()
    found = compare_runs(first, second, histories)
    return {
        "compared": [_curves(first, histories[0], seen[0]), _curves(second, histories[1], seen[1])],
        "figures": found.figures,
        "facts": found.facts,
        "config": [(item.key, *map(str, item.cells)) for item in found.config],
    }


def _curves(run: Run, history: RunHistory, seen: Seen) -> dict[str, object]:
    return {"id": run.id, "state": run.state, "history": steps_since(run, history, seen)}
