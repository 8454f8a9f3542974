"""Find out where a script reports its metrics: watch wandb, trackio and TensorBoard where it uses them.

Where a script is only rehearsed, checked or asked for its arguments, it reports to nobody: wandb, which
starts a program of its own, is off.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Final

from zlaunch.worker.hook.imports import unseen, without_first

TRACKERS: Final[Mapping[str, tuple[str, str]]] = {
    "wandb": ("wandb", "init"),
    "trackio": ("trackio", "init"),
    "torch.utils.tensorboard.writer": ("tensorboard", "SummaryWriter.__init__"),
    "tensorboardX.writer": ("tensorboard", "SummaryWriter.__init__"),
}
"""Module → the name of the tracker, and the function that begins a run."""

Place = Mapping[str, str]
"""`url`, or else `directory`, or `project`."""


def watch_tracker(module: ModuleType, note: Callable[[str, Place], None]) -> None:
    """Call `note` with a tracker's name and place when a script begins a run with it."""
    tracker, path = TRACKERS[module.__name__]
    *holder, name = path.split(".")
    owner: object = functools.reduce(getattr, holder, module)
    function = getattr(owner, name)

    @functools.wraps(function)
    def begun(*args: object, **kwargs: object) -> object:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = without_first(error)
            raise
        with contextlib.suppress(Exception):
            run = result
            if run is None:
                run = args[0]
            if place := {"wandb": _wandb, "trackio": _trackio, "tensorboard": _tensorboard}[tracker](run):
                note(tracker, place)
        return result

    setattr(owner, name, unseen(begun))


def turn_off(wandb: ModuleType) -> None:
    """Let a run of wandb be disabled, whatever the script asks for in a call or in the environment."""
    for name, given in (("init", {"mode": "disabled"}), ("login", dict[str, str]())):
        if (function := getattr(wandb, name, None)) is not None:
            setattr(wandb, name, unseen(_disabled(function, given)))


def _disabled(function: Callable[..., object], given: Mapping[str, str]) -> Callable[..., object]:
    @functools.wraps(function)
    def disabled(*args: object, **kwargs: object) -> object:
        os.environ["WANDB_MODE"] = "disabled"
        return function(*args, **{**kwargs, **given})

    return disabled


def _wandb(run: object) -> Place:
    """Return the link of a run, or its directory if it is offline; nothing if wandb is disabled."""
    if getattr(run, "disabled", False):
        return {}
    is_offline = getattr(run, "offline", False)  # wandb warns if the link of such a run is read
    if not is_offline and (url := getattr(run, "url", None)):
        return {"url": str(url)}
    folder = getattr(run, "dir", None)  # of its files, below that of the run
    if not isinstance(folder, str):
        return {}
    return {"directory": os.path.dirname(os.path.abspath(folder))}  # noqa: PTH100, PTH120


def _trackio(run: object) -> Place:
    if url := getattr(run, "url", None):
        return {"url": str(url)}
    if isinstance(project := getattr(run, "project", None), str):
        return {"project": project}
    return {}


def _tensorboard(writer: object) -> Place:
    folder = getattr(writer, "log_dir", None) or getattr(writer, "logdir", None)
    if not isinstance(folder, str | os.PathLike):
        return {}
    return {"directory": os.path.abspath(folder)}  # noqa: PTH100
