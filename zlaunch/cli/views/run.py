"""Formatting shared by the commands of `zlaunch runs`."""

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from zlaunch import console
from zlaunch.files import shown, typed
from zlaunch.runs.run import Run, State
from zlaunch.secrets import hide_arguments

if TYPE_CHECKING:  # most commands look for no checkpoints
    from zlaunch.resume.saved_by_run import SavedByRun

STATE_COLOURS: Final[Mapping[State, str]] = {
    State.RUNNING: "hint",
    State.FINISHED: "done",
    **dict.fromkeys((State.FAILED, State.STALLED, State.LOST, State.BROKEN), "error"),
    **dict.fromkeys((State.STUMBLED, State.STOPPED, State.PREEMPTED, State.UNKNOWN), "warning"),
}
"""State → the kind of message that has its colour: in a list, while a run lasts, when it has ended."""


def headed(lines: Sequence[str], head: str, state: State, stream: TextIO | None = None) -> list[str]:
    """Colour the words at the start of wrapped lines that say how a run ended."""
    first, *rest = lines
    if first.startswith(head):
        colour = STATE_COLOURS[state]
        first = console.painted(colour, head, stream) + first.removeprefix(head)
    return [first, *rest]


def members(run: Run) -> dict[str, object]:
    """List the JSON members that every command shares."""
    return {
        "id": run.id,
        "directory": str(run.root.absolute()),
        "state": run.state.value,
        "started": run.started,
        "seconds": run.seconds,
        "script": run.script,
        "stage": run.stage,
        "offload": dict(run.offload),
        "ranks": run.world_size,
        "step": run.step,
        "steps": run.steps,
        "exit_status": run.exit_status,
        "cause": run.cause,
        "troubles": list(run.troubles),
    }


def zero(run: Run) -> str:
    """Write stage and offload, optimizer first: `3`, `3 cpu`, `3 cpu/nvme`, `2 cpu/-`.

    `-` stands for a script without DeepSpeed, `?` for an unknown stage.
    """
    if run.stage is None:
        from zlaunch.job.script import ConfigInterface  # few runs need what reads scripts

        if run.job.get("interface") == ConfigInterface.NONE.value:
            return "-"
        return "?"
    optimizer, param = (run.offload.get(part, "-") for part in ("optimizer", "param"))
    if optimizer != param:
        return f"{run.stage} {optimizer}/{param}"
    if param == "-":
        return str(run.stage)
    return f"{run.stage} {param}"


def steps(run: Run) -> str:
    """Write how far a run came: `12/100`, `12`, or `-` if it reported no step."""
    if run.steps is None:
        if run.step:
            return str(run.step)
        return "-"
    return f"{run.step or 0}/{run.steps}"


def saved_rows(saved: "SavedByRun") -> Iterator[tuple[str, str]]:
    """Say where the model and the newest checkpoint of a run are, and the commands that use them."""
    if saved.model is not None and saved.damage is None:
        yield "model", f"{shown(saved.model)}, for `from_pretrained`"
    elif saved.damage is not None:
        yield "model", f"it cannot be loaded: {shown(saved.damage.file)}: {saved.damage.message}"
    if saved.checkpoint is None:
        return
    folder, step = saved.checkpoint.checkpoint.folder, saved.checkpoint.step
    words = console.shell_line(hide_arguments(saved.asked)) or "…"
    text = f"`zlaunch train --resume {typed(folder)} {words}` resumes from step {step}"
    if saved.refusal:
        text = f"{shown(folder)}, step {step}; {saved.refusal}"
    elif saved.began_with:
        text = f"{shown(folder)}, step {step}, from which the run resumed; it saved none"
    elif saved.is_at_end:
        text += ", its last step: ask for more steps"
    if saved.model is None or saved.damage is not None:
        text += f"; `zlaunch checkpoint export {typed(folder)} DIR` exports its model"
    yield "checkpoint", text


def tracker_rows(trackers: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Say where the metrics of a run are, and the command that shows or uploads them."""
    for name, place in sorted(trackers.items()):
        folder, project = typed(Path(place.get("directory", ""))), shlex.quote(place.get("project", ""))
        commands = {
            "wandb": f"offline; `wandb sync {folder}` uploads it",
            "tensorboard": f"`tensorboard --logdir {folder}` shows it",
            "trackio": f"`trackio show --project {project}` shows it",
        }
        if text := place.get("url") or commands.get(name):
            yield name, text


def moment(seconds: float | None, now: float) -> str:
    """Write a time in six columns: the time of day if it is today, else the day or the month."""
    if seconds is None or not 0 <= seconds < 1e11:
        return "?"
    then, today = time.localtime(seconds), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M", then)
    if then.tm_year == today.tm_year:
        return time.strftime("%b %d", then)
    return time.strftime("%Y-%m", then)


def long_moment(seconds: float | None) -> str:
    """Write a time to the second."""
    if seconds is None or not 0 <= seconds < 1e11:
        return "unknown"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
