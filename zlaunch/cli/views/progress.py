"""The progress of a running job in one line."""

import math

from zlaunch import console
from zlaunch.cli.views.run import STATE_COLOURS
from zlaunch.launch.monitoring.progress import Progress
from zlaunch.rundir import phases
from zlaunch.rundir.record import loss_of
from zlaunch.runs.run import State
from zlaunch.units import brief, clock, memory

CELLS = 12
"""Width of the bar."""

NO_PROGRESS = "no progress"


def progress_line(progress: Progress, world_size: int, width: int) -> str:
    """Write one line with a bar, no wider than `width`."""
    last, total = progress.last, progress.total
    colour = STATE_COLOURS[State.RUNNING]
    if progress.step == 0:
        doing = progress.doing if last.heartbeats else "starting the ranks"
        line = f"[{' ' * CELLS}] {doing} {clock(last.time - progress.phase_began)}"
        return console.painted(colour, line[:width])
    step = progress.step
    head = f"step {step}"
    if total:
        head = f"{_bar(min(1.0, step / total))}{step}/{total}"
    line, room = console.painted(colour, head[:width]), width - len(head)
    for part in (*_doing(progress), *_figures(progress, world_size)):
        room -= 2 + len(part)
        if room < 0:
            break
        shown = part
        if part.startswith(NO_PROGRESS):
            shown = console.painted("warning", part)
        line += f"  {shown}"
    return line


def _doing(progress: Progress) -> list[str]:
    doing, phase = [], progress.first.get("phase")
    if phase in (phases.SAVING, phases.EVALUATING, phases.EXITING):
        doing.append(phase)
    if progress.last.is_compiling:
        doing.append("compiling")
    if (quiet := progress.quiet_seconds) is not None:
        doing.append(f"{NO_PROGRESS} for {clock(quiet)}")
    return doing


def _figures(progress: Progress, world_size: int) -> list[str]:
    """List what is known, the most important first: a narrow terminal cuts the rest."""
    figures, first = [], progress.first
    if progress.seconds_left and first.get("phase") != phases.EXITING:
        figures.append(f"{clock(progress.seconds_left)} left")
    if isinstance(loss := loss_of(first), int | float):
        figures.append(f"loss {loss_number(loss)}")
    if isinstance(rate := first.get("learning_rate"), int | float):
        figures.append(f"lr {rate:.2g}")
    if tokens := progress.tokens_per_second(world_size):
        figures.append(f"{_thousands(tokens)} tok/s")
    elif progress.seconds_per_step is not None:
        figures.append(f"{brief(progress.seconds_per_step)}/step")
    if progress.mfu is not None:
        figures.append(f"MFU {progress.mfu:.0%}")
    if on_gpu := (progress.sample.get("gpu") or {}).get("used_bytes"):
        figures.append(f"{memory(on_gpu)} of GPU memory")
    elif rss := progress.sample.get("rss_bytes"):
        figures.append(f"{memory(rss)} a rank")
    return figures


def _bar(done: float) -> str:
    full = math.floor(done * CELLS)
    cells = f"{'=' * full}>"[:CELLS]
    return f"[{cells:<{CELLS}}] "


def loss_number(value: float) -> str:
    """Write a loss."""
    if math.isfinite(value):
        return f"{value:.3f}"
    return str(value)


def _thousands(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.1f}k"
    return f"{value:.0f}"


def plain_line(progress: Progress, world_size: int) -> str:
    """Write the progress for a log file."""
    step = f"step {progress.step}"
    if progress.total:
        step += f" of {progress.total}"
    return ", ".join([step, *_doing(progress), *_figures(progress, world_size)])


def milestone(progress: Progress) -> int:
    """Number the phases before the first step, to show each only once."""
    phase = progress.first.get("phase")
    if phase in phases.ALL and phase != phases.EXITING:
        return phases.ALL.index(phase)
    return 0
