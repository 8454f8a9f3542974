"""The progress of a running job in one line."""

import math

from zlaunch.launch.monitoring.progress import Progress
from zlaunch.rundir import phases
from zlaunch.rundir.record import HeartbeatRecord
from zlaunch.units import brief, clock

QUIET_SECONDS = 10.0
"""Time without progress after which it is shown, long before it counts as a stall."""

CELLS = 12
"""Width of the bar."""


def progress_line(progress: Progress, world_size: int, rss_bytes: int | None, width: int) -> str:
    """Write one line with a bar, no wider than `width`."""
    last, total = progress.last, progress.total
    if progress.step == 0:
        doing = progress.doing if last.heartbeats else "starting the ranks"
        return f"[{' ' * CELLS}] {doing} {clock(last.time - progress.phase_began)}"[:width]
    step = progress.step
    line = f"{_bar(min(1.0, step / total))}{step}/{total}" if total else f"step {step}"
    for part in (*_doing(progress), *_figures(progress, world_size, rss_bytes)):
        if len(line) + 2 + len(part) > width:
            break
        line += f"  {part}"
    return line[:width]


def _doing(progress: Progress) -> list[str]:
    """Say what the job does instead of the next step, and for how long nothing was heard of it."""
    phase, quiet = progress.first.get("phase"), progress.last.time - progress.moved
    return [
        *([str(phase)] if phase in (phases.SAVING, phases.EVALUATING, phases.EXITING) else []),
        *(["compiling"] if progress.last.is_compiling else []),
        *([f"no progress for {clock(quiet)}"] if quiet >= QUIET_SECONDS else []),
    ]


def _figures(progress: Progress, world_size: int, rss_bytes: int | None) -> list[str]:
    """List what is known, the most important first: a narrow terminal cuts the rest."""
    first, tokens = progress.first, progress.tokens_per_second(world_size)
    left, each = progress.seconds_left, progress.seconds_per_step
    speed = f"{_thousands(tokens)} tok/s" if tokens else f"{brief(each)}/step" if each is not None else ""
    loss, rate = (first.get(name) for name in ("loss", "learning_rate"))
    return [
        *([f"{clock(left)} left"] if left and first.get("phase") != phases.EXITING else []),
        *([f"loss {_number(loss)}"] if isinstance(loss, int | float) else []),
        *([f"lr {rate:.2g}"] if isinstance(rate, int | float) else []),
        *([speed] if speed else []),
        *([f"{rss_bytes / (1 << 30):.1f} GiB a rank"] if rss_bytes else []),
    ]


def _bar(done: float) -> str:
    full = math.floor(done * CELLS)
    return f"[{'=' * full}{'>' if full < CELLS else ''}{' ' * (CELLS - full - 1)}] "


def _number(value: float) -> str:
    if math.isfinite(value):
        return f"{value:.3f}"
    return str(value)


def _thousands(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.1f}k"
    return f"{value:.0f}"


def plain_line(progress: Progress, world_size: int) -> str:
    """Write the progress for a log file."""
    of = f" of {progress.total}" if progress.total else ""
    return ", ".join([f"step {progress.step}{of}", *_doing(progress), *_figures(progress, world_size, None)])


def milestone(progress: Progress) -> int:
    """Number the phases before the first step, to show each only once."""
    phase = progress.first.get("phase")
    if phase in phases.ALL and phase != phases.EXITING:
        return phases.ALL.index(phase)
    return 0


def loss_line(heartbeat: HeartbeatRecord) -> str | None:
    """Write how far the loss fell; None if the script reported none."""
    first, last = heartbeat.get("first_loss"), heartbeat.get("loss")
    if not (isinstance(first, int | float) and isinstance(last, int | float)):
        return None
    fell = _number(last) if first == last else f"{_number(first)} -> {_number(last)}"
    return f"loss {fell} at step {heartbeat.get('loss_step')}"
