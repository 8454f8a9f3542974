"""What a test runs with, such as launchers: one of them on a commit, in turn, and all of them in `make deaths`."""

import os
from collections.abc import Sequence
from typing import TypeVar

LAUNCHERS = ("torchrun", "deepspeed")
EVERY_LAUNCHER = "ZLAUNCH_EVERY_LAUNCHER"

Launcher = TypeVar("Launcher")


def taken(launchers: Sequence[Launcher], number: int) -> Sequence[Launcher]:
    """Take a launcher in turn; with ZLAUNCH_EVERY_LAUNCHER, as in `make deaths`, take all."""
    return launchers if os.environ.get(EVERY_LAUNCHER) else [launchers[number % len(launchers)]]
